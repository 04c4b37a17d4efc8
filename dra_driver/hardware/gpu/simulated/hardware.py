"""Keep the mutable part of simulated GPUs: the reread spec file, injected faults, state changes and notifications.

A process that uses the GPUs keeps ``<state file>.open`` locked, as a real one keeps device files open.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.errors import ConfigurationError, DetachedError, DeviceLostError, DraError, DriverUnavailableError
from dra_driver.core.files import lock_file
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated import mig as rules
from dra_driver.hardware.gpu.simulated.faults import FailureMode
from dra_driver.hardware.gpu.simulated.mig import GpuState
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu, parse_document
from dra_driver.hardware.gpu.simulated.state import Changes, Fault, StateStore, stamp_of


def is_open(state_file: Path) -> bool:
    """Return whether a process uses the simulated GPUs of that state file and so keeps their "kernel module" loaded."""
    try:
        os.close(lock_file(_open_file(state_file)))
    except BlockingIOError:
        return True
    return False


class Attachment:
    """The calls that run now, and the reason why no other may begin. Thread-safe."""

    def __init__(self, state_file: Path | None = None) -> None:
        self._file = None if state_file is None else _open_file(state_file)
        self._turn = threading.Condition()  # guards the fields below
        self._descriptor: int | None = None
        self._calls = 0
        self.detached: str | None = None

    def detach(self, reason: str, timeout_s: float) -> bool:
        """Refuse new calls and wait for running ones; whether none is left."""
        with self._turn:
            self.detached = reason
            self._close_if_unused()
            return self._turn.wait_for(lambda: self._calls == 0, timeout_s)

    def close(self) -> None:
        """The process stops using them; the next call uses them again."""
        with self._turn:
            self._close_if_unused()

    def reattach(self) -> None:
        with self._turn:
            self.detached = None
            self._turn.notify_all()

    def wait_attached(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until calls are allowed; whether they are."""
        with self._turn:
            return self._turn.wait_for(lambda: self.detached is None, timeout_s)

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """A call of the interface. Raises DetachedError."""
        with self._turn:
            if self.detached is not None:
                raise DetachedError(self.detached)
            self._calls += 1
            self._open()
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                if self.detached is not None:
                    self._close_if_unused()
                self._turn.notify_all()

    def _open(self) -> None:
        if self._file is not None and self._descriptor is None:
            with contextlib.suppress(OSError):  # no folder yet
                self._descriptor = lock_file(self._file, shared=True)

    def _close_if_unused(self) -> None:
        if self._calls == 0 and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_file(state_file: Path) -> Path:
    return state_file.with_name(f"{state_file.name}.open")


log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1024 * 1024
MAX_DELAY_S = 600.0
EVENT_POLL_S = 1.0  # how soon a change by another process is noticed; a check is one stat()
_Stamp = tuple[int, int, int]
T = TypeVar("T")


