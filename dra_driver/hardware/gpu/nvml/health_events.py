"""Waits for NVML events about the health of GPUs: XIDs and double-bit ECC errors (nvml.h), on a set of their own.

The parent GPU is registered: handles of MIG devices cannot be. An event names its GPU by handle, whose UUID is known
from its registration, because a GPU that is being lost no longer tells it; and an instance by ids, 0xFFFFFFFF for none.

Equal events are counted. A GPU that reports more than `FLOOD` events a second is left out of the set for `AGAIN_S`:
reading on would cost a core, and the events of other GPUs wait behind.
"""

import ctypes
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial

import pynvml
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.health import HealthEvent, HealthEventKind
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.errors import ABSENT, DRIVER_TROUBLE, describe, raise_translated, required, withdraws
from dra_driver.hardware.gpu.nvml.event_set import AGAIN_S, EventSet, NotNow
from dra_driver.hardware.gpu.nvml.session import Session

log = logging.getLogger(__name__)

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
"""A flood that begins again within this time after the GPU was left out is told as one."""
GATHER_S = 0.25
"""How long events that do not end are gathered before they are told."""
NO_INSTANCE = 0xFFFFFFFF
_FLOODS = f"it reports over {FLOOD} errors a second; most of them are not looked at"


class HealthEvents:
    """One thread waits at a time; ``paused``, ``renew`` and ``unmonitored`` are for any thread."""

    def __init__(
        self,
        session: Session,
        reading: Callable[[int, int], AbstractContextManager[None]],
        is_whole: Callable[[int, GpuUuid], bool],
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        """``reading`` takes the turn of a GPU, by session and index, and raises GiveWay when it is taken. ``is_whole``:
        whether a GPU is known to have its MIG mode off in that session. ``again_s``: for how long a GPU is left out
        that did not answer, or told too much."""
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
        """See ``HealthSource.wait_for_health_events``."""
        self._found.clear()
        self._gather_until = None
        if self._set.wait(timeout_s) and not self._found:
            self._look = True
        return tuple(replace(event, count=count) for event, count in self._found.items())

    def take_look(self) -> bool:
        """See ``HealthSource.health_look_wanted``."""
        wanted, self._look = self._look, False
        return wanted

    def unmonitored(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, str]:
        """See ``HealthSource.health_unmonitored``; ``gpus`` are those of the node."""
        if (refusal := self._set.refusal) is not None:
            return dict.fromkeys(gpus, f"NVML reports no errors on this node: {refusal}")
        now = time.monotonic()
        flooding = {gpu: _FLOODS for gpu, since in list(self._quiet.items()) if now - since < self._again_s + GAP_S}
        return {**self._deaf, **flooding} if flooding else self._deaf

    def _add(self, generation: int, index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
        if generation != self._generation:
            self._generation, self._uuids, self._deaf = generation, {}, {}
        with self._reading(generation, index):
            handle = required("nvmlDeviceGetHandleByIndex_v2", partial(pynvml.nvmlDeviceGetHandleByIndex, index))
            gpu = GpuUuid(required("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, handle)))
            self._uuids[_address(handle)] = gpu
            quiet_until = self._quiet.get(gpu, 0.0) + self._again_s
            if gpu in self._quiet and time.monotonic() < quiet_until:
                raise NotNow(quiet_until)
            return self._registered(gpu, handle, events)

    def _registered(self, gpu: GpuUuid, handle: pynvml.c_nvmlDevice_t, events: pynvml.c_nvmlEventSet_t) -> bool:
        """Whether the GPU has such events. Raises DeviceLostError."""
        try:
            reason = _register(handle, events)
        except DeviceLostError as error:
            if not withdraws(error):  # a GPU that is lost shows in the readings
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
            log.warning("NVML event of an unknown GPU", extra={"reason": describe(error)})
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
        if error.value in ABSENT and error.value not in DRIVER_TROUBLE:
            return f"NVML reports no errors of it: {function} says {describe(error)}"
        raise_translated(function, error)
    return ""


def _address(handle: pynvml.c_nvmlDevice_t) -> int:
    """What identifies a handle: ctypes' pointers are equal to themselves only."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
