"""What the kubelet is told about the health of devices: those that claims have, and those that are not healthy. Pure.

The kubelet shows it in ``status.containerStatuses[].allocatedResourcesStatus`` of pods (KEP-4680). It asks per device
and does not know GPUs, so a GPU's condition is said of each of its devices that exist.
"""

import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.core.model.mig import PartitionId, partition_name
from dra_driver.node.claims import Entry
from dra_driver.node.process.health_taints import partition_of
from dra_driver.node.process.missing_gpus import Missing

MAX_MESSAGE: Final = 1024
"""Characters; the kubelet cuts longer ones (kubernetes/kubernetes pkg/kubelet/cm/dra/manager.go)."""
STEADY_S: Final = 60.0


class DeviceState(Enum):
    """By the names of the protocol's HealthStatus."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


class ReportedDevice(Struct, frozen=True, kw_only=True):
    """A published device and the hardware behind it; ``partition`` None for a whole GPU and for a share."""

    pool: PoolName
    device: DeviceName
    gpu_uuid: GpuUuid
    partition: PartitionId | None = None


def devices_of(entry: Entry) -> tuple[ReportedDevice, ...]:
    """The devices of a claim, also those of admin access."""
    return tuple(
        ReportedDevice(
            pool=device.pool,
            device=device.device,
            gpu_uuid=device.gpu_uuid,
            partition=device.partition.id if device.partition is not None else None,
        )
        for device in entry.devices
    )


class DeviceReport(Struct, frozen=True, kw_only=True):
    pool: PoolName
    device: DeviceName
    state: DeviceState
    message: str = ""


def reports(
    claimed: Iterable[ReportedDevice],
    pool: PoolName,
    snapshot: Snapshot,
    conditions: Iterable[HealthCondition],
    missing: Missing,
) -> tuple[DeviceReport, ...]:
    """One report per device, in order of their names. ``snapshot`` has missing GPUs too."""
    known = tuple(conditions)
    devices = {(each.pool, each.device): each for each in claimed}
    for each in _existing(pool, snapshot, {one.gpu_uuid for one in known} | missing.keys()):
        devices.setdefault((each.pool, each.device), each)
    found = (report_of(devices[key], snapshot, known, missing) for key in sorted(devices))
    wanted = {(each.pool, each.device) for each in claimed}
    return tuple(each for each in found if (each.pool, each.device) in wanted or each.state is not DeviceState.HEALTHY)


def report_of(
    device: ReportedDevice,
    snapshot: Snapshot,
    conditions: Iterable[HealthCondition],
    missing: Missing,
) -> DeviceReport:
    gpu = snapshot.gpu_by_uuid(device.gpu_uuid)
    mine = [each for each in conditions if is_about(each, device, gpu)]
    unknown = [each for each in mine if each.cause is HealthCause.UNMONITORED]
    bad = [each for each in mine if each.severity is not Severity.COUNTED and each not in unknown]
    if bad:
        return _report(device, DeviceState.UNHEALTHY, *(each.message for each in bad))
    if device.gpu_uuid in missing:
        if missing[device.gpu_uuid].awaited:
            return _report(device, DeviceState.UNKNOWN, "the GPU is not found on its node yet")
        return _report(device, DeviceState.UNHEALTHY, "the GPU is not found on its node any more")
    if gpu is None:
        return _report(device, DeviceState.UNKNOWN, "the GPU is not in the inventory of its node")
    if unknown:
        return _report(device, DeviceState.UNKNOWN, *(each.message for each in unknown))
    return _report(device, DeviceState.HEALTHY)


def _existing(pool: PoolName, snapshot: Snapshot, gpus: Iterable[GpuUuid]) -> Iterable[ReportedDevice]:
    """The devices of these GPUs, without partitions that do not exist: no pod has one."""
    wanted = set(gpus)
    for gpu in snapshot.gpus:
        if gpu.uuid not in wanted:
            continue
        yield ReportedDevice(pool=pool, device=gpu.device_name, gpu_uuid=gpu.uuid)
        for instance in gpu.mig_instances:
            yield ReportedDevice(
                pool=pool,
                device=partition_name(gpu.minor, instance.profile_name, instance.profile_id, instance.start),
                gpu_uuid=gpu.uuid,
                partition=PartitionId(gpu.uuid, instance.profile_id, instance.start),
            )


def is_about(condition: HealthCondition, device: ReportedDevice, gpu: Gpu | None) -> bool:
    """Whether the device is affected. ``gpu`` is its GPU, None while it is not known."""
    if condition.gpu_uuid != device.gpu_uuid:
        return False
    if condition.gi_id is None:
        return True
    return gpu is not None and device.partition is not None and partition_of(gpu, condition.gi_id) == device.partition


def _report(device: ReportedDevice, state: DeviceState, *messages: str) -> DeviceReport:
    text = "; ".join(dict.fromkeys(messages))
    shown = text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
    return DeviceReport(pool=device.pool, device=device.device, state=state, message=shown)


class RateLimitedReports:
    """Limits how often a device's message changes, to reduce writes of pod status and of claim status.

    Messages contain what the hardware reports: the reason why a GPU does not answer, the NVLinks that are down, the
    last XIDs. Where that changes with each poll, the kubelet would write the status of every pod with the device each
    time, and this driver that of its claim (``claim_status.py``). So a new message about a device whose state stays the
    same waits until the last one is `STEADY_S` old. A new state is reported immediately. Not thread-safe: one thread
    calls ``apply``, also while nothing changes, so that the last message is reported.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[DeviceReport, float]] = {}

    def apply(self, reports: Iterable[DeviceReport]) -> tuple[DeviceReport, ...]:
        """The reports, some with the message that was reported last."""
        now = self._clock()
        self._told = {(each.pool, each.device): self._steady(each, now) for each in reports}
        return tuple(report for report, _ in self._told.values())

    def _steady(self, report: DeviceReport, now: float) -> tuple[DeviceReport, float]:
        told, at = self._told.get((report.pool, report.device), (report, now))
        if report == told:
            return told, at
        if report == replace(told, message=report.message) and now - at < STEADY_S:
            return told, at
        return report, now
