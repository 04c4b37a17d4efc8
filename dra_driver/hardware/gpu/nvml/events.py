"""Wait for NVML events: changes of MIG instances (nvmlEventMigConfigChange), XIDs and double-bit ECC errors (nvml.h).

NVML drops events while no set is open. An open set counts as a client and prevents changes of a GPU's MIG mode.
A lost GPU ends every wait. The next set excludes GPUs that do not answer, and GPUs with more than `FLOOD` events a
second, which would cost a core and delay other GPUs. Excluded GPUs are tried every `AGAIN_S`.
"""

import contextlib
import ctypes
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager

import pynvml
from msgspec.structs import replace

from dra_driver.core.errors import DetachedError, DeviceLostError
from dra_driver.core.model.health import HealthEvent, HealthEventKind
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml import errors
from dra_driver.hardware.gpu.nvml.call_locks import YieldToWriter
from dra_driver.hardware.gpu.nvml.session import REPEAT_S, Session, SessionEndedError

log = logging.getLogger(__name__)

PAUSE_TIMEOUT_S = 10.0  # many slices
AGAIN_S = 30.0  # until GPUs that could not be registered, because they were changed or did not answer, are tried again
AFTER_ERROR_S = 1.0  # the pause after a failed wait, which would otherwise spin
ENDS_EARLY_S = 0.005  # a wait may: NVML waits whole milliseconds, and a slice for the rest would double the calls
SUCCESS = 0  # NVML_SUCCESS, which pynvml does not name
MORE_MS = 1  # the wait for a further event after one


