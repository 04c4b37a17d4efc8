"""Who has a GPU open: this driver until it detaches, and others, because of which instances are refused. One suite for
NVML over the fake library and for the simulation.
"""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import DetachedError, DriverUnavailableError, GpuBusyError
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.gpu.backend import ComputeMode, GpuBackend
from dra_driver.hardware.gpu.holders import GpuHolder, GpuHolders, scan
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.hardware.mig.manager import MigManager
from tests.contract.hardware.gpu.conftest import Opened, until
from tests.fakes.nvml.state import FOR_EVER, IN_USE, State
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.raising import fails

WAIT_S = 10.0
REASON = "a driver upgrade is announced"


def slow_call(backend: GpuBackend, state: State, seconds: float) -> threading.Thread:
    """A call that is running and takes ``seconds``, in a thread."""
    uuid = backend.snapshot().gpus[0].uuid
    if isinstance(backend, SimulatedBackend):
        backend.fail_next("compute_mode", delay_s=seconds)
    else:
        state.inject("nvmlDeviceGetComputeMode", 0, device=0, latency_ms=int(seconds * 1000), times=1)
    before = state.calls("nvmlDeviceGetComputeMode")
    thread = threading.Thread(target=lambda: backend.compute_mode(uuid))
    thread.start()
    if isinstance(backend, SimulatedBackend):
        until(lambda: not backend._store.read().faults)
    else:
        until(lambda: state.calls("nvmlDeviceGetComputeMode") > before)
    return thread


def test_a_detached_backend_refuses_every_use_and_says_why(backend: GpuBackend) -> None:
    """A claim's error must tell that the driver is upgraded, not that it is broken."""
    gpu = backend.snapshot().gpus[0].uuid
    assert backend.detached is None
    assert backend.detach(REASON)
    assert backend.detached == REASON
    uses: list[Callable[[], object]] = [
        backend.open,
        backend.snapshot,
        lambda: backend.mig_mode(gpu),
        lambda: backend.set_mig_mode(gpu, True),
        lambda: backend.mig_instances(gpu),
        lambda: backend.create_gpu_instance(gpu, 19, 0),
        lambda: backend.create_compute_instance(gpu, 0),
        lambda: backend.destroy_compute_instance(gpu, 0, 0),
        lambda: backend.destroy_gpu_instance(gpu, 0),
        lambda: backend.compute_mode(gpu),
        lambda: backend.set_compute_mode(gpu, ComputeMode.DEFAULT),
    ]
    for use in uses:
        with fails(DetachedError, because=REASON) as caught:
            use()
        assert isinstance(caught.value, DriverUnavailableError)


def test_detach_and_reattach_may_be_repeated_in_any_state(backend: GpuBackend) -> None:
    backend.reattach()
    assert backend.detach(REASON), "never opened"
    assert backend.detach("another reason")
    assert backend.detached == "another reason"
    backend.close()
    with pytest.raises(DetachedError, match="another reason"):
        backend.open()
    backend.reattach()
    backend.reattach()
    assert len(backend.snapshot().gpus) == 7


def test_detach_waits_for_a_running_call(backend: GpuBackend, state: State) -> None:
    """A MIG change in the middle must not be cut off."""
    call = slow_call(backend, state, 0.2)
    assert backend.detach(REASON, timeout_s=WAIT_S)
    call.join(0.1)
    assert not call.is_alive()


def test_a_call_that_does_not_return_keeps_detach_from_saying_that_nothing_is_open(
    backend: GpuBackend, state: State
) -> None:
    """Otherwise the kernel module would be removed under it; the end of the call ends the session. Also where this
    process cannot see its device files."""
    shutil.rmtree(state.path.parent / "dev")
    call = slow_call(backend, state, 1.0)
    assert not backend.detach(REASON, timeout_s=0.05)
    assert call.is_alive(), "it waited for the call"
    with pytest.raises(DetachedError):
        backend.snapshot()
    call.join(WAIT_S)
    assert backend.detach(REASON, timeout_s=0)


def test_reattach_before_the_running_call_has_returned_harms_no_use(backend: GpuBackend, state: State) -> None:
    before = backend.snapshot()
    call = slow_call(backend, state, 0.2)
    assert not backend.detach(REASON, timeout_s=0)
    backend.reattach()
    assert backend.snapshot() == before
    call.join(WAIT_S)


def test_waiting_for_events_goes_on_quietly_while_detached(backend: GpuBackend) -> None:
    backend.detach(REASON)
    begin = time.monotonic()
    assert backend.wait_for_event(0.2) is False
    assert time.monotonic() - begin >= 0.2
    threading.Timer(0.05, backend.reattach).start()
    assert backend.wait_for_event(0.2) is False
    assert backend.detached is None


def test_a_detach_ends_a_wait_for_events(backend: GpuBackend) -> None:
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(backend.wait_for_event(WAIT_S)))
    waiter.start()
    time.sleep(0.02)
    assert backend.detach(REASON, timeout_s=2.0)
    waiter.join(2.0)
    assert answers == [False]


def test_the_inventory_keeps_the_last_snapshot_and_does_not_count_a_failure(backend: GpuBackend) -> None:
    inventory = Inventory(backend, 3600.0)
    assert inventory._poll() == 3600.0
    before = inventory.current()
    backend.detach(REASON)
    assert inventory._poll() == 3600.0
    assert inventory.current() == before
    assert not inventory.failing
    assert REASON in (inventory.problem or "")
    backend.reattach()
    inventory._poll()
    assert (inventory.current(), inventory.problem) == (before, None)


def test_no_device_file_is_open_and_nvml_is_not_called_while_detached(nvml: NvmlBackend, state: State) -> None:
    """The kernel module can then be removed, and a GPU unbound and reset; each call would open the files again."""
    uuid = nvml.snapshot().gpus[0].uuid
    nvml.wait_for_event(0.01)
    assert state.opened() == {"nvidiactl", *(f"nvidia{minor}" for minor in range(7))}
    assert nvml.detach(REASON)
    assert state.opened() == set()
    assert state.calls("nvmlEventSetCreate") == state.calls("nvmlEventSetFree") == 1
    called = {name: state.calls(name) for name in state.functions()}
    nvml.wait_for_event(0.05)
    with pytest.raises(DetachedError):
        nvml.mig_mode(uuid)
    nvml.reattach()
    assert {name: state.calls(name) for name in state.functions()} == called
    assert state.opened() == set(), "opened by the next use only"
    nvml.snapshot()
    assert "nvidia0" in state.opened()


def test_a_device_file_that_stays_open_is_not_reported_as_closed(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.snapshot()
    with (state.path.parent / "dev/nvidia0").open("rb"):
        assert not nvml.detach(REASON)
    (record,) = [one for one in caplog.records if "device files are open" in one.getMessage()]
    assert vars(record)["files"].endswith("/dev/nvidia0")
    assert nvml.detach(REASON)


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
