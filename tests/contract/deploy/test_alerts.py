"""The alerts and the PodMonitor of deploy/chart against the metrics that the processes serve."""

import re

import pytest
import yaml

from tests.fakes import chart

ALERTS = yaml.safe_load((chart.CHART / "files" / "alerts.yaml").read_text())["groups"][0]["rules"]
DOCUMENTED = (chart.ROOT / "docs" / "metrics.md").read_text()
FUNCTIONS = {"sum", "max", "rate", "increase", "by", "on", "unless", "or", "node", "pod", "cause", "state", "result"}
FUNCTIONS |= {"time"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_about_metrics_that_exist_and_names_what_to_look_at(alert: dict[str, str]) -> None:
    """docs/metrics.md lists them; tests/contract/telemetry compares that page with what is served."""
    without_values = re.sub(r'"[^"]*"|\[\w+\]', "", alert["expr"])
    names = set(re.findall(r"[a-z_]{2,}", without_values)) - FUNCTIONS
    assert names
    assert [name for name in names if f"`{name}`" not in DOCUMENTED] == []
    assert set(alert["annotations"]) == {"summary", "description"}


def test_every_metric_worth_an_alert_has_one() -> None:
    text = DOCUMENTED[DOCUMENTED.index("## Worth an alert") :]
    wanted = set(re.findall(r"\bdra_driver_[a-z_]+", text))
    assert wanted <= set(re.findall(r"dra_driver_[a-z_]+", str(ALERTS)))


def test_the_rule_has_the_alerts_as_they_are() -> None:
    """Their braces are Prometheus' own: a template would have to escape them."""
    objects = chart.objects({"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}})
    rule = chart.found(objects, "PrometheusRule", "dra-driver")
    assert rule["spec"]["groups"][0]["rules"] == ALERTS
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_pod_monitor_finds_the_port_of_every_process_that_serves_metrics() -> None:
    every = {"enabled": True}
    objects = chart.objects({"metrics": {"podMonitor": every}, "controller": every, "mpsHost": every})
    monitor = chart.found(objects, "PodMonitor", "dra-driver")["spec"]
    (expression,) = monitor["selector"]["matchExpressions"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    serving = set()
    for obj in objects:
        if obj["kind"] in {"DaemonSet", "Deployment"}:
            (container,) = obj["spec"]["template"]["spec"]["containers"]
            if endpoint["port"] in {port["name"] for port in container.get("ports", ())}:
                serving.add(obj["spec"]["template"]["metadata"]["labels"][expression["key"]])
    assert serving == set(expression["values"])