class NotNow(Exception):  # noqa: N818 - no error: the GPU is registered later
    """Register the GPU at ``until`` of the monotonic clock. Never leaves the backend."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until


Add = Callable[[int, int, pynvml.c_nvmlEventSet_t], bool]
"""Registers the GPU of that session and NVML index; whether it has such events. To retry, it raises YieldToWriter,
DeviceLostError or NotNow."""
Take = Callable[[pynvml.c_nvmlEventData_t], bool]
"""Takes an event in; whether to look for another one at once."""


class EventSet:
    """Thread-safe; one thread waits at a time."""

    def __init__(
        self, session: Session, add: Add, take: Take, renewed: Callable[[], None], *, again_s: float = AGAIN_S
    ) -> None:
        """``renewed`` is called when GPUs have been registered: their events before that are lost."""
        self._session, self._again_s = session, again_s
        self._add, self._take, self._renewed = add, take, renewed
        session.before_end(self._give_back)
        self._lock = threading.Lock()  # guards the set; held during one slice; acquired before the session
        self._set: pynvml.c_nvmlEventSet_t | None = None
        self._covered: frozenset[int] = frozenset()  # NVML indexes of the GPUs in the set
        self._missing: frozenset[int] = frozenset()  # of those to be tried again
        self._generation = 0  # the session that the set belongs to
        self._gate = threading.Lock()  # guards the number below
        self._paused = 0
        self._again_at = math.inf  # when the missing ones are tried
        self._go = threading.Event()  # set while no caller has paused the waiting
        self._go.set()
        self._stale = threading.Event()  # the set misses GPUs, or has GPUs that were bound again
        self.refusal: str | None = None  # why the driver gave no set the last time

    def wait(self, timeout_s: float) -> bool:
        """Return whether an event came or a GPU was lost. Waits ``timeout_s`` plus one slice at most. False when the
        session ends, and while the GPUs are detached. Raises DriverUnavailableError."""
        deadline = time.monotonic() + timeout_s
        generation: int | None = None  # the first wait may open a session, a later one must not reopen a closed one
        left_s = timeout_s
        while left_s > 0:
            if not self._go.wait(left_s):
                return False
            if generation is None and not self._session.wait_attached(left_s):
                return False
            try:
                generation, answer = self._wait_slice(generation, min(left_s, self._session.waits.slice_s))
            except (SessionEndedError, DetachedError):
                return False
            if answer is not None:
                return answer
            left_s = deadline - time.monotonic() - ENDS_EARLY_S
        return False

    def covered(self, generation: int) -> frozenset[int]:
        return self._covered if generation == self._generation and not self._stale.is_set() else frozenset()

    def renew(self) -> None:
        self._stale.set()
        self._session.waits.interrupt()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No event set is open inside the block. Not while the caller uses the session. Raises DeviceLostError."""
        with self._gate:
            self._paused += 1
            self._go.clear()
        try:
            if not self._acquire():
                raise DeviceLostError(
                    f"a wait for GPU events has not returned for {PAUSE_TIMEOUT_S:.0f} s: a GPU does not answer; see "
                    "XID messages in the node's kernel log"
                )
            try:
                self._free()
            finally:
                self._lock.release()
            yield
        finally:
            with self._gate:
                self._paused -= 1
                if self._paused == 0:
                    self._go.set()

    def _acquire(self) -> bool:
        deadline = time.monotonic() + PAUSE_TIMEOUT_S
        while not self._lock.acquire(timeout=REPEAT_S):
            if time.monotonic() > deadline:
                return False
            self._session.waits.interrupt()
        return True

    def _wait_slice(self, only: int | None, slice_s: float) -> tuple[int, bool | None]:
        """The session's number, and whether an event came; None when nothing happened in this slice."""
        with self._lock:
            if self._stale.is_set():
                self._free()
            with self._session.use(only, waits=True) as generation:
                self._register(generation)
                if self._set is None or not self._go.is_set():
                    code = pynvml.NVML_ERROR_NOT_SUPPORTED
                else:
                    code = self._receive(self._set, slice_s)
        if code == SUCCESS:
            return generation, True
        if code == pynvml.NVML_ERROR_TIMEOUT:
            return generation, None
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            self._stale.wait(slice_s)
            return generation, None
        self._stale.set()
        time.sleep(AFTER_ERROR_S)
        return generation, code == pynvml.NVML_ERROR_GPU_IS_LOST

    def _receive(self, events: pynvml.c_nvmlEventSet_t, slice_s: float) -> int:
        """The code of a wait without events, or SUCCESS. Raises DriverUnavailableError."""
        took, goes_on, timeout_ms = False, True, max(1, int(slice_s * 1000))
        while goes_on:
            try:
                with self._session.waits.inside():
                    event = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
            except pynvml.NVMLError as error:
                if error.value in errors.DRIVER_TROUBLE:
                    raise errors.unavailable("nvmlEventSetWait_v2", error) from error
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    log.debug("waiting for GPU events failed", extra={"reason": errors.describe(error)})
                return SUCCESS if took else int(error.value)
            took, timeout_ms = True, MORE_MS
            goes_on = self._take(event)
        return SUCCESS

    def _register(self, generation: int) -> None:
        """Create the set for this session and its GPUs, or none when no GPU has events. The caller holds the lock."""
        if generation != self._generation or self._stale.is_set():
            self._give_back()
            self._stale.clear()
            self._covered, self._generation = frozenset(), generation
            self._missing = frozenset(range(errors.driver_call(pynvml.nvmlDeviceGetCount)))
        elif time.monotonic() < self._again_at:
            return
        self._again_at = math.inf
        self._set = self._set or self._new_set()
        if self._set is not None:
            self._add_missing(generation, self._set)
        if not self._covered:
            self._give_back()
        self._renewed()

    def _add_missing(self, generation: int, events: pynvml.c_nvmlEventSet_t) -> None:
        missing, self._missing = self._missing, frozenset()
        for index in sorted(missing):
            try:
                if self._add(generation, index, events):
                    self._covered |= {index}
            except (YieldToWriter, DeviceLostError) as error:
                log.debug("GPU has no events yet", extra={"index": index, "reason": str(error)})
                self._try_again(index, time.monotonic() + self._again_s)
            except NotNow as later:
                self._try_again(index, later.until)

    def _try_again(self, index: int, at: float) -> None:
        self._missing |= {index}
        self._again_at = min(self._again_at, at)

    def _free(self) -> None:
        """Free the set; the next wait creates one. The caller holds the lock and does not use the session."""
        self._stale.set()
        with contextlib.suppress(SessionEndedError), self._session.use(self._generation):
            self._give_back()

    def _give_back(self) -> None:
        """Free the set while its session is open. The caller uses the session, or ends it."""
        events, self._set = self._set, None
        if events is None:
            return
        try:
            pynvml.nvmlEventSetFree(events)
        except pynvml.NVMLError as error:
            log.debug("nvmlEventSetFree failed", extra={"reason": errors.describe(error)})

    def _new_set(self) -> pynvml.c_nvmlEventSet_t | None:
        """An empty set; None for a driver without events. Raises DriverUnavailableError."""
        self.refusal = None
        try:
            return pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            if error.value in errors.DRIVER_TROUBLE:
                raise errors.unavailable("nvmlEventSetCreate", error) from error
            self.refusal = f"nvmlEventSetCreate says {errors.describe(error)}"
            log.info("driver has no events; changes are found by polling", extra={"reason": self.refusal})
            return None


