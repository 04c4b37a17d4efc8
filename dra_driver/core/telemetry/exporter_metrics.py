"""Metrics of the usage exporter, in a separate registry. The usage of claims arrives as values (`Family`, made by
``usage.answers``), because claims come and go."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, get_args

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dra_driver.core.telemetry import metrics

Source = Literal["driver", "processes", "memory", "utilisation", "containers", "claims"]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)
Kind = Literal["gauge", "counter"]
Sample = tuple[tuple[str, ...], float]

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
for shared in (metrics.build_info, metrics.internal_errors_total):
    REGISTRY.register(shared)

look_seconds = Histogram(
    "dra_exporter_look_seconds", "Duration of one collection of all usage",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10), registry=REGISTRY,
)  # fmt: skip
last_look = Gauge(
    "dra_exporter_last_look_timestamp_seconds", "End of the last collection, in seconds since 1970", registry=REGISTRY
)
errors_total = Counter(
    "dra_exporter_errors", "Looks that could not read a source", ["source"], registry=REGISTRY
)  # fmt: skip
knows = Gauge(
    "dra_exporter_knows", "1 while the exporter can know it; /usage says why not", ["what"], registry=REGISTRY
)
knows_processes = Gauge(
    "dra_exporter_knows_processes", "1 while processes are attributed to claims", registry=REGISTRY
)  # fmt: skip
driver_open = Gauge(
    "dra_exporter_driver_open", "0 while the exporter leaves the NVIDIA driver alone", registry=REGISTRY
)
series = Gauge("dra_exporter_series", "Series of claims and GPUs in the last collection", registry=REGISTRY)
rows_left_out = Gauge(
    "dra_exporter_rows_left_out", "Containers on devices without series, because they were too many", registry=REGISTRY
)


class Family(Struct, frozen=True, kw_only=True):
    """One metric. Counters end in ``_total``. ``samples`` have the values of ``labels`` and a number."""

    name: str
    about: str
    kind: Kind
    labels: tuple[str, ...]
    samples: tuple[Sample, ...]


class UsageCollector(Collector):
    """Metric families of the last collection. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next
        self._families: Sequence[Family] = ()

    def set(self, families: Sequence[Family]) -> None:
        with self._lock:
            self._families = families
        series.set(sum(len(family.samples) for family in families))

    def collect(self) -> Iterator[Any]:
        with self._lock:
            families = self._families
        for family in families:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            found = kind(family.name, family.about, labels=family.labels)
            for labels, value in family.samples:
                found.add_metric(labels, value)
            yield found


usage: Final = UsageCollector()
REGISTRY.register(usage)


def initialise(version: str) -> None:
    """Creates every series at zero. Call it once, before serving."""
    metrics.build_info.labels(version).set(1)
    for source in SOURCES:
        errors_total.labels(source)
        knows.labels(source)
    for place in ("exporter", "http"):
        metrics.internal_errors_total.labels(place)


def internal_error() -> None:
    metrics.internal_errors_total.labels("exporter").inc()


def render() -> tuple[str, bytes]:
    return CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
