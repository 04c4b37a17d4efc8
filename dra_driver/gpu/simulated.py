"""GPUs that do not exist, behind the same interface as real ones.

Owns the change over time: a spec file that is read again when it changes, MIG and compute mode as calls change them,
and faults. Refuses to know the spec's grammar (``simulated_spec.py``), MIG's rules (``simulated_mig.py``) and how state
is kept (``simulated_state.py``). It stands in for hardware in the embedded cluster and in tests; the contract tests
hold it to what is seen through NVML from the same spec.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dra_driver import errors
from dra_driver.errors import ConfigurationError, DeviceLostError, DraError, DriverUnavailableError
from dra_driver.gpu import simulated_mig as rules
from dra_driver.gpu.backend import Backend, ComputeMode, GpuControl
from dra_driver.gpu.simulated_mig import GpuState
from dra_driver.gpu.simulated_spec import SimulatedNode, parse_document, parse_groups
from dra_driver.gpu.simulated_state import Fault, StateStore
from dra_driver.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import ComputeInstance, MigInstance

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1024 * 1024
MAX_DELAY_S = 600.0
EVENT_POLL_S = 0.25  # how soon a change by another process is noticed; looking is one stat()
METHODS = frozenset(name for half in (Backend, GpuControl) for name in vars(half) if not name.startswith("_"))
_Stamp = tuple[int, int, int]
T = TypeVar("T")


class SimulatedBackend:
    """A ``backend.GpuBackend`` over a described node.

    Thread-safe. A GPU marked lost is left out under its UUID, with the reason given, until it is restored. The second
    half of the methods is for whoever plays the hardware, an administrator or other programs on the node.
    """

    def __init__(
        self,
        node: SimulatedNode,
        *,
        file: Path | None = None,
        node_name: str = "",
        state_file: Path | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``file`` is read again, for ``node_name``, whenever its inode, size or modification time changes.

        ``state_file``: where MIG instances, modes and faults outlive this process and are shared with others; its
        directory must exist, and all processes must be given the same spec. ``on_change`` is called inside each call
        that changed something, before it returns, one at a time; its DraErrors are logged, as the hardware has changed
        all the same.
        """
        self._lock = threading.RLock()  # guards everything below; held while on_change runs
        self._node = node
        self._file = file
        self._node_name = node_name
        self._stamp: _Stamp | None = None
        self._lost: dict[int, str] = {}
        self._store = StateStore(state_file)
        self._on_change = on_change
        self._sleep = sleep
        self._seen_marker: object = None
        self._seen_gpus: object = None
        with contextlib.suppress(DriverUnavailableError):  # whoever calls next is told
            self._is_news()
        self._told = threading.Condition()  # of each change; guards the number below; no other lock is taken inside
        self._tellings = 0

    @classmethod
    def from_spec(
        cls,
        spec: str,
        node_name: str,
        state_file: Path | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
    ) -> "SimulatedBackend":
        """``8xh100-sxm5-80gb``, ``4xa100-sxm4-40gb+mig,2xl4-24gb``, or the path of a .yaml file (``simulated_spec``).

        UUIDs are stable per node name and minor and differ between nodes. Raises ConfigurationError.
        """
        path = Path(spec) if _is_path(spec) else None
        node = SimulatedNode() if path is not None else parse_groups(spec, node_name)
        backend = cls(node, file=path, node_name=node_name, state_file=state_file, on_change=on_change)
        backend._reload()
        return backend

    def open(self) -> None:
        """See ``Backend.open``."""
        self._call("open", None, lambda: None)

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. A spec file that became unreadable or wrong counts as a driver that went away."""
        return self._call("snapshot", None, self._snapshot)

    def close(self) -> None:
        """See ``Backend.close``; there is nothing to let go of."""

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``. Each change is told once, to whichever thread asks first."""
        self._call("wait_for_event", None, lambda: None)
        deadline = time.monotonic() + timeout_s
        while True:
            tellings = self._tellings
            if self._is_news():
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            with self._told:
                if tellings == self._tellings:
                    self._told.wait(left_s if self._store.file is None else min(left_s, EVENT_POLL_S))

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """See ``GpuControl``."""
        return self._read("mig_mode", gpu, rules.mig_mode)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """See ``GpuControl``."""
        self._change("set_mig_mode", gpu, lambda found, state: (rules.set_mode(found, state, enabled), None))

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """See ``GpuControl``."""
        return self._read("mig_instances", gpu, lambda _, state: state.instances)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """See ``GpuControl``."""
        return self._change(
            "create_gpu_instance", gpu, lambda found, state: rules.add_instance(found, state, profile_id, start)
        )

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """See ``GpuControl``. DeviceLostError also when the GPU instance does not exist."""
        return self._change("create_compute_instance", gpu, lambda found, state: rules.add_compute(found, state, gi_id))

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See ``GpuControl``."""
        self._change(
            "destroy_compute_instance",
            gpu,
            lambda found, state: (rules.drop_compute(found, state, gi_id, ci_id), None),
        )

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See ``GpuControl``. GpuBusyError also while it has a compute instance."""
        self._change("destroy_gpu_instance", gpu, lambda found, state: (rules.drop_instance(found, state, gi_id), None))

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See ``GpuControl``."""
        return self._read("compute_mode", gpu, lambda _, state: state.compute_mode)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See ``GpuControl``. MigUnsupportedError while MIG mode is on."""
        self._change("set_compute_mode", gpu, lambda found, state: (rules.set_compute_mode(found, state, mode), None))

    # What follows is not the driver's to call.

    def mark_lost(self, minor: int, reason: str) -> None:
        """From now on the GPU ``minor`` does not answer, to this object. Repeating it replaces the reason."""
        with self._lock:
            self._lost[minor] = reason
            self._announce()

    def restore(self, minor: int) -> None:
        """Undo ``mark_lost``; a ``lost`` written in the spec file stays. Idempotent."""
        with self._lock:
            self._lost.pop(minor, None)
            self._announce()

    def replace_node(self, node: SimulatedNode) -> None:
        """Give the node other hardware, as after a hot-plug. Refused (ConfigurationError) when a file describes it."""
        with self._lock:
            if self._file is not None:
                raise ConfigurationError(f"the node's GPUs are described by {self._file}: change that file")
            self._node = node
            self._announce()

    def announce(self) -> None:
        """Call ``on_change`` with what is there now, in order with all other calls of it by any process.

        For whoever learned of a change by other means: a snapshot taken before may be older than the last call.
        """
        with self._lock, self._store.locked():
            self._announce()

    def foreign_create(self, gpu: GpuUuid, profile_id: int, start: int, compute: str = "full") -> MigInstance:
        """Somebody else makes an instance; ``compute``: full, partial or none. The rules hold for them as well."""

        def step(found: Gpu, state: GpuState) -> tuple[GpuState, MigInstance]:
            state, gi_id = rules.add_instance(found, state, profile_id, start)
            if compute != "none":
                state, _ = rules.add_compute(found, state, gi_id, spans=compute == "full")
            return state, next(instance for instance in state.instances if instance.gi_id == gi_id)

        return self._change(None, gpu, step)

    def foreign_destroy(self, gpu: GpuUuid, gi_id: int) -> None:
        """Somebody else destroys an instance with all that is in it, in use or not."""
        self._change(None, gpu, lambda found, state: (rules.drop_instance(found, state, gi_id, forced=True), None))

    def foreign_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """An administrator switches MIG mode, with a reset where it takes one. GpuBusyError as for anybody."""
        self._change(None, gpu, lambda found, state: (rules.set_mode(found, state, enabled, by_reset=True), None))

    def set_busy(self, gpu: GpuUuid, who: str | None) -> None:
        """Somebody has the GPU open, so that its MIG mode cannot be switched; None: nobody any more."""
        self._change(None, gpu, lambda _, state: (replace(state, busy=who), None))

    def set_in_use(self, gpu: GpuUuid, gi_id: int, in_use: bool = True) -> None:
        """A process runs in the GPU instance, which can then not be destroyed; or it has ended."""
        ids = frozenset({gi_id})
        self._change(
            None,
            gpu,
            lambda _, state: (replace(state, in_use=state.in_use | ids if in_use else state.in_use - ids), None),
        )

    def fail_next(
        self,
        method: str,
        error: DraError | None = None,
        *,
        gpu: GpuUuid | None = None,
        skip: int = 0,
        times: int = 1,
        delay_s: float = 0.0,
        after: bool = False,
    ) -> None:
        """The next ``times`` calls of ``method`` (0: all) by any process on this state, after ``skip`` good ones, wait
        ``delay_s`` and raise ``error``, with ``after`` once the work is done. ``gpu``: only calls for that one."""
        if method not in METHODS or (error is not None and _error_class(type(error).__name__) is None):
            raise ValueError(f"cannot let {method} fail with {error!r}; methods are {', '.join(sorted(METHODS))}")
        fault = Fault(
            method=method,
            gpu=gpu,
            error=None if error is None else type(error).__name__,
            message=str(error or ""),
            skip=skip,
            times=times,
            delay_s=delay_s,
            after=after,
        )
        with self._store.locked():
            changes = self._store.read()
            self._store.write(replace(changes, faults=(*changes.faults, fault)))

    def clear_faults(self) -> None:
        """Forget what ``fail_next`` asked for. Lost and busy GPUs stay as they are."""
        with self._store.locked():
            self._store.write(replace(self._store.read(), faults=()))

    def _call(self, method: str, gpu: GpuUuid | None, work: Callable[[], T]) -> T:
        """The frame of every call of the interface: the driver must be usable, and faults strike."""
        with self._lock:
            self._current()
            fault = self._strike(method, gpu)
        if fault is not None:
            self._sleep(min(fault.delay_s, MAX_DELAY_S))  # outside the lock: the others go on
        if fault is not None and not fault.after:
            _raise(fault)
        with self._lock:
            answer = work()
        if fault is not None:
            _raise(fault)
        return answer

    def _strike(self, method: str, gpu: GpuUuid | None) -> Fault | None:
        if not self._store.read().faults:
            return None
        with self._store.locked():
            changes = self._store.read()
            left, fault = changes.strike(method, gpu)
            if left != changes:
                self._store.write(left)
            return fault

    def _read(self, method: str, gpu: GpuUuid, look: Callable[[Gpu, GpuState], T]) -> T:
        return self._call(method, gpu, lambda: look(found := self._find(gpu), self._store.read().state(found)))

    def _change(self, method: str | None, gpu: GpuUuid, step: Callable[[Gpu, GpuState], tuple[GpuState, T]]) -> T:
        """One step of one GPU, written down and told. ``method`` is None for what no call of the interface did."""

        def work() -> T:
            with self._lock, self._store.locked():
                found = self._find(gpu)
                changes = self._store.read()
                before = changes.state(found)
                after, answer = step(found, before)
                if after != before:
                    self._store.write(changes.with_state(found, after))
                    self._announce()
            return answer

        return work() if method is None else self._call(method, gpu, work)

    def _find(self, uuid: GpuUuid) -> Gpu:
        node = self._current()
        item = next((item for item in node.gpus if item.gpu.uuid == uuid), None)
        if item is None:
            rules.unknown_gpu(uuid)
        lost = self._lost.get(item.gpu.minor, item.lost)
        if lost is not None:
            raise DeviceLostError(f"{uuid} does not answer: {lost}")
        return item.gpu

    def _snapshot(self) -> Snapshot:
        node = self._current()
        changes = self._store.read()
        lost = {item.gpu.minor: item.lost for item in node.gpus if item.lost is not None} | self._lost
        return Snapshot(
            driver_version=node.driver_version,
            cuda_driver_version=node.cuda_driver_version,
            gpus=tuple(
                rules.apply(item.gpu, changes.state(item.gpu)) for item in node.gpus if item.gpu.minor not in lost
            ),
            left_out=tuple(
                LeftOutGpu(label=item.gpu.uuid, reason=lost[item.gpu.minor])
                for item in node.gpus
                if item.gpu.minor in lost
            ),
        )

    def _announce(self) -> None:
        """Tell of a change; the caller holds the lock."""
        if self._on_change is not None:
            try:
                self._on_change(self._snapshot())
            except DraError as error:
                log.warning("a change of simulated GPUs could not be told", extra={"reason": error})
        with self._told:
            self._tellings += 1
            self._told.notify_all()

    def _is_news(self) -> bool:
        """Whether any GPU changed since this was last asked."""
        marker = self._store.marker()
        if marker == self._seen_marker:
            return False
        with self._lock:
            gpus = self._store.read().gpus
            news = gpus != self._seen_gpus  # setting a fault changes the marker but no GPU
            self._seen_marker, self._seen_gpus = marker, gpus
        return news

    def _current(self) -> SimulatedNode:
        """The node as described now; the caller holds the lock."""
        if self._file is not None:
            try:
                self._reload()
            except ConfigurationError as error:
                raise DriverUnavailableError(f"simulated driver: {error}") from error
        if self._node.unavailable is not None:
            raise DriverUnavailableError(f"simulated driver: {self._node.unavailable}")
        return self._node

    def _reload(self) -> None:
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            text = _read(self._file)
            self._node = parse_document(text, self._node_name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the simulated GPUs from {self._file}: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._file}: {error}") from error
        self._stamp = stamp


def _error_class(name: str) -> type[DraError] | None:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, errors.HardwareError) else None


def _raise(fault: Fault) -> None:
    if fault.error is None:
        return
    kind = _error_class(fault.error) or DriverUnavailableError
    raise kind(fault.message or f"{fault.method} was made to fail with {fault.error}")


def _is_path(spec: str) -> bool:
    return "/" in spec or spec.endswith((".yaml", ".yml"))


def _stamp(file: Path) -> _Stamp:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(file: Path) -> str:
    with file.open(encoding="utf-8") as stream:
        text = stream.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ConfigurationError(f"more than {MAX_FILE_BYTES} characters")
    return text
