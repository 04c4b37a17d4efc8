"""Alerts, their cases for promtool, and dashboards."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.fakes import chart
from tests.prometheus.dashboards import PanelQuery, boards, queries

FILES = chart.CHART / "files"
CASES_FILE = chart.ROOT / "tests" / "prometheus" / "alerts_test.yaml"
ALERTS = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
RECORDS = [rule for group in yaml.safe_load((FILES / "records.yaml").read_text())["groups"] for rule in group["rules"]]
RECORD_CASES_FILE = CASES_FILE.with_name("records_test.yaml")
COST_CASES_FILE = CASES_FILE.with_name("cost_test.yaml")
COST_RULES = chart.ROOT / "examples" / "usage" / "cost-rules.yaml"
CASES = yaml.safe_load(CASES_FILE.read_text())["tests"]
DOCUMENTED = (chart.ROOT / "docs" / "metrics.md").read_text()
RECORDED = DOCUMENTED[DOCUMENTED.index("## Recorded") : DOCUMENTED.index("## Worth an alert")]
WORTH = DOCUMENTED[DOCUMENTED.index("## Worth an alert") :]
LINES = dict(re.findall(r"^- \*\*(\w+)\*\*:\s((?:.+\n?)(?:  .+\n?)*)", WORTH, re.MULTILINE))
METRIC = re.compile(r"\b(?:dra_[a-z_]+|up)\b(?!:)")


def metrics_of(text: str) -> set[str]:
    return set(METRIC.findall(re.sub(r'"[^"]*"|\[\w+\]', "", text)))


def test_every_line_worth_an_alert_has_one_and_every_alert_has_a_line() -> None:
    """In the same order, and each line begins with the alert's name."""
    bullets = [line for line in WORTH.splitlines() if line.startswith("- ")]
    assert len(bullets) == len(LINES), "a line does not begin with the name of its alert"
    assert list(LINES) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_about_the_metrics_of_its_line(alert: dict[str, Any]) -> None:
    """docs/metrics.md lists them; tests/unit/core/telemetry compares that page with what is served."""
    names = metrics_of(alert["expr"])
    assert names
    assert names == metrics_of(" ".join(re.findall(r"`([^`]*)`", LINES[alert["alert"]])))
    assert [name for name in names - {"up"} if f"| `{name}`" not in DOCUMENTED] == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_case_has_a_series_that_must_not_fire_and_all_labels_that_the_texts_name(alert: dict[str, Any]) -> None:
    (case,) = [case for case in CASES if case["name"] == alert["alert"]]
    before, after = case["promql_expr_test"]
    assert len(case["input_series"]) > len(after["exp_samples"])
    states = {sample["labels"].partition('alertstate="')[2].partition('"')[0] for sample in before["exp_samples"]}
    assert states == ({"pending"} if "for" in alert else set())
    for sample in after["exp_samples"]:
        assert 'alertstate="firing"' in sample["labels"]
        labels = set(re.findall(r'(\w+)="', sample["labels"]))
        assert set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"]))) <= labels


def test_every_recording_rule_has_a_line_and_a_case_for_promtool() -> None:
    names = [record["record"] for record in RECORDS]
    assert re.findall(r"^\| `([a-z_:]+)`", RECORDED, re.MULTILINE) == names
    cases = yaml.safe_load(RECORD_CASES_FILE.read_text())["tests"]
    tried = {re.split(r"[{ ]", test["expr"])[0] for case in cases for test in case["promql_expr_test"]}
    assert tried == set(names)


def test_cost_rules_read_documented_metrics() -> None:
    names = metrics_of(re.sub(r"\w+(:\w+)+", "", COST_RULES.read_text()))
    assert [name for name in names if f"| `{name}`" not in DOCUMENTED] == []
    assert len(names) == 4


def test_promtool_finds_the_rules_right() -> None:
    """Prometheus' own reading of them: the series of alerts_test.yaml fire those alerts, and no others."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH")
    command = [promtool, "test", "rules", str(CASES_FILE), str(RECORD_CASES_FILE), str(COST_CASES_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_has_the_alerts_as_they_are() -> None:
    """Their braces are Prometheus' own: a template would have to escape them."""
    objects = chart.objects({"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}})
    rule = chart.found(objects, "PrometheusRule", "dra-driver")
    assert [each for group in rule["spec"]["groups"] for each in group["rules"] if "record" in each] == RECORDS
    assert [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each] == ALERTS
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_pod_monitor_finds_the_port_of_every_process_that_serves_metrics() -> None:
    every = {"enabled": True}
    on = {"controller": every, "mpsHost": every, "exporter": every}
    objects = chart.objects({"metrics": {"podMonitor": every}, **on})
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


BOARDS = boards()
QUERIES = list(queries())
METRICS = (chart.ROOT / "docs" / "metrics.md").read_text()
KNOWN = {
    *re.findall(r"^\| `(\w+)`", METRICS, re.MULTILINE),
    *(rule["record"] for rule in RECORDS),
    *("ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"),
}


def names(query: PanelQuery) -> set[str]:
    """Names of metrics in a query: what stands before braces, or is no function and no label."""
    text = re.sub(r'"[^"]*"|\[[^\]]*\]|\b(?:by|on)\s*\([^)]*\)', "", query.raw)
    text = re.sub(r"\{[^}]*\}", "", text)
    return {
        name.removesuffix("_bucket")
        for name in re.findall(r"\b(?:[a-z_]+:)?(?:dra_|process_|ALERTS)[a-z_]*(?::\w+)?", text)
    }


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.dashboard}-{query.panel}")
def test_a_query_is_about_metrics_that_exist(query: PanelQuery) -> None:
    assert names(query)
    assert names(query) - KNOWN == set()


@pytest.mark.parametrize("name", BOARDS)
def test_a_query_uses_the_variables_of_its_dashboard_and_all_of_them_are_used(name: str) -> None:
    defined = {item["name"] for item in BOARDS[name]["templating"]["list"]} - {"datasource"}
    used = {
        variable
        for query in QUERIES
        if query.dashboard == name
        for variable in re.findall(r"\$(\w+)", query.raw)
        if not variable.startswith("__")
    }
    assert used == defined


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_chart_has_each_dashboard_where_a_sidecar_finds_it() -> None:
    assert not [obj for obj in chart.objects() if obj["kind"] == "ConfigMap" and "dashboard" in obj["metadata"]["name"]]
    objects = chart.objects({"metrics": {"dashboards": {"enabled": True, "labels": {"team": "a"}}}})
    for name, board in BOARDS.items():
        found = chart.found(objects, "ConfigMap", f"dra-driver-dashboard-{name}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["labels"]["team"] == "a"
        assert json.loads(found["data"][f"{name}.json"]) == board
