"""Makes the Grafana dashboards deploy/chart/files/dashboards/*.json of deploy/dashboards.yaml.

A dashboard in Grafana's JSON is long and says little: what differs from panel to panel are title, kind, unit and
queries. Source of the model: Grafana documentation, "JSON model" (schema version 39, Grafana 11). Pure but for files.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path("deploy/dashboards.yaml")
FOLDER = Path("deploy/chart/files/dashboards")
KINDS = {
    "stat": ("stat", 6, 4),
    "series": ("timeseries", 12, 8),
    "stack": ("timeseries", 12, 8),
    "bars": ("bargauge", 12, 8),
    "table": ("table", 12, 8),
}
WIDTH = 24
VARIABLES = {
    "node": "label_values(dra_driver_published, node)",
    "namespace": "label_values(dra_claim_processes, namespace)",
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def generate(root: Path, target: Path) -> None:
    """Writes the dashboards of ``root`` below ``target``."""
    (target / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, board in yaml.safe_load((root / SOURCE).read_text()).items():
        text = json.dumps(dashboard(name, board), indent=1)
        (target / FOLDER / f"{name}.json").write_text(f"{text}\n")


def outputs(root: Path) -> list[Path]:
    """The generated files that exist below ``root``."""
    return sorted((root / FOLDER).glob("*.json"))


def dashboard(name: str, board: Mapping[str, Any]) -> dict[str, Any]:
    """One dashboard as Grafana imports it."""
    return {
        "uid": f"dra-driver-{name}",
        "title": board["title"],
        "tags": ["dra-driver", "gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *(_variable(each) for each in board["variables"])]},
        "panels": list(_panels(board["rows"])),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": VARIABLES[name], "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panels(rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Panels from left to right, below the heading of their row."""
    number, top = 0, 0
    for heading, panels in rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": heading,
            "collapsed": False,
            "gridPos": _place(0, top, WIDTH, 1),
            "panels": [],
        }
        left, top, tallest = 0, top + 1, 0
        for title, kind, unit, queries in panels:
            number += 1
            shape, width, height = KINDS[kind]
            if left + width > WIDTH:
                left, top, tallest = 0, top + tallest, 0
            yield _panel(number, title, shape, _place(left, top, width, height), unit, queries, kind)
            left, tallest = left + width, max(tallest, height)
        top += tallest


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(  # noqa: PLR0917 - one argument for each thing in which panels differ
    number: int, title: str, shape: str, place: dict[str, int], unit: str, queries: Mapping[str, str], kind: str
) -> dict[str, Any]:
    custom = {"custom": {"stacking": {"mode": "normal"}, "fillOpacity": 30}} if kind == "stack" else {}
    return {
        "id": number,
        "type": shape,
        "title": title,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, **custom}, "overrides": []},
        "targets": list(_targets(queries, instant=kind in ("table", "stat", "bars"))),
        "options": {"showHeader": True} if kind == "table" else {},
        "transformations": [{"id": "merge", "options": {}}] if kind == "table" else [],
    }


def _targets(queries: Mapping[str, str], *, instant: bool) -> Iterator[dict[str, Any]]:
    for at, (legend, query) in enumerate(queries.items()):
        yield {
            "refId": chr(ord("A") + at),
            "datasource": DATASOURCE,
            "expr": " ".join(str(query).split()),
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if instant else "time_series",
        }
