"""Which series exist, and how a call changes them."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_driver.core.model.health import HealthCause
from dra_driver.core.telemetry import capacity_metrics, controller_metrics, exporter_metrics, metrics
from dra_driver.core.telemetry.exporter_metrics import Family
from dra_driver.node.usage.answers import Judged, families
from dra_driver.node.usage.ledger import UsageLedger
from dra_driver.node.usage.values import JoinedUsage, Knows

DRIVER = "metrics-test.example"


def test_causes_are_those_of_conditions() -> None:
    assert set(metrics.CAUSES) == set(HealthCause)


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


@pytest.fixture(autouse=True)
def initialised() -> None:
    metrics.initialise(driver=DRIVER, node="node-a", version="1.2.3")


def test_every_series_exists_at_zero_before_anything_happened() -> None:
    """A rate over the first error is then right, and absence means that the process is gone."""
    text = metrics.render()[1].decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    with_samples = set(re.findall(r"^(?!#)(\w+)", text, re.MULTILINE))
    per_device = {
        f"dra_driver_gpu_{name}" for name in ("health", "health_state_seconds", "xids_total", "recoveries_total")
    }
    assert per_device < families
    for family in families - per_device:
        assert any(sample.startswith(family) for sample in with_samples), f"{family} has no series"
    assert value("nvidia_dra_requests_total", driver=DRIVER, operation="prepare") == 0
    for result in metrics.RESULTS:
        assert value("dra_driver_claims_total", operation="unprepare", result=result) is not None


def test_successful_call_counts_under_both_names() -> None:
    timer = metrics.CallTimer(DRIVER, "prepare")
    before = value("dra_driver_claims_total", operation="prepare", result="ok") or 0
    timer.started()
    assert value("nvidia_dra_requests_inflight", driver=DRIVER, operation="prepare") == 1
    timer.finished(0.002, ["ok", "ok"])
    assert value("nvidia_dra_requests_inflight", driver=DRIVER, operation="prepare") == 0
    assert value("dra_driver_claims_total", operation="prepare", result="ok") == before + 2
    assert value("nvidia_dra_requests_total", driver=DRIVER, operation="prepare") == 1


def test_call_with_a_failed_claim_is_no_request_for_nvidias_dashboards() -> None:
    """There, requests_total counts successes only."""
    timer = metrics.CallTimer(DRIVER, "unprepare")
    before = value("nvidia_dra_requests_total", driver=DRIVER, operation="unprepare")
    timer.started()
    timer.finished(0.002, ["ok", "retryable"])
    assert value("nvidia_dra_requests_total", driver=DRIVER, operation="unprepare") == before
    errors = value("nvidia_dra_node_unprepare_errors_total", driver=DRIVER, error_type="unprepare_devices")
    assert errors == 1


def test_labels_come_from_closed_sets() -> None:
    """No claim or pod may become a label: their number has no bound. Devices are the node's GPUs and their partitions,
    and XIDs those of a table."""
    allowed = {"operation", "result", "event", "state", "socket", "place", "version", "driver", "node", "device_type"}
    allowed |= {"error_type", "le", "form", "kind", "cause", "device", "xid"}
    names = set(re.findall(r'[{,](\w+)="', metrics.render()[1].decode()))
    assert names <= allowed


def nothing_in_use() -> list[Family]:
    knows = Knows(driver="none", processes="none", utilisation="none", containers="none", claims="none")
    joined = JoinedUsage(node="n", at=datetime(2026, 7, 1, tzinfo=UTC), elapsed_s=0.0, knows=knows)
    return families(joined, UsageLedger(), Judged(idle_s={}, over_bytes={}))


def test_every_metric_and_label_value_is_documented() -> None:
    document = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
    renders = (metrics.render, controller_metrics.render, exporter_metrics.render)
    exporter_metrics.usage.set(nothing_in_use())
    text = b"".join(render()[1] for render in renders).decode()
    families = {name for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE) if not name.startswith("process_")}
    documented = set(re.findall(r"^\| `(\w+)`", document, re.MULTILINE))
    assert families == documented
    for own in (
        *controller_metrics.PLACES,
        *controller_metrics.EVICTION_RESULTS,
        *capacity_metrics.SURVEY_RESULTS,
        *exporter_metrics.SOURCES,
    ):
        assert re.search(rf"\b{own}\b", document), f"{own} is not documented"
    for value in (*metrics.RESULTS, *metrics.CLAIM_EVENTS, *metrics.PLACES, *metrics.SOCKETS, *metrics.OPERATIONS):
        assert re.search(rf"\b{value}\b", document), f"{value} is not documented"


def test_the_controller_exports_no_series_of_the_node_process() -> None:
    """They would be 0, and alerts such as ``dra_driver_published == 0`` would fire."""
    controller_metrics.initialise("1")
    text = controller_metrics.render()[1].decode()
    assert "dra_driver_published" not in text
    for series in ('dra_driver_evictions_total{result="refused"}', "dra_driver_leader ", "dra_driver_build_info"):
        assert series in text
    assert 'dra_driver_internal_errors_total{place="lease"}' in text
