"""Reports conditions that begin and end: as events on the Node and as metrics.

At most one event per device and cause in ``QUIET_S``; what happens meanwhile is reported afterwards, if it still holds.
Conditions from before the process started were reported by the process before it; their end is still reported.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import partition_name
from dra_driver.core.telemetry import metrics
from dra_driver.node.health import HealthState, HealthStatus
from dra_driver.node.process.health_taints import KEYS, partition_of
from dra_driver.node.process.node_events import Kind, Tell

UNHEALTHY: Final = "GpuUnhealthy"
UNMONITORED: Final = "GpuUnmonitored"
RECOVERED: Final = "GpuRecovered"
QUIET_S: Final = 60.0

_Key = tuple[GpuUuid, int | None, HealthCause]


class _Told(Struct, frozen=True):
    """The last event about a key. ``condition`` is None after its end was reported."""

    at: float
    condition: HealthCondition | None


class Notice(Struct, frozen=True, kw_only=True):
    """An event about a condition that began, got worse or ended. ``gpu`` is the condition's, as far as it is known."""

    condition: HealthCondition
    gpu: Gpu | None
    kind: Kind
    reason: str
    message: str


class ConditionEvents:
    """Not thread-safe: one thread calls ``update``. ``now`` is in seconds of the Unix epoch, as conditions are.

    ``tell`` records an event on the Node; ``notify`` hears of the same events, with what they are about.
    """

    def __init__(
        self,
        tell: Tell,
        *,
        notify: Callable[[Notice], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tell, self._notify, self._clock = tell, notify, clock
        self._started = now()
        self._told: dict[_Key, _Told] = {}

    def update(self, conditions: Iterable[HealthCondition], snapshot: Snapshot) -> None:
        """Record events for what began, got worse or ended. Names of devices are those of ``snapshot``."""
        now = self._clock()
        holding = {(each.gpu_uuid, each.gi_id, each.cause): each for each in conditions}
        for key, condition in holding.items():
            told = self._told.get(key)
            if told is None and condition.since < self._started:
                self._told[key] = _Told(now - QUIET_S, condition)
            elif told is None or (now - told.at >= QUIET_S and _effect(told.condition) != _effect(condition)):
                self._told[key] = _Told(now, condition)
                reason = UNMONITORED if condition.cause is HealthCause.UNMONITORED else UNHEALTHY
                self._report(condition, snapshot, "Warning", reason, _begun(condition, snapshot))
        for key, told in list(self._told.items()):
            if key in holding or now - told.at < QUIET_S:
                continue
            if told.condition is None:
                del self._told[key]
            else:
                self._told[key] = _Told(now, None)
                self._report(told.condition, snapshot, "Normal", RECOVERED, _ended(told.condition, snapshot))

    def _report(self, condition: HealthCondition, snapshot: Snapshot, kind: Kind, reason: str, message: str) -> None:
        self._tell(kind, reason, message)
        if self._notify is not None:
            gpu = snapshot.gpu_by_uuid(condition.gpu_uuid)
            self._notify(Notice(condition=condition, gpu=gpu, kind=kind, reason=reason, message=message))


def device_of(gpu_uuid: GpuUuid, gi_id: int | None, snapshot: Snapshot) -> str:
    """The device's name, as far as it is known; else the GPU's UUID."""
    gpu = snapshot.gpu_by_uuid(gpu_uuid)
    if gpu is None or gi_id is None:
        return str(gpu_uuid if gpu is None else gpu.device_name)
    place = partition_of(gpu, gi_id)
    profile = gpu.profile(place.profile_id) if place is not None else None
    if place is None or profile is None:
        return f"{gpu.device_name} (GPU instance {gi_id})"
    return partition_name(gpu.minor, profile.name, profile.profile_id, place.start)


def _effect(condition: HealthCondition | None) -> tuple[Severity, str] | None:
    return (condition.severity, condition.value) if condition is not None else None


def _begun(condition: HealthCondition, snapshot: Snapshot) -> str:
    device = device_of(condition.gpu_uuid, condition.gi_id, snapshot)
    if condition.cause is HealthCause.UNMONITORED:
        return f"{device}: {condition.message}"
    effect = "its pods are to be evicted" if condition.severity is Severity.EVICT else "new claims do not get it"
    return f"{device} is not healthy, {effect} (taint {KEYS[condition.cause]}): {condition.message}"


def _ended(condition: HealthCondition, snapshot: Snapshot) -> str:
    device = device_of(condition.gpu_uuid, condition.gi_id, snapshot)
    value = f"={condition.value}" if condition.value else ""
    return f"{device}: the condition {KEYS[condition.cause]}{value} has ended; its taint is removed"


def sentences(conditions: Iterable[HealthCondition], snapshot: Snapshot) -> list[str]:
    """One sentence for each condition, for ``/readyz``."""
    return [_begun(condition, snapshot) for condition in conditions]


class HealthMetrics:
    """The health of GPUs as metrics. Not thread-safe: one thread calls ``update``.

    Labels are device names of this node, which a process has few of, and closed sets.
    """

    def __init__(self) -> None:
        self._xids: Mapping[tuple[GpuUuid, str], int] = {}
        self._recoveries: Mapping[tuple[GpuUuid, HealthCause], int] = {}
        self._by_cause: Mapping[HealthCause, int] = {}
        self._shown: Mapping[str, HealthState] = {}  # by device

    def update(self, status: HealthStatus, conditions: Iterable[HealthCondition], snapshot: Snapshot) -> None:
        """Show what holds now. Counts only grow: ``status`` has those since the process started.

        Sets what changed alone: it is called every few seconds, and mostly nothing has.
        """
        counted = Counter(condition.cause for condition in conditions)
        by_cause = {cause: counted[cause] for cause in HealthCause}
        if by_cause != self._by_cause:
            for cause, count in by_cause.items():
                metrics.gpu_conditions.labels(cause.value).set(count)
            self._by_cause = by_cause
        self._show_devices(status, snapshot)
        for (gpu, xid), count in status.xids.items():
            more = count - self._xids.get((gpu, xid), 0)
            metrics.gpu_xids_total.labels(device_of(gpu, None, snapshot), xid).inc(max(0, more))
        for (gpu, cause), count in status.recoveries.items():
            more = count - self._recoveries.get((gpu, cause), 0)
            metrics.gpu_recoveries_total.labels(device_of(gpu, None, snapshot), cause.value).inc(max(0, more))
        self._xids, self._recoveries = dict(status.xids), dict(status.recoveries)

    def _show_devices(self, status: HealthStatus, snapshot: Snapshot) -> None:
        """Every published GPU, healthy ones too, and the partitions with conditions of their own."""
        known = {device_of(each.gpu_uuid, each.gi_id, snapshot): each for each in status.devices}
        before, healthy = self._shown, dict.fromkeys((gpu.device_name for gpu in snapshot.gpus), HealthState.HEALTHY)
        self._shown = healthy | {name: each.state for name, each in known.items()}
        for name, state in self._shown.items() - before.items():
            for each in HealthState:
                metrics.gpu_health.labels(name, each.value).set(each is state)
        for name in self._shown:
            metrics.gpu_health_seconds.labels(name).set(known[name].seconds if name in known else 0.0)
        for name in before.keys() - self._shown.keys():
            for each in HealthState:
                metrics.gpu_health.remove(name, each.value)
            metrics.gpu_health_seconds.remove(name)
