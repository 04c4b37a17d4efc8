"""Publish health conditions: as taints of devices, as events on the Node and as metrics.

A condition of a GPU taints it in every form; one of a GPU instance taints only its partition. Keys are one per cause.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import TAINT_KEYS, HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId, partition_name
from dra_driver.core.model.terms import Effect, GpuTerms, Taint, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.core.time import rfc3339
from dra_driver.kube.published import limits
from dra_driver.node.health import HealthState, HealthStatus
from dra_driver.node.process.missing_gpus import Missing
from dra_driver.node.process.node_events import Kind, Tell

_GONE: Final = frozenset({HealthCause.LOST, HealthCause.HANG})
_EFFECTS: Final[Mapping[Severity, Effect]] = {Severity.EVICT: "NoExecute", Severity.NO_NEW_CLAIMS: "NoSchedule"}


def amended(
    snapshot: Snapshot, terms: Terms, conditions: Iterable[HealthCondition], missing: Missing
) -> Mapping[GpuUuid, GpuTerms]:
    """New terms of the GPUs with conditions, and of missing ones, which are always tainted."""
    found: dict[GpuUuid, list[HealthCondition]] = defaultdict(list)
    for condition in conditions:
        found[condition.gpu_uuid].append(condition)
    affected = [gpu for gpu in snapshot.gpus if gpu.uuid in found or gpu.uuid in missing]
    return {gpu.uuid: _with(terms_of(terms, gpu.uuid), gpu, found[gpu.uuid], missing) for gpu in affected}


def taint_of(condition: HealthCondition) -> Taint | None:
    """The taint for a condition; None if it is only counted."""
    effect = "None" if condition.cause is HealthCause.UNMONITORED else _EFFECTS.get(condition.severity)
    key, value = TAINT_KEYS[condition.cause], condition.value
    if effect is None:
        return None
    return Taint(
        key=key, value=value if limits.is_taint(key, value) else "", effect=effect, time_added=rfc3339(condition.since)
    )


def partition_of(gpu: Gpu, gi_id: int) -> PartitionId | None:
    """The partition that is published for the GPU instance; None if it does not exist."""
    instance = next((each for each in gpu.mig_instances if each.gi_id == gi_id), None)
    return None if instance is None else PartitionId(gpu.uuid, instance.profile_id, instance.start)


def _with(terms: GpuTerms, gpu: Gpu, conditions: Iterable[HealthCondition], missing: Missing) -> GpuTerms:
    whole: list[Taint] = []
    partitions: dict[PartitionId, list[Taint]] = defaultdict(list)
    for condition in conditions:
        place = None if condition.gi_id is None else partition_of(gpu, condition.gi_id)
        taint = taint_of(condition)
        if taint is None or (condition.gi_id is not None and place is None):
            continue
        (whole if place is None else partitions[place]).append(taint)
    gone = missing.get(gpu.uuid)
    if gone is not None and not {TAINT_KEYS[cause] for cause in _GONE} & {taint.key for taint in whole}:
        # The condition follows at the next poll. A taint that changes from NoSchedule would be written twice.
        evicts = HealthCause.LOST in terms.health.evicting_causes and not gone.awaited
        effect: Effect = "NoExecute" if evicts else "NoSchedule"
        whole.append(Taint(key=TAINT_KEYS[HealthCause.LOST], effect=effect, time_added=rfc3339(gone.since)))
    return replace(
        terms,
        condition_taints=tuple(whole),
        partition_taints={place: tuple(taints) for place, taints in partitions.items()},
    )


UNHEALTHY: Final = "GpuUnhealthy"
UNMONITORED: Final = "GpuUnmonitored"
RECOVERED: Final = "GpuRecovered"
QUIET_S: Final = 60.0

_Key = tuple[GpuUuid, int | None, HealthCause]


class _Reported(Struct, frozen=True):
    """The last event about a key. ``condition`` is None after its end was reported."""

    at: float
    condition: HealthCondition | None


class Notice(Struct, frozen=True, kw_only=True):
    """An event about a condition that began, got worse or ended. ``gpu`` is None while it is unknown."""

    condition: HealthCondition
    gpu: Gpu | None
    kind: Kind
    reason: str
    message: str


class ConditionEvents:
    """Not thread-safe: one thread calls ``update``. ``now`` is in seconds of the Unix epoch, as conditions are.

    At most one event per device and cause in `QUIET_S`; a later change is reported after it, if it still holds. For
    conditions from before the start, only the end is reported. ``tell`` records an event on the Node; ``notify``
    receives the same events with their condition.
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
        self._reported: dict[_Key, _Reported] = {}

    def update(self, conditions: Iterable[HealthCondition], snapshot: Snapshot) -> None:
        """Record events for conditions that began, got worse or ended, with the device names of ``snapshot``."""
        now = self._clock()
        holding = {(each.gpu_uuid, each.gi_id, each.cause): each for each in conditions}
        for key, condition in holding.items():
            last = self._reported.get(key)
            if last is None and condition.since < self._started:
                self._reported[key] = _Reported(now - QUIET_S, condition)
            elif last is None or (now - last.at >= QUIET_S and _effect(last.condition) != _effect(condition)):
                self._reported[key] = _Reported(now, condition)
                reason = UNMONITORED if condition.cause is HealthCause.UNMONITORED else UNHEALTHY
                self._report(condition, snapshot, "Warning", reason, _begun(condition, snapshot=snapshot))
        for key, last in list(self._reported.items()):
            if key in holding or now - last.at < QUIET_S:
                continue
            if last.condition is None:
                del self._reported[key]
            else:
                self._reported[key] = _Reported(now, None)
                self._report(last.condition, snapshot, "Normal", RECOVERED, _ended(last.condition, snapshot))

    def _report(self, condition: HealthCondition, snapshot: Snapshot, kind: Kind, reason: str, message: str) -> None:
        self._tell(kind, reason, message)
        if self._notify is not None:
            gpu = snapshot.gpu_by_uuid(condition.gpu_uuid)
            self._notify(Notice(condition=condition, gpu=gpu, kind=kind, reason=reason, message=message))


