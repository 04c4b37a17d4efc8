"""The health of GPUs as metrics. Labels are device names of this node, which a process has few of, and closed sets."""

from collections import Counter
from collections.abc import Iterable, Mapping

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import metrics
from dra_driver.node.health import HealthState, HealthStatus
from dra_driver.node.process.health_events import device_of


class HealthMetrics:
    """Not thread-safe: one thread calls ``update``."""

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
