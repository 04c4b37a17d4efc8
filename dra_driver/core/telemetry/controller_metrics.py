"""Metrics of the controller, in a separate registry: the node process' metrics would be zero and fire alerts."""

from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from dra_driver.core.telemetry import metrics

Place = Literal["capacity", "evictions", "lease", "policy-status", "usage-evictions"]
PLACES: Final[tuple[Place, ...]] = get_args(Place)
EvictionResult = Literal["evicted", "announced", "refused", "opted-out", "gone", "failed"]
UsageKind = Literal["over-grant", "idle"]
USAGE_KINDS: Final[tuple[UsageKind, ...]] = get_args(UsageKind)
EVICTION_RESULTS: Final[tuple[EvictionResult, ...]] = ("evicted", "refused", "opted-out", "gone", "failed")
"""Counted pods, claims or GPUs."""
WriteResult = Literal["written", "outdated", "failed"]
WRITE_RESULTS: Final[tuple[WriteResult, ...]] = get_args(WriteResult)

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
for shared in (metrics.build_info, metrics.internal_errors_total):
    REGISTRY.register(shared)

leader = Gauge("dra_driver_leader", "1 while this replica acts", registry=REGISTRY)
evictions_total = Counter(
    "dra_driver_evictions", "Attempts to evict a pod that requests an extended resource, by result", ["result"],
    registry=REGISTRY,
)  # fmt: skip
pods_endangered = Gauge(
    "dra_driver_pods_endangered",
    "Pods that request an extended resource and have a device with a NoExecute taint",
    registry=REGISTRY,
)
eviction_brake = Gauge(
    "dra_driver_eviction_brake", "1 while no pod is evicted because too many GPUs became tainted at once",
    registry=REGISTRY,
)  # fmt: skip
usage_evictions_total = Counter(
    "dra_driver_usage_evictions", "Attempts to evict a pod because of its claim's use, by kind and result",
    ["kind", "result"], registry=REGISTRY,
)  # fmt: skip
usage_cases = Gauge(
    "dra_driver_usage_cases", "Claims that nodes ask to act on: over their grant, or idle", ["kind"], registry=REGISTRY
)
usage_brake = Gauge(
    "dra_driver_usage_brake",
    "1 while usage evictions are paused because too many claims exceed their grant or are idle",
    registry=REGISTRY,
)  # fmt: skip
fleet_gpus = Gauge("dra_driver_fleet_gpus", "GPUs that all nodes publish", registry=REGISTRY)
fleet_gpus_tainted = Gauge(
    "dra_driver_fleet_gpus_tainted", "GPUs with a NoExecute taint that was added within the brake's window",
    registry=REGISTRY,
)  # fmt: skip
policies = Gauge("dra_driver_policies", "GpuPolicy objects whose status this replica writes", registry=REGISTRY)
policy_status_writes_total = Counter(
    "dra_driver_policy_status_writes", "Writes of the status of GpuPolicies, by result", ["result"], registry=REGISTRY
)


def initialise(version: str) -> None:
    """Creates every series at zero. Call it once, before serving."""
    metrics.build_info.labels(version).set(1)
    for result in EVICTION_RESULTS:
        evictions_total.labels(result)
    for kind in USAGE_KINDS:
        usage_cases.labels(kind)
        for result in EVICTION_RESULTS:
            usage_evictions_total.labels(kind, result)
    for written in WRITE_RESULTS:
        policy_status_writes_total.labels(written)
    for place in (*PLACES, "http"):
        metrics.internal_errors_total.labels(place)


def not_leading() -> None:
    """Only the leader reports evictions: use the sum over all replicas."""
    for gauge in (pods_endangered, eviction_brake, fleet_gpus, fleet_gpus_tainted):
        gauge.set(0)


def no_usage_cases() -> None:
    usage_brake.set(0)
    for kind in USAGE_KINDS:
        usage_cases.labels(kind).set(0)


def internal_error(place: Place) -> None:
    """Counts an unexpected exception; the caller logs its traceback."""
    metrics.internal_errors_total.labels(place).inc()


def render() -> tuple[str, bytes]:
    return CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
