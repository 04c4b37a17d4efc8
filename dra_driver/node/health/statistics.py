"""Counts XIDs and recoveries, and how long each device has had its state, for metrics."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from dra_driver.core.model.health import HealthCause, HealthEvent, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import FaultPhase, Faults, HealthFault
from dra_driver.node.health.xids import label


class HealthState(StrEnum):
    """The state of a GPU or GPU instance: that of its worst condition."""

    HEALTHY = "healthy"
    RECOVERING = "recovering"
    NO_NEW_CLAIMS = "no-new-claims"
    EVICT = "evict"


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """The state of one GPU (``gi_id`` None) or of a GPU instance with conditions of its own.

    ``seconds`` is how long it has had this state. `HealthState.RECOVERING`: recovery was seen for every condition, and
    their calm times have not passed; the device still has its taints.
    """

    gpu_uuid: GpuUuid
    gi_id: int | None
    state: HealthState
    seconds: float


class HealthStatus(Struct, frozen=True, kw_only=True):
    """Everything at one moment. ``xids`` counts XIDs since this process started, by GPU and number.

    Numbers are texts: an XID that the table does not have is ``other``, so that there are few different ones.
    ``recoveries`` counts conditions that ended after recovery was seen, by GPU and cause.
    """

    devices: tuple[DeviceHealth, ...] = ()
    xids: Mapping[tuple[GpuUuid, str], int]
    recoveries: Mapping[tuple[GpuUuid, HealthCause], int]


def state(faults: Iterable[HealthFault]) -> HealthState:
    tainting = [
        fault for fault in faults if fault.phase is not FaultPhase.OVER and fault.severity is not Severity.COUNTED
    ]
    if not tainting:
        return HealthState.HEALTHY
    held = [fault.severity for fault in tainting if fault.phase is FaultPhase.OPEN]
    if not held:
        return HealthState.RECOVERING
    return HealthState.EVICT if Severity.EVICT in held else HealthState.NO_NEW_CLAIMS


class Statistics:
    """Counts for metrics. Not thread-safe."""

    def __init__(self) -> None:
        self._xids: Counter[tuple[GpuUuid, str]] = Counter()
        self._recoveries: Counter[tuple[GpuUuid, HealthCause]] = Counter()
        self._states: dict[tuple[GpuUuid, int | None], tuple[HealthState, float]] = {}

    def count(self, event: HealthEvent) -> None:
        if event.xid is not None:
            self._xids[event.gpu_uuid, label(event.xid)] += max(event.count, 1)

    def count_ends(self, gpu: GpuUuid, before: Faults, after: Faults) -> None:
        """Count the faults that tainted and are over."""
        for key, fault in after.items():
            was = before.get(key)
            ended = was is not None and was.phase is not FaultPhase.OVER and fault.phase is FaultPhase.OVER
            if ended and fault.severity is not Severity.COUNTED:
                self._recoveries[gpu, key.cause] += 1

    def note_states(self, gpus: Mapping[GpuUuid, Faults], now: float) -> None:
        """Take the states of all devices at ``now``, in monotonic seconds."""
        found: dict[tuple[GpuUuid, int | None], HealthState] = {}
        for gpu, faults in gpus.items():
            found[gpu, None] = state(fault for key, fault in faults.items() if key.gi_id is None)
            for gi_id in {key.gi_id for key in faults if key.gi_id is not None}:
                level = state(fault for key, fault in faults.items() if key.gi_id == gi_id)
                if level is not HealthState.HEALTHY:
                    found[gpu, gi_id] = level
        self._states = {place: self._since(place, level, now) for place, level in found.items()}

    def forget(self, gpu: GpuUuid) -> None:
        """Drop the counts of a GPU that is gone."""
        self._xids = Counter({key: count for key, count in self._xids.items() if key[0] != gpu})
        self._recoveries = Counter({key: count for key, count in self._recoveries.items() if key[0] != gpu})

    def status(self, now: float) -> HealthStatus:
        devices = tuple(
            DeviceHealth(gpu_uuid=gpu, gi_id=gi_id, state=level, seconds=max(0.0, now - since))
            for (gpu, gi_id), (level, since) in self._states.items()
        )
        return HealthStatus(devices=devices, xids=dict(self._xids), recoveries=dict(self._recoveries))

    def _since(self, place: tuple[GpuUuid, int | None], level: HealthState, now: float) -> tuple[HealthState, float]:
        before = self._states.get(place)
        return before if before is not None and before[0] is level else (level, now)