TakeCallLock = Callable[[int, int], AbstractContextManager[None]]
"""Takes the lock of a GPU, by session and index, and raises YieldToWriter when it is taken."""


def mig_events(session: Session, reading: TakeCallLock, renewed: Callable[[], None]) -> EventSet:
    """The set for changes of MIG instances. An event does not say what changed."""

    def add(generation: int, index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
        with reading(generation, index):
            return errors.optional(_register_mig, index, events, name="nvmlDeviceRegisterEvents") or False

    return EventSet(session, add, lambda _: False, renewed)


def _register_mig(index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if errors.optional(pynvml.nvmlDeviceGetMigMode, handle) is None:
        return False
    wanted = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventMigConfigChange
    if wanted:
        pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
    return bool(wanted)


KINDS: Mapping[int, HealthEventKind] = {
    pynvml.nvmlEventTypeXidCriticalError: HealthEventKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: HealthEventKind.DOUBLE_BIT_ECC,
}
LOOK = 0x8000  # nvmlEventTypeGpuRecoveryAction, drivers from 570 on: the readings say which action
WANTED = sum(KINDS) | LOOK
MAX_DIFFERENT = 256
FLOOD = 1000
WINDOW_S = 1.0
GAP_S = 10.0
"""A flood that begins again within this time after the GPU was left out is reported as one."""
GATHER_S = 0.25
"""Seconds after which a continuous stream of events is returned."""
NO_INSTANCE = 0xFFFFFFFF
_FLOODS = f"it reports over {FLOOD} errors a second; most of them are not looked at"


class HealthEvents:
    """Events of parent GPUs: handles of MIG devices cannot be registered. An event names its GPU by the handle of its
    registration, because a lost GPU no longer reports its UUID, and an instance by ids. One thread waits at a time;
    ``paused``, ``renew`` and ``unmonitored`` are for any thread."""

    def __init__(
        self,
        session: Session,
        reading: Callable[[int, int], AbstractContextManager[None]],
        is_whole: Callable[[int, GpuUuid], bool],
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        """``reading`` is a `TakeCallLock`. ``is_whole``: whether that session read a GPU's MIG mode as off.
        ``again_s``: for how long a GPU that did not answer, or reported too much, is left out."""
        self._reading, self._is_whole, self._again_s = reading, is_whole, again_s
        self._set = EventSet(session, self._add, self._take, lambda: None, again_s=again_s)
        self._generation = 0
        self._uuids: dict[int, GpuUuid] = {}  # of this session, by the address that the handle is
        self._found: Counter[HealthEvent] = Counter()
        self._gather_until: float | None = None
        self._window_ends = 0.0
        self._in_window: Counter[GpuUuid] = Counter()
        self._quiet: dict[GpuUuid, float] = {}  # since when GPUs are left out for a flood
        self._deaf: Mapping[GpuUuid, str] = {}  # GPUs without events, and why; replaced as a whole
        self._look = False
        self.paused = self._set.paused
        self.renew = self._set.renew

    def wait(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        self._found.clear()
        self._gather_until = None
        if self._set.wait(timeout_s) and not self._found:
            self._look = True
        return tuple(replace(event, count=count) for event, count in self._found.items())

    def take_look(self) -> bool:
        wanted, self._look = self._look, False
        return wanted

    def unmonitored(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, str]:
        """See ``HealthSource.health_unmonitored``; ``gpus`` are all GPUs of the node."""
        if (refusal := self._set.refusal) is not None:
            return dict.fromkeys(gpus, f"NVML reports no errors on this node: {refusal}")
        now = time.monotonic()
        flooding = {gpu: _FLOODS for gpu, since in list(self._quiet.items()) if now - since < self._again_s + GAP_S}
        return {**self._deaf, **flooding} if flooding else self._deaf

    def _add(self, generation: int, index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
        if generation != self._generation:
            self._generation, self._uuids, self._deaf = generation, {}, {}
        with self._reading(generation, index):
            handle = errors.required(pynvml.nvmlDeviceGetHandleByIndex, index)
            gpu = GpuUuid(errors.required(pynvml.nvmlDeviceGetUUID, handle))
            self._uuids[_address(handle)] = gpu
            quiet_until = self._quiet.get(gpu, 0.0) + self._again_s
            if gpu in self._quiet and time.monotonic() < quiet_until:
                raise NotNow(quiet_until)
            return self._registered(gpu, handle, events)

    def _registered(self, gpu: GpuUuid, handle: pynvml.c_nvmlDevice_t, events: pynvml.c_nvmlEventSet_t) -> bool:
        try:
            reason = _register(handle, events)
        except DeviceLostError as error:
            if not errors.withdraws(error):  # a GPU that is lost shows in the readings
                self._deaf = {**self._deaf, gpu: str(error)}
            raise
        self._deaf = {uuid: why for uuid, why in self._deaf.items() if uuid != gpu} | ({gpu: reason} if reason else {})
        return not reason

    def _take(self, event: pynvml.c_nvmlEventData_t) -> bool:
        now = time.monotonic()
        if self._gather_until is None:
            self._gather_until = now + GATHER_S
        gpu = self._uuid(event.device)
        kind = KINDS.get(event.eventType)
        self._look = self._look or event.eventType == LOOK
        if gpu is not None and kind is not None:
            self._count(self._event(gpu, kind, event))
            self._watch_flood(gpu, now)
        return now < self._gather_until

    def _count(self, event: HealthEvent) -> None:
        if event in self._found or len(self._found) < MAX_DIFFERENT:
            self._found[event] += 1

    def _event(self, gpu: GpuUuid, kind: HealthEventKind, event: pynvml.c_nvmlEventData_t) -> HealthEvent:
        """An instance's ids mean nothing on a GPU that is not divided; NVIDIA's mock of NVML has 0 there."""
        whole = event.gpuInstanceId == NO_INSTANCE or self._is_whole(self._generation, gpu)
        gi_id = None if whole else int(event.gpuInstanceId)
        ci_id = None if whole or event.computeInstanceId == NO_INSTANCE else int(event.computeInstanceId)
        xid = int(event.eventData) if kind is HealthEventKind.XID else None
        return HealthEvent(kind=kind, gpu_uuid=gpu, xid=xid, gi_id=gi_id, ci_id=ci_id)

    def _watch_flood(self, gpu: GpuUuid, now: float) -> None:
        if now >= self._window_ends:
            self._in_window.clear()
            self._window_ends = now + WINDOW_S
        self._in_window[gpu] += 1
        if self._in_window[gpu] == FLOOD:
            log.warning(
                "GPU reports too many errors, its events are left out", extra={"gpu": gpu, "seconds": self._again_s}
            )
            self._quiet[gpu] = now
            self._set.renew()

    def _uuid(self, handle: pynvml.c_nvmlDevice_t) -> GpuUuid | None:
        known = self._uuids.get(_address(handle))
        if known is not None or not handle:
            return known
        try:
            return GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            log.warning("NVML event of an unknown GPU", extra={"reason": errors.describe(error)})
            return None


def _register(handle: pynvml.c_nvmlDevice_t, events: pynvml.c_nvmlEventSet_t) -> str:
    """Register the GPU; "" when it has XID events, else why not. Raises DeviceLostError and DriverUnavailableError."""
    function = "nvmlDeviceGetSupportedEventTypes"
    try:
        supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            return f"NVML reports no XIDs of it (supported event types {supported:#x})"
        function = "nvmlDeviceRegisterEvents"
        pynvml.nvmlDeviceRegisterEvents(handle, supported & WANTED, events)
    except pynvml.NVMLError as error:
        if error.value in errors.ABSENT and error.value not in errors.DRIVER_TROUBLE:
            return f"NVML reports no errors of it: {function} says {errors.describe(error)}"
        errors.raise_translated(function, error)
    return ""


def _address(handle: pynvml.c_nvmlDevice_t) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
