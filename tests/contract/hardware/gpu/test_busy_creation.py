"""Processes that have a GPU open: as the kernel shows them, and instances that the GPU refuses because of them."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.holders import GpuHolder, GpuHolders, scan
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.hardware.mig.manager import MigManager
from tests.contract.hardware.gpu.conftest import Opened
from tests.fakes.nvml.state import FOR_EVER, IN_USE
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.simulated_gpus import SimulatedBackend

SMALL = 19
Refuse = Callable[[str, int], None]


@pytest.fixture
def stage(kind: str, open_nvml: Opened) -> tuple[GpuBackend, Refuse]:
    """A backend with one H100, and a function that lets a method fail because of another client; 0 times: always."""
    node = parse_groups("1xh100-sxm5-80gb", "node-a")
    if kind == "simulated":
        simulated = SimulatedBackend(node)
        return simulated, lambda method, times: simulated.fail_next(method, GpuBusyError("in use"), times=times)
    nvml, state = open_nvml(node)

    def refuse(method: str, times: int) -> None:
        if method == "create_gpu_instance":
            state.configure(0, first_refusals=times or FOR_EVER)
        else:
            state.inject("nvmlGpuInstanceCreateComputeInstance", IN_USE, times=times)

    return nvml, refuse


@pytest.mark.parametrize("method", ["create_gpu_instance", "create_compute_instance"])
def test_creation_goes_on_when_the_other_client_has_closed_the_gpu(
    stage: tuple[GpuBackend, Refuse], method: str
) -> None:
    """NVML_ERROR_IN_USE at a GPU's first instance is waited for, as at the switch of its mode."""
    backend, refuse = stage
    gpu = backend.snapshot().gpus[0].uuid
    waits: list[float] = []
    manager = MigManager(backend, FakeGpuNotes(), sleep=waits.append, clock=lambda: sum(waits))
    refuse(method, 2)
    made = manager.create(PartitionId(gpu, SMALL, 0), 1, within_s=5)
    assert made.device is not None
    assert waits == [0.1, 0.2]


@pytest.mark.parametrize("method", ["create_gpu_instance", "create_compute_instance"])
def test_a_creation_that_stays_refused_leaves_a_whole_gpu(
    stage: tuple[GpuBackend, Refuse], method: str, tmp_path: Path
) -> None:
    backend, refuse = stage
    gpu = backend.snapshot().gpus[0]
    monitor = tmp_path / "proc" / "4711"
    (monitor / "fd").mkdir(parents=True)
    (monitor / "comm").write_text("dcgm-exporter\n")
    (monitor / "fd" / "9").symlink_to(f"/dev/nvidia{gpu.minor}")
    waits: list[float] = []
    notes = FakeGpuNotes()
    holders = GpuHolders(lambda: [tmp_path / "proc"], lambda _: gpu.minor)
    manager = MigManager(backend, notes, sleep=waits.append, clock=lambda: sum(waits), holders=holders)
    refuse(method, 0)
    with pytest.raises(GpuBusyError) as failed:
        manager.create(PartitionId(gpu.uuid, SMALL, 0), 1, within_s=5)
    if method == "create_gpu_instance":
        assert "dcgm-exporter (process 4711)" in str(failed.value)
    assert sum(waits) == pytest.approx(5)
    assert backend.mig_instances(gpu.uuid) == ()
    assert not backend.mig_mode(gpu.uuid)
    assert notes.values == {}


MINOR = 7777777777
"""No GPU has it."""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    node = tmp_path / f"nvidia{MINOR}"
    node.touch()
    with node.open() as file, subprocess.Popen([shutil.which("sleep") or "sleep", "60"], stdin=file) as process:
        yield process
        process.kill()


def test_another_process_is_found(holder: "subprocess.Popen[bytes]") -> None:
    """By what /proc says about its open files; this process has the file open as well and is passed over."""
    assert scan(Path("/proc"), MINOR).holders == (GpuHolder(pid=holder.pid, name="sleep"),)


def test_a_process_that_has_ended_is_not_named(holder: "subprocess.Popen[bytes]") -> None:
    holder.kill()
    with Path(f"/proc/{holder.pid}/stat").open() as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
    answer = GpuHolders(lambda: [Path("/proc")], lambda _: MINOR)("GPU-0")
    assert answer is not None
    assert answer.startswith("no other process has it open")
