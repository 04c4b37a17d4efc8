"""Real processes on one health file: two at a time, killed at any moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health import NodeHealth

GPUS = (GpuUuid("GPU-one"), GpuUuid("GPU-two"))
WRITER = """
import sys, time
from pathlib import Path
from dra_driver.node.health import NodeHealth
from dra_driver.core.model.health import HealthEvent, HealthEventKind

path, gpu, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
now = time.monotonic()
health = NodeHealth.open(path, boot_id="b", clock=lambda: now)
for number in range(first, first + 12):
    now += 2.0  # so that every change may be written
    health.observe([HealthEvent(kind=HealthEventKind.XID, gpu_uuid=gpu, xid=number)])
    print(number, flush=True)
time.sleep(600)
"""


@contextmanager
def writer(path: Path, gpu: GpuUuid, first: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that reports XIDs of the GPU one by one, each after it was told, and then waits to be killed."""
    command = [sys.executable, "-c", WRITER, str(path), gpu, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("told", [1, 5, 12])
def test_no_error_that_was_taken_in_is_lost_when_two_processes_are_killed(tmp_path: Path, told: int) -> None:
    path, seen = tmp_path / "health.json", {gpu: set[str]() for gpu in GPUS}
    with writer(path, GPUS[0], 1000) as one, writer(path, GPUS[1], 2000) as other:
        for process, gpu in ((one, GPUS[0]), (other, GPUS[1])):
            assert process.stdout is not None
            for _ in range(told):
                seen[gpu].add(process.stdout.readline().strip())
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
    health = NodeHealth.open(path, boot_id="b")
    known = {gpu: {str(key.xid) for key in faults} for gpu, faults in health._gpus.items()}
    assert all(seen[gpu] <= known[gpu] for gpu in GPUS)
    assert {condition.gpu_uuid for condition in health.conditions()} == set(GPUS)
    assert not list(tmp_path.glob("*.damaged"))


def test_a_stopped_process_does_not_stop_the_other(tmp_path: Path) -> None:
    """SIGSTOP at any moment: the lock may be its own then."""
    path = tmp_path / "health.json"
    with writer(path, GPUS[0], 1000) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            health = NodeHealth.open(path, boot_id="b")
            assert health.conditions()
            health.forget(GPUS[0])
            assert not health.conditions()
        finally:
            os.kill(process.pid, signal.SIGCONT)