def device_of(gpu_uuid: GpuUuid, gi_id: int | None, snapshot: Snapshot) -> str:
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


def _begun(*same: HealthCondition, snapshot: Snapshot) -> str:
    condition = max(same, key=lambda each: each.severity is Severity.EVICT)
    device = device_of(condition.gpu_uuid, condition.gi_id, snapshot)
    if condition.cause is HealthCause.UNMONITORED:
        return f"{device}: {condition.message}"
    keys = ", ".join(TAINT_KEYS[each.cause] for each in same)
    effect = "its pods will be evicted" if condition.severity is Severity.EVICT else "new claims do not get it"
    return f"{device} is unhealthy, {effect} (taint {keys}): {condition.message}"


def _ended(condition: HealthCondition, snapshot: Snapshot) -> str:
    device = device_of(condition.gpu_uuid, condition.gi_id, snapshot)
    value = f"={condition.value}" if condition.value else ""
    return f"{device}: the condition {TAINT_KEYS[condition.cause]}{value} has ended; its taint is removed"


def sentences(conditions: Iterable[HealthCondition], snapshot: Snapshot) -> list[str]:
    """One message for all conditions with the same text, for ``/readyz``."""
    alike: dict[tuple[GpuUuid, int | None, str], list[HealthCondition]] = defaultdict(list)
    for each in conditions:
        alike[each.gpu_uuid, each.gi_id, each.message].append(each)
    return [_begun(*same, snapshot=snapshot) for same in alike.values()]


class HealthMetrics:
    """The health of GPUs as metrics, by device name. Not thread-safe: one thread calls ``update``."""

    def __init__(self) -> None:
        self._xids: Mapping[tuple[GpuUuid, str], int] = {}
        self._recoveries: Mapping[tuple[GpuUuid, HealthCause], int] = {}
        self._by_cause: Mapping[HealthCause, int] = {}
        self._shown: Mapping[str, HealthState] = {}  # by device

    def update(self, status: HealthStatus, conditions: Iterable[HealthCondition], snapshot: Snapshot) -> None:
        """Set the series that changed. Counts of ``status`` are since the process started."""
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
