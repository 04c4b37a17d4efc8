"""The node process is stopped, killed for memory, started twice: containers do not notice, calls are answered later."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.chaos.stage import FaultRecord, Stage
from tests.fakes.live_node import until

A_MINUTE_S = 60.0
CALLS, MANY_CLAIMS = 8, 4000  # as many claims as a request may have bytes for, at once
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.fault("sigstop")
def test_a_process_that_is_stopped_for_a_minute_goes_on(stage: Stage, fault: FaultRecord) -> None:
    claim, during = stage.spare_claim(), stage.node.process.pid
    assert during is not None
    os.kill(during, signal.SIGSTOP)
    try:
        began = time.monotonic()
        seen = stage.prepare(claim)
        assert seen == "DEADLINE_EXCEEDED"
        stage.node.remove_slices()
        time.sleep(A_MINUTE_S - (time.monotonic() - began))
    finally:
        os.kill(during, signal.SIGCONT)
    since = time.monotonic()
    stage.finish(fault, since, seen=f"calls end with {seen}, and are answered after the minute", waited=claim)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of its own that can limit memory (cgroup v1). Skips for users who may not make one."""
    group = MEMORY_GROUPS / f"dra-chaos-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this user may not limit the memory of a process")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "an empty group", 30.0)
    group.rmdir()


def _used(group: Path) -> int:
    return int((group / "memory.usage_in_bytes").read_text())


@pytest.mark.fault("oom-kill")
def test_a_process_that_the_kernel_kills_for_memory_loses_nothing(memory_group: Path, fault: FaultRecord) -> None:
    into = ["sh", "-c", f'echo $$ > {memory_group}/cgroup.procs; exec "$@"', "sh"]
    with Stage(wrap=into) as stage:
        claim = stage.spare_claim()
        usage = _used(memory_group)
        (memory_group / "memory.limit_in_bytes").write_text(str(usage))
        many = [[str(uuid.uuid4()) for _ in range(MANY_CLAIMS)] for _ in range(CALLS)]
        with ThreadPoolExecutor(CALLS) as calls:
            answers = [calls.submit(stage.node._client().prepare, *uids, timeout=60.0) for uids in many]
            for answer in answers:
                assert isinstance(answer.exception(90.0), grpc.RpcError)
        until(lambda: not stage.node.process.is_running, "the process to end", 60.0)
        killed = (memory_group / "memory.oom_control").read_text().split()
        assert killed[-2] == "oom_kill", killed
        assert int(killed[-1]) > 0, f"the kernel did not kill it: {usage >> 20} MiB"
        (memory_group / "memory.limit_in_bytes").write_text("-1")
        since = time.monotonic()
        stage.node.kill()
        stage.node.start()
        seen = f"killed at {usage >> 20} MiB; the call is cut off, and is answered by the next process"
        stage.finish(fault, since, seen=seen, waited=claim)


@pytest.mark.fault("two-at-once")
def test_a_second_process_is_refused_and_changes_nothing(stage: Stage, fault: FaultRecord) -> None:
    second = subprocess.run(stage.node.process.command, capture_output=True, text=True, timeout=60.0, check=False)
    assert second.returncode == 2
    assert "another process of this driver runs on this node" in second.stderr
    stage.assert_intact()
    stage.finish(fault, time.monotonic(), seen=second.stderr.strip().splitlines()[-1])


@pytest.mark.fault("two-killed")
def test_node_process_and_mps_host_killed_together_lose_nothing(stage: Stage, fault: FaultRecord) -> None:
    host = stage.node.mps_host
    assert host is not None
    assert len(stage.node.mps_processes()) == 1
    host.kill()
    stage.node.kill()
    claim = stage.spare_claim()
    seen = stage.prepare(claim, 2.0)
    assert seen == "UNAVAILABLE"
    until(lambda: not stage.node.mps_processes(), "the daemon to end with its host")
    since = time.monotonic()
    host.start()
    stage.node.start()
    stage.finish(
        fault, since, seen=f"calls end with {seen}; the daemon ends with its host, a new one is started", waited=claim
    )


@pytest.mark.fault("kill-9")
def test_a_kill_at_rest_changes_nothing(stage: Stage, fault: FaultRecord) -> None:
    stage.node.kill()
    claim = stage.spare_claim()
    seen = stage.prepare(claim, 2.0)
    since = time.monotonic()
    stage.node.start()
    stage.finish(fault, since, seen=f"calls end with {seen} until the process runs again", waited=claim)
