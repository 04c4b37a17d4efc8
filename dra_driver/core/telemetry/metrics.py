"""Metrics of the node process, in one registry. Label values come from closed sets in this file, the driver, the node
and the names of its devices. Every series without a device exists at zero from ``initialise`` on, so that the rate over
the first error is right.

``nvidia_dra_`` names mean the same as in NVIDIA's DRA driver (``pkg/metrics``): requests count only when every claim of
the call succeeded. ``dra_driver_`` names do not clash with the kubelet's ``dra_`` metrics.
"""

from collections.abc import Sequence
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series
REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

Operation = Literal["prepare", "unprepare"]
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
# A claim's outcome: a branch of the project's error tree, or "internal" for a defect of this driver.
Result = Literal["ok", "configuration", "claim", "hardware", "retryable", "kubernetes-api", "internal"]
RESULTS: Final[tuple[Result, ...]] = get_args(Result)
Place = Literal[
    "assignments",
    "claim-events",
    "claim-status",
    "claims",
    "detach",
    "gpu-events",
    "gpu-inventory",
    "gpu-node",
    "gpu-operations",
    "gpu-subscriber",
    "health",
    "grpc",
    "http",
    "maintenance",
    "own-node",
    "policies",
    "publisher",
]
PLACES: Final[tuple[Place, ...]] = get_args(Place)
ClaimEvent = Literal[
    "prepared", "repeated", "waited", "file-rewritten", "unprepared", "undone", "orphan-removed", "collected", "adopted"
]
CLAIM_EVENTS: Final[tuple[ClaimEvent, ...]] = get_args(ClaimEvent)
Socket = Literal["dra", "registration"]
SOCKETS: Final[tuple[Socket, ...]] = get_args(Socket)
# The forms in which claims use GPUs; values of ``model.terms.Form``.
FORMS: Final = ("whole", "partition", "share")
# Why a GPU is not healthy; values of ``model.health.HealthCause``.
CAUSES: Final = (
    *("xid", "ecc", "lost", "hang", "row-remap", "retired-pages", "recovery-action", "nvlink", "fabric"),
    "unmonitored",
)
# Findings of the usage exporter (``node/process/usage_report.py``).
USAGE_FINDINGS: Final = ("over-grant", "idle", "unattributed")
# From a repeat answered out of the journal (1 ms) to the kubelet's own deadline (45 s).
_CALL_BUCKETS: Final = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0)
_NVIDIA_BUCKETS: Final = tuple(0.05 * 2**k for k in range(9))
# Values of NVIDIA's label error_type for failed calls.
_NVIDIA_ERROR: Final[dict[Operation, str]] = {"prepare": "prepare_devices", "unprepare": "unprepare_devices"}

