"""Report the health of claimed devices and of unhealthy devices to the kubelet.

The kubelet shows it in ``status.containerStatuses[].allocatedResourcesStatus`` of pods (KEP-4680). It stores health per
device, so a GPU's condition is reported for each of its devices that exist.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Final

import grpc
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core._pb.health_v1 import api_pb2 as v1
from dra_driver.core._pb.health_v1alpha1 import api_pb2 as v1alpha1
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.core.model.mig import PartitionId, partition_name
from dra_driver.core.telemetry import metrics
from dra_driver.node.claims import Entry
from dra_driver.node.process.health_conditions import partition_of
from dra_driver.node.process.missing_gpus import Missing
from dra_driver.node.process.server import generic_handler

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 1024
"""Characters; the kubelet cuts longer ones (kubernetes/kubernetes pkg/kubelet/cm/dra/manager.go)."""
STEADY_S: Final = 60.0
# A kubelet holds one, and two for a moment during its restart.
MAX_STREAMS = 16
SENDERS = 2
TIMEOUT_S: Final = 30
SLOW_S: Final = 5.0

Send = Callable[[object], None]


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
    device: ReportedDevice, snapshot: Snapshot, conditions: Iterable[HealthCondition], missing: Missing
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
        return _report(device, DeviceState.UNHEALTHY, "the GPU is no longer found on its node")
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
    """Return whether the device is affected. ``gpu`` is its GPU, None while it is unknown."""
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

    A new message (such as a count of errors) about a device in the same state waits until the last one is `STEADY_S`
    old. Not thread-safe: one thread calls ``apply`` repeatedly, even without changes, to send the last message.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported: dict[tuple[str, str], tuple[DeviceReport, float]] = {}

    def apply(self, reports: Iterable[DeviceReport]) -> tuple[DeviceReport, ...]:
        now = self._clock()
        self._reported = {(each.pool, each.device): self._steady(each, now) for each in reports}
        return tuple(report for report, _ in self._reported.values())

    def _steady(self, report: DeviceReport, now: float) -> tuple[DeviceReport, float]:
        reported, at = self._reported.get((report.pool, report.device), (report, now))
        if report == reported:
            return reported, at
        if report == replace(reported, message=report.message) and now - at < STEADY_S:
            return reported, at
        return report, now


class _Stream(Struct):
    """``sent`` is the number of the last sent report; ``sending_since`` is None while nothing is sent."""

    messages: ModuleType
    context: grpc.ServicerContext
    send: Send
    sent: int = 0
    sending_since: float | None = None


class HealthStreams:
    """The kubelet's device health streams, v1 and v1alpha1. Thread-safe.

    Each message has all devices, with a timeout of `TIMEOUT_S` after which the kubelet shows a device as Unknown.
    Nothing is sent before the first report, nor with health off. The streams are served anyway: kubelets up to 1.36
    open the v1alpha1 stream to every DRA driver and dial again every 5 s when it ends (kubernetes/kubernetes
    pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). An open stream also keeps a kubelet 1.34 from its deadlock after
    30 idle minutes.

    A stream holds no thread. gRPC's ``send`` blocks while the kubelet does not read: `SENDERS` threads send, one
    message at a time per stream and always the newest. A stream on which one takes longer than `SLOW_S` is ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below and the fields of streams
        self._open: dict[int, _Stream] = {}
        self._stopping = False
        self._number = 0  # of the newest report
        self._reports: tuple[DeviceReport, ...] = ()
        self._built: dict[str, object] = {}  # messages of the newest report, by version
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="health-stream")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            generic_handler(
                messages.DESCRIPTOR.services_by_name["DRAResourceHealth"],
                {"NodeWatchResources": partial(self.watch, messages)},
            )
            for messages in (v1, v1alpha1)
        ]

    def watch(self, messages: ModuleType, _request: object, context: grpc.ServicerContext, send: Send) -> None:
        """Register a stream and return; it stays open until the kubelet or ``stop`` ends it."""
        key, stream = id(send), _Stream(messages, context, send)
        with self._lock:
            refused = self._stopping or len(self._open) >= MAX_STREAMS
            if not refused:
                self._open[key] = stream
                metrics.health_streams.set(len(self._open))
        if refused:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open, or the driver stops"
            )
        if not context.add_callback(lambda: self._ended(key)):
            self._ended(key)
        with self._lock:
            self._offer(stream)

    def report(self, devices: Sequence[DeviceReport]) -> None:
        """Send this to every stream; an empty report only if the last was not. Returns immediately."""
        with self._lock:
            if devices or self._reports:
                self._number += 1
                self._reports = tuple(devices)
                self._built = {}
            self._end_slow()
            for stream in self._open.values():
                self._offer(stream)

    def stop(self) -> None:
        """End all streams, so that the server does not wait for them, and refuse later ones. Idempotent."""
        with self._lock:
            self._stopping = True
            ending = list(self._open.values())
        for stream in ending:
            stream.send(None)
        self._senders.shutdown(wait=False, cancel_futures=True)

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._open)

    @property
    def sending(self) -> int:
        with self._lock:
            return sum(stream.sending_since is not None for stream in self._open.values())

    def _offer(self, stream: _Stream) -> None:
        """Begin to send the newest report where it is due. Call it with the lock."""
        if not self._stopping and stream.sending_since is None and stream.sent < self._number:
            stream.sending_since = self._clock()
            self._senders.submit(self._send, stream)

    def _send(self, stream: _Stream) -> None:
        with self._lock:
            stream.sending_since = self._clock()  # from here on; before, it waited for a thread
            stream.sent, message = self._number, self._message(stream.messages)
        try:
            stream.send(message)
        except Exception:  # thread boundary: the kubelet opens a new stream
            log.exception("health stream failed")
            metrics.internal_error("health")
        with self._lock:
            stream.sending_since = None
            if id(stream.send) in self._open:
                self._offer(stream)

    def _message(self, messages: ModuleType) -> object:
        version = messages.DESCRIPTOR.name
        if version not in self._built:
            self._built[version] = message_of(messages, self._reports)
        return self._built[version]

    def _end_slow(self) -> None:
        """End streams whose kubelet does not read, which also frees their threads. Call it with the lock."""
        for stream in list(self._open.values()):
            if stream.sending_since is not None and self._clock() - stream.sending_since > SLOW_S:
                log.warning("ending a health stream that the kubelet does not read", extra={"seconds": SLOW_S})
                stream.context.cancel()

    def _ended(self, key: int) -> None:
        with self._lock:
            self._open.pop(key, None)
            metrics.health_streams.set(len(self._open))


def message_of(messages: ModuleType, devices: Sequence[DeviceReport]) -> object:
    """The message of one version, by its generated module."""
    now = int(time.time())
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
                health=messages.HealthStatus.Value(each.state.value),
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT_S,
                message=each.message,
            )
            for each in devices
        ]
    )
