"""The metrics of the webhook process, in a registry of their own. No other process loads this module."""

from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from dra_driver.core.telemetry import metrics

Result = Literal["allowed", "warned", "refused", "malformed", "busy", "slow", "failed"]
RESULTS: Final[tuple[Result, ...]] = get_args(Result)

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
for shared in (metrics.build_info, metrics.internal_errors_total):
    REGISTRY.register(shared)

reviews_total = Counter(
    "dra_driver_webhook_reviews",
    "Objects that the API server asked about, by result; busy, slow and failed ones were applied without a check",
    ["result"],
    registry=REGISTRY,
)
review_seconds = Histogram(
    "dra_driver_webhook_review_seconds", "From a complete request to its answer, in seconds",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3), registry=REGISTRY,
)  # fmt: skip
connections = Gauge("dra_driver_webhook_connections", "Open connections", registry=REGISTRY)
certificate_expires = Gauge(
    "dra_driver_webhook_certificate_expires_timestamp_seconds",
    "When the served certificate ends, in seconds since 1970; 0 while there is none",
    registry=REGISTRY,
)


def initialise(version: str) -> None:
    """Creates every series at zero. Call it once, before serving."""
    metrics.build_info.labels(version).set(1)
    for result in RESULTS:
        reviews_total.labels(result)
    for place in ("webhook", "http"):
        metrics.internal_errors_total.labels(place)


def render() -> tuple[str, bytes]:
    """Content type and body of a scrape."""
    return CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
