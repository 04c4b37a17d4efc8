"""A session shows the node as it was when it began; the backend begins a new one when the node has changed."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.nvml.backend import LEFT_OUT_LOOKS, NvmlBackend, open_device_files
from dra_driver.hardware.gpu.nvml.session import Session
from dra_driver.hardware.gpu.simulated.spec import NodeSpec
from tests.contract.hardware.gpu.conftest import Call, until, waiting
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State
from tests.fakes.nvml.sysfs import bind_in_sysfs, unbind_in_sysfs, write_sysfs

DRIVER_FOLDER = "bus/pci/drivers/nvidia"
LONG_S = 60.0


class Bus:
    """Binds and unbinds GPUs as an administrator does: in sysfs and in NVML."""

    def __init__(self, state: State, node: NodeSpec, sysfs: Path) -> None:
        self.sysfs = sysfs
        self._state, self._node = state, node

    def unbind(self, index: int) -> None:
        self._state.unbind(index)
        unbind_in_sysfs(self.sysfs, self._address(index))

    def bind(self, index: int) -> None:
        self._state.bind(index)
        bind_in_sysfs(self.sysfs, self._address(index))

    def _address(self, index: int) -> str:
        address = self._node.gpus[index].gpu.pci_bus_id
        assert address is not None
        return address


@pytest.fixture
def bus(state: State, node: NodeSpec, tmp_path: Path) -> Bus:
    return Bus(state, node, tmp_path / "sys")


def sessions(state: State) -> int:
    return state.calls("nvmlInitWithFlags")


def test_without_sysfs_gpus_that_are_bound_after_the_start_appear_at_the_look_after_the_next(
    nvml_library: Path, state: State, node: NodeSpec
) -> None:
    backend = NvmlBackend(str(nvml_library), "/no/such/sysfs")
    for index in range(7):
        state.unbind(index)
    assert backend.snapshot().gpus == ()
    for index in range(7):
        state.bind(index)
    assert len(backend.snapshot().gpus) == 7
    backend.close()


def test_a_node_that_stays_without_gpus_fills_no_log(
    nvml: NvmlBackend, state: State, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for index in range(7):
        bus.unbind(index)
    for _ in range(5):
        nvml.snapshot()
    assert sessions(state) == 5
    assert caplog.text.count("NVML session is outdated") == 1


def test_a_gpu_that_is_unbound_vanishes_and_returns_when_it_is_bound_again(
    nvml: NvmlBackend, state: State, bus: Bus
) -> None:
    before = nvml.snapshot()
    bus.unbind(2)
    gone = nvml.snapshot()
    assert gone.gpus == tuple(gpu for gpu in before.gpus if gpu.minor != 2)
    assert gone.left_out == ()
    assert "nvidia2" not in state.opened()
    assert nvml.snapshot() == gone
    bus.bind(2)
    assert nvml.snapshot() == before


def test_a_gpu_that_was_bound_again_between_two_looks_is_read_in_a_new_session(
    nvml: NvmlBackend, state: State, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """The set of addresses is the same, but the session has lost the GPU."""
    caplog.set_level(logging.INFO)
    before = nvml.snapshot()
    bus.unbind(0)
    bus.bind(0)
    assert nvml.snapshot() == before
    assert sessions(state) == 2
    (record,) = [one for one in caplog.records if one.getMessage() == "NVML session is outdated and begins again"]
    assert "0000:01:00.0" in vars(record)["reason"]


def test_settings_of_the_other_gpus_survive_a_new_session_without_persistence_mode(
    nvml_library: Path, state: State, bus: Bus
) -> None:
    """A GPU stops with its last user, and the mode of a claim whose pod has not started yet would be lost."""
    backend = NvmlBackend(str(nvml_library), str(bus.sysfs), dev_folder=str(state.path.parent / "dev"))
    gpus = [gpu.uuid for gpu in backend.snapshot().gpus]
    for index, gpu in enumerate(gpus):
        state.configure(index, forgets=1)
        backend.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    bus.unbind(2)
    backend.snapshot()
    assert sessions(state) == 2
    assert {backend.compute_mode(gpu) for gpu in (*gpus[:2], *gpus[3:])} == {ComputeMode.EXCLUSIVE_PROCESS}
    assert backend.detach("upgrade"), "no device file was left open"
    backend.reattach()
    assert backend.compute_mode(gpus[0]) is ComputeMode.DEFAULT, "which the fake does forget"
    backend.close()


def test_a_gpu_that_is_being_unbound_is_not_held_open(nvml_library: Path, state: State, bus: Bus) -> None:
    """The kernel module waits for its last user; the others stay open while the session is exchanged."""
    backend = NvmlBackend(str(nvml_library), str(bus.sysfs), dev_folder=str(state.path.parent / "dev"))
    backend.snapshot()
    bus.unbind(2)
    look = Call(state, "nvmlInitWithFlags", backend.snapshot)
    until(lambda: "nvidia2" not in state.opened())
    held = {Path(file).name for file in open_device_files()}
    look.release()
    look.result()
    assert held >= {f"nvidia{minor}" for minor in range(7) if minor != 2}
    assert "nvidia2" not in held
    backend.close()


def test_a_gpu_that_got_another_minor_is_published_under_it(nvml: NvmlBackend, state: State, node: NodeSpec) -> None:
    nvml.snapshot()
    item = node.gpus[0]
    state.set_node(replace(node, gpus=(replace(item, gpu=replace(item.gpu, minor=9)), *node.gpus[1:])))
    assert [gpu.minor for gpu in nvml.snapshot().gpus] == [1, 2, 3, 4, 5, 6, 9]


def test_a_session_is_kept_while_nothing_changes(nvml: NvmlBackend, state: State) -> None:
    for _ in range(LEFT_OUT_LOOKS + 1):
        nvml.snapshot()
    assert sessions(state) == 1


def test_a_gpu_that_stays_left_out_is_looked_for_in_new_sessions_ever_more_rarely(
    nvml: NvmlBackend, state: State
) -> None:
    """It may have been reset; a board that is really broken must not disturb the others each minute."""
    nvml.snapshot()
    state.inject("nvmlDeviceGetMinorNumber", codes.GPU_IS_LOST, device=0)
    counts = []
    for _ in range(3 * LEFT_OUT_LOOKS + 1):
        nvml.snapshot()
        counts.append(sessions(state))
    first, second = counts.index(2), counts.index(3)
    assert (first, second) == (LEFT_OUT_LOOKS, 3 * LEFT_OUT_LOOKS)


def test_a_gpu_that_only_a_new_session_sees_comes_back(nvml: NvmlBackend, state: State) -> None:
    """Its handles are lost for this session, and sysfs shows no change: a GPU reset by an administrator."""
    before = nvml.snapshot()
    state.unbind(3)
    state.bind(3)
    assert before.gpus[3].uuid == nvml.snapshot().left_out[0].label
    for _ in range(LEFT_OUT_LOOKS):
        found = nvml.snapshot()
    assert found == before


def test_a_session_is_not_ended_under_a_running_change(
    nvml: NvmlBackend, state: State, bus: Bus, node: NodeSpec
) -> None:
    before = nvml.snapshot()
    change = Call(
        state, "nvmlDeviceSetComputeMode", lambda: nvml.set_compute_mode(before.gpus[1].uuid, ComputeMode.DEFAULT)
    )
    bus.unbind(2)
    found = nvml.snapshot()
    assert sessions(state) == 1
    assert [gpu.label for gpu in found.left_out] == [before.gpus[2].uuid]
    change.release()
    assert change.result() is None
    assert nvml.snapshot().left_out == ()
    assert sessions(state) == 2


def test_a_renewal_does_not_wait_for_a_running_call(nvml_library: Path, state: State, tmp_path: Path) -> None:
    session = Session(str(nvml_library), None, str(tmp_path / "sys"), end_timeout_s=LONG_S, renew_timeout_s=LONG_S)
    with session.use() as generation, ThreadPoolExecutor() as pool:
        renewal = pool.submit(session.renew, generation)
        assert renewal.result(LONG_S / 4) is False
    session.close()
    assert sessions(state) == 1


def test_waiting_for_events_does_not_keep_an_outdated_session(nvml: NvmlBackend, state: State, bus: Bus) -> None:
    nvml.snapshot()
    waiter = waiting(nvml, state)
    bus.unbind(2)
    assert len(nvml.snapshot().gpus) == 6
    assert waiter.result() is False
    waiter = waiting(nvml, state)
    state.foreign_mode(0, True)
    assert waiter.result() is True


class Driver:
    """A driver root and sysfs whose release changes."""

    def __init__(self, folder: Path, library: Path, node: NodeSpec) -> None:
        self.root, self.sysfs, self._library = folder / "root", write_sysfs(folder / "sys", node), library
        (self.root / "usr/lib64").mkdir(parents=True)
        (self.sysfs / "module/nvidia").mkdir(parents=True)
        self.install("580.65.06")
        self.load("580.65.06")

    def install(self, version: str) -> None:
        target = self.root / f"usr/lib64/libnvidia-ml.so.{version}"
        target.write_bytes(self._library.read_bytes())
        fresh = target.with_name("fresh")
        fresh.symlink_to(target.name)
        fresh.rename(target.with_name("libnvidia-ml.so.1"))

    def load(self, version: str) -> None:
        (self.sysfs / "module/nvidia/version").write_text(f"{version}\n")


def test_a_driver_that_was_replaced_is_used_when_its_kernel_module_is_loaded(
    nvml_library: Path, state: State, node: NodeSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(tmp_path, nvml_library, node)
    backend = NvmlBackend(driver_root=str(driver.root), sysfs_root=str(driver.sysfs))
    before = backend.snapshot()
    driver.install("610.43.02")
    backend.snapshot()
    backend.snapshot()
    assert sessions(state) == 1
    (record,) = [one for one in caplog.records if "library was replaced" in one.getMessage()]
    assert (vars(record)["library"], vars(record)["loaded"]) == ("610.43.02", "580.65.06")
    driver.load("610.43.02")
    assert backend.snapshot() == before
    assert sessions(state) == 2
    backend.snapshot()
    assert sessions(state) == 2
    backend.close()


def test_the_sessions_of_two_looks_at_once_are_the_same(nvml: NvmlBackend, state: State) -> None:
    nvml.open()
    first = Call(state, "nvmlDeviceGetCount_v2", nvml.snapshot)
    second = Call(state, None, nvml.snapshot)
    first.release()
    assert first.result() == second.result()
    until(lambda: sessions(state) == 1)