class SimulatedHardware:
    """A described node and its present state. Thread-safe."""

    def __init__(
        self,
        node: NodeSpec,
        *,
        file: Path | None = None,
        node_name: str = "",
        state_file: Path | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``file`` is read again whenever it changes. ``state_file`` outlives this process and is shared with others of
        the same spec. ``on_change`` runs inside each call that changes something, one at a time over all processes; it
        must not wait for a thread that calls this object. Its DraErrors are logged."""
        self._lock = threading.RLock()  # guards everything below; held while on_change runs
        self._node = node
        self._file = file
        self._node_name = node_name
        self._stamp: _Stamp | None = None
        self._store = StateStore(state_file)
        self._attachment = Attachment(state_file)
        self._on_change = on_change
        self._sleep = sleep
        self._seen_marker: object = self  # equal to no marker, so that `_has_changed` below reads the state
        self._seen_state: object = None
        with contextlib.suppress(DriverUnavailableError):  # the next call raises it
            self._has_changed()
        # Notified of each change; guards the number below; no other lock is acquired inside.
        self._changed = threading.Condition()
        self._change_count = 0

    def _await(self, look: Callable[[], T | None], timeout_s: float) -> T | None:
        """The first result of ``look``, now or after a change; None after ``timeout_s``, and when detached."""
        deadline = time.monotonic() + timeout_s
        while True:
            change_count = self._change_count  # before `detached`, which raises it
            if self._attachment.detached is not None:
                return None
            found, left_s = look(), deadline - time.monotonic()
            if found is not None or left_s <= 0:
                return found
            with self._changed:
                if change_count == self._change_count:
                    self._changed.wait(left_s if self._store.file is None else min(left_s, EVENT_POLL_S))

    def announce(self) -> None:
        """Call ``on_change`` with the present snapshot, in order with all calls of it by any process."""
        with self._lock, self._store.locked():
            self._announce()

    def _call(self, method: str, gpu: GpuUuid | None, work: Callable[[], T]) -> T:
        with self._attachment.use():
            with self._lock:
                self._current()
                fault = self._strike(method, gpu)
            if fault is not None:
                self._sleep(min(fault.delay_s, MAX_DELAY_S))  # outside the lock, so that other calls continue
                if not fault.after:
                    raise_fault(fault)
            if gpu is not None:
                faults.meet_failure_modes(method, gpu, lambda: self.troubles(gpu), self._sleep)
            with self._lock:
                answer = work()
            if fault is not None:
                raise_fault(fault)
            return answer

    def troubles(self, gpu: GpuUuid) -> frozenset[FailureMode]:
        """The GPU's troubles, described or set; none of a GPU that is not on this node."""
        with self._lock:
            item = next((item for item in self._current().gpus if item.gpu.uuid == gpu), None)
            return frozenset() if item is None else self._troubles(item, self._store.read())

    def _troubles(self, item: SimulatedGpu, changes: Changes) -> frozenset[FailureMode]:
        hangs = faults.health_of(changes.injected_into(item.gpu.uuid)).hangs
        return item.troubles | changes.state(item.gpu).troubles | ({FailureMode.HANGS} if hangs else frozenset())

    def _lost_reason(self, item: SimulatedGpu, changes: Changes) -> str | None:
        """Return why the GPU does not answer; None while it does."""
        return item.lost or faults.health_of(changes.injected_into(item.gpu.uuid)).lost

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
        """Change one GPU, save the state and notify. ``method`` is None for a change outside of the interface."""

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
            raise DeviceLostError(f"GPU {uuid} is not on this node")
        lost = self._lost_reason(item, self._store.read())
        if lost is not None:
            raise DeviceLostError(f"{uuid} does not answer: {lost}")
        return item.gpu

    def _snapshot(self) -> Snapshot:
        node = self._current()
        changes = self._store.read()
        gpus: list[Gpu] = []
        left_out: list[LeftOutGpu] = []
        for item in node.gpus:
            found = self._troubles(item, changes)
            if FailureMode.UNBOUND in found:
                continue
            reason = self._lost_reason(item, changes) or faults.why_left_out(item.gpu.uuid, found)
            if reason is not None:
                left_out.append(LeftOutGpu(label=item.gpu.uuid, reason=reason))
                continue
            gpu = rules.apply(item.gpu, changes.state(item.gpu))
            gpus.append(replace(gpu, mig_profiles=()) if FailureMode.NO_PLACEMENTS in found else gpu)
        return Snapshot(
            driver_version=node.driver_version,
            nvml_version=f"{node.cuda_driver_version[0]}.{node.driver_version}",
            cuda_driver_version=node.cuda_driver_version,
            confidential_compute=node.confidential_compute,
            gpus=tuple(gpus),
            left_out=tuple(left_out),
        )

    def _announce(self) -> None:
        if self._on_change is not None:
            try:
                self._on_change(self._snapshot())
            except DraError as error:
                log.warning("callback for a change of simulated GPUs failed", extra={"reason": error})
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._change_count += 1
            self._changed.notify_all()

    def _has_changed(self) -> bool:
        """Return whether any GPU changed since the last call."""
        marker = self._store.marker()
        if marker == self._seen_marker:
            return False
        with self._lock:
            changes = self._store.read()
            state = changes.gpus, changes.injected
            changed = state != self._seen_state  # setting a fault of a call changes the marker but no GPU
            self._seen_marker, self._seen_state = marker, state
        return changed

    def _current(self) -> NodeSpec:
        if self._file is not None:
            try:
                self.reload()
            except ConfigurationError as error:
                raise DriverUnavailableError(f"simulated driver: {error}") from error
        if self._node.unavailable is not None:
            raise DriverUnavailableError(f"simulated driver: {self._node.unavailable}")
        return self._node

    def reload(self) -> None:
        if self._file is None:
            return
        try:
            stamp = stamp_of(self._file.stat())
            if stamp == self._stamp:
                return
            self._node = parse_document(_read(self._file), self._node_name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the simulated GPUs from {self._file}: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._file}: {error}") from error
        self._stamp = stamp


def raise_fault(fault: Fault) -> None:
    if fault.error is None:
        return
    kind = getattr(errors, fault.error, None)
    if not isinstance(kind, type) or not issubclass(kind, errors.HardwareError):
        kind = DriverUnavailableError
    raise kind(fault.message or f"{fault.method} failed with the injected {fault.error}")


def _read(file: Path) -> str:
    with file.open(encoding="utf-8") as stream:
        text = stream.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ConfigurationError(f"more than {MAX_FILE_BYTES} characters")
    return text