build_info = Gauge("dra_driver_build_info", "1; the version is a label", ["version"], registry=REGISTRY)
claims_total = Counter(
    "dra_driver_claims", "Claims in answers to the kubelet, by result", ["operation", "result"], registry=REGISTRY
)
call_seconds = Histogram(
    "dra_driver_call_duration_seconds",
    "Duration of the kubelet's calls in a worker thread, failures included",
    ["operation"],
    buckets=_CALL_BUCKETS,
    registry=REGISTRY,
)
claim_events_total = Counter(
    "dra_driver_claim_events", "Events of claims on this node, repairs included", ["event"], registry=REGISTRY
)
prepared_claims = Gauge("dra_driver_prepared_claims", "Claims in the journal", registry=REGISTRY)
prepared_devices = Gauge(
    "dra_driver_prepared_devices", "Devices in the journal by form, without admin access", ["form"], registry=REGISTRY
)
gpus = Gauge("dra_driver_gpus", "GPUs of this node by state", ["state"], registry=REGISTRY)
gpu_read_errors_total = Counter(
    "dra_driver_gpu_read_errors", "Failed NVML reads for which the last known value was used, if any", ["kind"],
    registry=REGISTRY,
)  # fmt: skip
published = Gauge(
    "dra_driver_published", "1 while the API server has the slices that this node should publish", registry=REGISTRY
)
withdrawn = Gauge(
    "dra_driver_devices_withdrawn", "1 while devices are withdrawn because no container could get one",
    registry=REGISTRY,
)  # fmt: skip
fabric_not_ready = Gauge(
    "dra_driver_fabric_not_ready", "GPUs that are tainted because their NVLink fabric is not ready", registry=REGISTRY
)
partitions_withheld = Gauge(
    "dra_driver_partitions_withheld",
    "GPUs whose partitions that do not exist yet are withheld, because the GPU cannot be cut", registry=REGISTRY,
)  # fmt: skip
partition_refusals_total = Counter(
    "dra_driver_partition_refusals", "Partitions that were not created because a process had the GPU open",
    registry=REGISTRY,
)  # fmt: skip
gpu_conditions = Gauge("dra_driver_gpu_conditions", "Conditions of GPUs and partitions", ["cause"], registry=REGISTRY)
gpu_health = Gauge("dra_driver_gpu_health", "1 for the state of a device", ["device", "state"], registry=REGISTRY)
gpu_health_seconds = Gauge(
    "dra_driver_gpu_health_state_seconds", "How long a device that is not healthy has had its state, 0 for healthy",
    ["device"], registry=REGISTRY,
)  # fmt: skip
gpu_xids_total = Counter(
    "dra_driver_gpu_xids", "XIDs that NVML reported, those without consequence too", ["device", "xid"],
    registry=REGISTRY,
)  # fmt: skip
gpu_recoveries_total = Counter(
    "dra_driver_gpu_recoveries", "Conditions that ended after a detected recovery", ["device", "cause"],
    registry=REGISTRY,
)  # fmt: skip
detached = Gauge(
    "dra_driver_detached",
    "1 while this process is detached from the NVIDIA driver on request",
    registry=REGISTRY,
)
drained = Gauge(
    "dra_driver_drained_gpus", "GPUs that an administrator drains: new claims do not get them", registry=REGISTRY
)
second_publisher = Gauge(
    "dra_driver_second_publisher",
    "1 while devices are withdrawn because another driver or device plugin offers the same GPUs",
    registry=REGISTRY,
)  # fmt: skip
device_node_problems = Gauge(
    "dra_driver_device_node_problems", "Device nodes on the host with a problem that only some pods notice, by kind",
    ["kind"],
    registry=REGISTRY,
)  # fmt: skip
policies_in_force = Gauge(
    "dra_driver_policies_in_force",
    "1 while the newest policies are in force, 0 while older policies are",
    registry=REGISTRY,
)
usage_findings = Gauge(
    "dra_driver_usage_findings",
    "Claims over their grant, idle claims, and GPUs with processes of no claim, as the usage exporter found them",
    ["kind"],
    registry=REGISTRY,
)
registered = Gauge("dra_driver_registered", "1 while the kubelet has accepted the registration", registry=REGISTRY)
registrations_total = Counter(
    "dra_driver_registrations", "Answers of the kubelet to the registration", ["result"], registry=REGISTRY
)
sockets_recreated_total = Counter(
    "dra_driver_sockets_recreated", "Sockets created again after their file was deleted", ["socket"], registry=REGISTRY
)
health_streams = Gauge("dra_driver_health_streams", "Open device health streams of the kubelet", registry=REGISTRY)
internal_errors_total = Counter(
    "dra_driver_internal_errors", "Unexpected exceptions: each is a defect, with a traceback in the log", ["place"],
    registry=REGISTRY,
)  # fmt: skip
# The rest are NVIDIA's names and labels.
nvidia_requests_total = Counter(
    "nvidia_dra_requests", "Calls in which every claim succeeded", ["driver", "operation"], registry=REGISTRY
)
nvidia_request_seconds = Histogram(
    "nvidia_dra_request_duration_seconds",
    "Duration of calls in which every claim succeeded",
    ["driver", "operation"],
    buckets=_NVIDIA_BUCKETS,
    registry=REGISTRY,
)
nvidia_inflight = Gauge("nvidia_dra_requests_inflight", "Calls in progress", ["driver", "operation"], registry=REGISTRY)
nvidia_prepared_devices = Gauge(
    "nvidia_dra_prepared_devices", "Devices of prepared claims", ["node", "driver", "device_type"], registry=REGISTRY
)
nvidia_prepare_errors_total = Counter(
    "nvidia_dra_node_prepare_errors", "Claims that failed to prepare", ["driver", "error_type"], registry=REGISTRY
)
nvidia_unprepare_errors_total = Counter(
    "nvidia_dra_node_unprepare_errors", "Claims that failed to unprepare", ["driver", "error_type"], registry=REGISTRY
)


