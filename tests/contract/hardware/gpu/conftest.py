"""A node described once and looked at twice: by the simulation, and through NVML on our own C library."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.model.health import HealthEvent, HealthReading, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.nvml.call_locks import THREAD_NAME, Patience
from dra_driver.hardware.gpu.simulated.faults import FailureMode
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.fakes.nvml import library
from tests.fakes.nvml.state import DOUBLE_BIT_ECC, ENVIRONMENT, NOT_SUPPORTED, State
from tests.fakes.nvml.sysfs import write_sysfs
from tests.fakes.simulated_gpus import SimulatedBackend

Opened = Callable[[NodeSpec], tuple[NvmlBackend, State]]
WAIT = "nvmlEventSetWait_v2"
LONG_S = 20.0  # longer than any test: an answer that comes is told by an event
SHORT = Patience(look_s=0.1, first_look_s=0.2, stuck_s=0.3, change_s=0.5, read_s=0.05, end_s=0.2)
SPEC = "2xh100-sxm5-80gb,1xl4-24gb,1xv100-sxm2-16gb,1xgh200-96gb,1xh100-nvl-94gb,1xrtx-pro-6000-blackwell-se-96gb"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = library.reason_why_not()
    if reason is not None:
        pytest.skip(reason)
    return library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node() -> NodeSpec:
    return parse_groups(SPEC, "node-a")


@pytest.fixture
def uuid(node: NodeSpec) -> GpuUuid:
    return node.gpus[0].gpu.uuid


@pytest.fixture
def state(nvml_library: Path, node: NodeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "state"))
    write_sysfs(tmp_path / "sys", node)
    state = State.create(tmp_path / "state", node)
    state.check(nvml_library)
    yield state
    state.close()


@pytest.fixture
def nvml(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[NvmlBackend]:
    backend = NvmlBackend(str(nvml_library), str(tmp_path / "sys"))
    yield backend
    backend.close()


@pytest.fixture
def open_nvml(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Opened:

    def build(node: NodeSpec) -> tuple[NvmlBackend, State]:
        monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "state"))
        state = State.create(tmp_path / "state", node)
        request.addfinalizer(state.close)
        backend = NvmlBackend(str(nvml_library), str(write_sysfs(tmp_path / "sys", node)))
        request.addfinalizer(backend.close)
        return backend, state

    return build


@pytest.fixture(params=["nvml", "simulated"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str, node: NodeSpec, nvml: NvmlBackend) -> GpuBackend:
    return nvml if kind == "nvml" else SimulatedBackend(node)


@pytest.fixture
def impatient(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[NvmlBackend]:
    backend = NvmlBackend(str(nvml_library), str(tmp_path / "sys"), patience=SHORT)
    yield backend
    state.clear_faults()
    state.release()
    backend.close()
    until(lambda: not state.opened())  # pynvml's library is the process's: the next test needs a new session


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def readers() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


class Call:
    """A call in a thread; with ``function``, it hangs inside of that one until ``release``."""

    def __init__(self, state: State, function: str | None, call: Callable[[], object]) -> None:
        self._state, self._call = state, call
        self.answer: object = None
        if function is not None:
            state.hang(function)
        before = state.calls(function or "")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: function is None or state.calls(function) > before)

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except Exception as error:  # noqa: BLE001 - told to the main thread
            self.answer = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def release(self) -> None:
        self._state.release()

    def result(self) -> object:
        self._thread.join(LONG_S)
        assert self.done
        return self.answer


def waiting(nvml: NvmlBackend, state: State, timeout_s: float = LONG_S) -> Call:
    waits = state.calls(WAIT)
    call = Call(state, None, lambda: nvml.wait_for_event(timeout_s))
    until(lambda: state.calls(WAIT) > waits)
    return call


ACTIONS = {RecoveryAction.GPU_RESET: 1, RecoveryAction.NODE_REBOOT: 2, RecoveryAction.DRAIN_AND_RESET: 4}
ROUTE_UNHEALTHY = 1 << 4


class Patient:
    """One GPU of a backend that falls ill and recovers, by its minor, which is its NVML index."""

    def __init__(self, backend: GpuBackend, state: State | None, minor: int = 0) -> None:
        self.backend, self.state, self.minor = backend, state, minor
        self.uuid: GpuUuid = backend.snapshot().gpus[minor].uuid

    def listen(self) -> None:
        assert self.events(0.01) == ()

    def events(self, timeout_s: float = 20.0) -> tuple[HealthEvent, ...]:
        return self.backend.wait_for_health_events(timeout_s)

    def reading(self) -> HealthReading:
        return next(one for one in self.backend.health_readings() if one.gpu_uuid == self.uuid)

    def xid(self, number: int, gi_id: int | None = None, times: int = 1) -> None:
        if self.state is None:
            self._inject(f"xid={number}*{times}", gi_id)
        elif gi_id is None:
            self.state.xid(self.minor, number, times=times)
        else:
            self.state.xid(self.minor, number, gi_id=gi_id, ci_id=0, times=times)

    def ecc(self) -> None:
        if self.state is None:
            self._inject("ecc")
        else:
            self.state.tell(self.minor, DOUBLE_BIT_ECC)

    def lose(self) -> None:
        if self.state is None:
            self._inject("lost")
        else:
            self.state.lose(self.minor)

    def remap(self, failed: bool) -> None:
        fault = "row-remap=failed" if failed else "row-remap"
        self._fail(fault, rows_failed=int(failed), rows_pending=int(not failed))

    def retire(self) -> None:
        self._fail("retired-pages", pages_pending=1)

    def need(self, action: RecoveryAction) -> None:
        self._fail(f"recovery-action={action}", recovery_action=ACTIONS[action])

    def cut_link(self, link: int) -> None:
        self._fail(f"nvlink={link}", links_down=1 << link)

    def leave_fabric(self) -> None:
        self._fail("fabric", fabric_health=ROUTE_UNHEALTHY)

    def _fail(self, fault: str, **reported: int) -> None:
        if self.state is None:
            self._inject(fault)
        else:
            self.state.configure(self.minor, **reported)

    def deafen(self) -> None:
        if self.state is None:
            self.simulated.set_troubles(self.uuid, FailureMode.NO_EVENTS)
        else:
            self.state.inject("nvmlDeviceRegisterEvents", NOT_SUPPORTED, device=self.minor)

    def recover(self) -> None:
        if self.state is None:
            self.simulated.recover(self.uuid)
            return
        self.state.lose(self.minor, False)
        self.state.configure(self.minor, recovery_action=0, links_down=0, fabric_health=0)
        for field in ("rows_pending", "rows_failed", "pages_pending"):
            if getattr(self.reading(), field) is not None:
                self.state.configure(self.minor, **{field: 0})

    @property
    def simulated(self) -> SimulatedBackend:
        assert isinstance(self.backend, SimulatedBackend)
        return self.backend

    def _inject(self, fault: str, gi_id: int | None = None) -> None:
        self.simulated.inject(self.uuid, fault, gi_id=gi_id)
