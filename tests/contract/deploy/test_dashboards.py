"""The Grafana dashboards of deploy/chart: their queries are about metrics that exist, and Grafana finds them.

`make prometheus` asks a real Prometheus each of these queries.
"""

import json
import re

import pytest
import yaml

from tests.fakes import chart
from tests.prometheus.dashboards import PanelQuery, boards, queries

BOARDS = boards()
QUERIES = list(queries())
METRICS = (chart.ROOT / "docs" / "metrics.md").read_text()
RECORDS = yaml.safe_load((chart.CHART / "files" / "records.yaml").read_text())
KNOWN = {
    *re.findall(r"^\| `(\w+)`", METRICS, re.MULTILINE),
    *(rule["record"] for group in RECORDS["groups"] for rule in group["rules"]),
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