def initialise(*, driver: str, node: str, version: str) -> None:
    """Creates every series at zero. Call it once, before serving."""
    build_info.labels(version).set(1)
    for operation in OPERATIONS:
        call_seconds.labels(operation)
        nvidia_requests_total.labels(driver, operation)
        nvidia_request_seconds.labels(driver, operation)
        nvidia_inflight.labels(driver, operation)
        for result in RESULTS:
            claims_total.labels(operation, result)
    for state in ("usable", "left-out"):
        gpus.labels(state)
    for kind in ("driver", "gpu", "property"):
        gpu_read_errors_total.labels(kind)
    for kind in ("node", "link", "permission"):
        device_node_problems.labels(kind)
    for answer in ("registered", "refused"):
        registrations_total.labels(answer)
    for event in CLAIM_EVENTS:
        claim_events_total.labels(event)
    for socket in SOCKETS:
        sockets_recreated_total.labels(socket)
    for place in PLACES:
        internal_errors_total.labels(place)
    _initialise_usage()
    for kind in ("gpu", "mig"):
        nvidia_prepared_devices.labels(node, driver, kind)
    for form in FORMS:
        prepared_devices.labels(form)
    for cause in CAUSES:
        gpu_conditions.labels(cause)
    nvidia_prepare_errors_total.labels(driver, _NVIDIA_ERROR["prepare"])
    nvidia_unprepare_errors_total.labels(driver, _NVIDIA_ERROR["unprepare"])


def _initialise_usage() -> None:
    for kind in USAGE_FINDINGS:
        usage_findings.labels(kind)


def render() -> tuple[str, bytes]:
    return CONTENT_TYPE_LATEST, generate_latest(REGISTRY)


def internal_error(place: Place) -> None:
    """Counts an unexpected exception; the caller logs its traceback."""
    internal_errors_total.labels(place).inc()


class CallTimer:
    """Times and counts the kubelet's calls of one operation: ``started`` at arrival, ``finished`` with one outcome per
    claim. Thread-safe."""

    def __init__(self, driver: str, operation: Operation) -> None:
        # Looked up once: each lookup takes as long as the count itself.
        self._inflight = nvidia_inflight.labels(driver, operation)
        self._seconds = call_seconds.labels(operation)
        self._claims = {result: claims_total.labels(operation, result) for result in RESULTS}
        errors = nvidia_prepare_errors_total if operation == "prepare" else nvidia_unprepare_errors_total
        self._errors = errors.labels(driver, _NVIDIA_ERROR[operation])
        self._requests = nvidia_requests_total.labels(driver, operation)
        self._request_seconds = nvidia_request_seconds.labels(driver, operation)

    def started(self) -> None:
        self._inflight.inc()

    def finished(self, seconds: float, results: Sequence[Result]) -> None:
        self._inflight.dec()
        self._seconds.observe(seconds)
        for result in results:
            self._claims[result].inc()
        failed = sum(result != "ok" for result in results)
        if failed:
            self._errors.inc(failed)
        else:
            self._requests.inc()
            self._request_seconds.observe(seconds)
