"""The queries of all dashboards with every variable at "All", and of the autoscaler's example by the Prometheus
adapter."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "chart" / "files" / "dashboards"
RATE_INTERVAL = "1m"  # grafana takes four scrape intervals, and at least this much is enough for the scrapes here


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    dashboard: str
    panel: str
    raw: str

    @property
    def expression(self) -> str:
        text = self.raw.replace("$__rate_interval", RATE_INTERVAL)
        return text.replace("$node", ".*").replace("$namespace", ".*")


def boards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def queries() -> Iterator[PanelQuery]:
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield PanelQuery(dashboard=name, panel=panel["title"], raw=target["expr"])


def adapter_query(rule: Mapping[str, Any], namespace: str, pods: Sequence[str]) -> str:
    """The question of a rule about these pods. Source: kubernetes-sigs/prometheus-adapter, docs/config.md."""
    matchers = f'namespace="{namespace}",pod=~"{"|".join(pods)}"'
    text = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
    return str(text.replace("<<.LabelMatchers>>", matchers).replace("<<.GroupBy>>", "pod"))


def example_rule() -> Mapping[str, Any]:
    objects = yaml.safe_load_all((ROOT / "examples" / "practice" / "triton-autoscaled-share.yaml").read_text())
    config = next(item for item in objects if item["kind"] == "ConfigMap")["data"]["config.yaml"]
    rule: Mapping[str, Any] = yaml.safe_load(config)["rules"][0]
    return rule
