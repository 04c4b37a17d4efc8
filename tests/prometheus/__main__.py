"""``make prometheus``: a real Prometheus scrapes the driver's processes with the chart's rules. Exit status 1 unless
every query of every dashboard has data, an alert reaches a real Alertmanager's receiver, and no rule fails."""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dra_driver.kubectl.commands.usage_source import Prometheus
from dra_driver.kubectl.web.use_history import past_of
from tests.prometheus import dashboards
from tests.prometheus.stage import Monitoring, Stage

FILES = dashboards.ROOT / "deploy" / "chart" / "files"
TURN_S = 10.0
REPAIRED_AFTER = 3  # turns: a fault is over a while before it counts as recovered


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a real Prometheus all that dashboards and alerts ask")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it scrapes (default: 10)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Stage() as stage:
        rules = [FILES / "records.yaml", FILES / "alerts.yaml"]
        with Monitoring(Path(folder), rules, stage.targets) as monitoring:
            live(stage, args.minutes * 60)
            return 1 if report(monitoring, args.minutes) else 0


def live(stage: Stage, seconds: float) -> None:
    """Claims come and go for that long; a GPU is lost at the beginning."""
    until, number = time.monotonic() + seconds, 0
    stage.lose_a_gpu()
    while (left := until - time.monotonic()) > 0:
        stage.turn(number)
        stage.fail_one()
        number += 1
        if number == REPAIRED_AFTER:
            stage.repair_the_other()
        time.sleep(min(TURN_S, max(0.0, left)))


def report(monitoring: Monitoring, minutes: float) -> list[str]:
    """Prints what was seen; returns what is wrong."""
    targets = monitoring.up()
    down = [f"{each['labels']} is {each['health']}: {each['lastError']}" for each in targets if each["health"] != "up"]
    samples = sum(float(item["value"][1]) for item in monitoring.ask("sum(scrape_samples_scraped)"))
    print(f"Prometheus {monitoring.version()}: {len(targets)} targets, {samples:g} samples a scrape, {minutes:g} min")
    wrong = [*down, *_empty(monitoring), *_no_scale(monitoring), *_no_past(monitoring), *_failed_rules(monitoring)]
    arrived = Counter((alert["labels"]["alertname"], alert["status"]) for alert in monitoring.receiver.alerts)
    for (name, status), count in sorted(arrived.items()):
        print(f"alert {name} reached Alertmanager's receiver: {status}, {count} times")
    for alert in monitoring.receiver.alerts[:1]:
        print(f"  {alert['annotations']['summary']}\n  {alert['annotations']['description']}")
    if not any(status == "firing" for _, status in arrived):
        wrong.append("no alert reached the receiver")
    for problem in wrong:
        print(f"WRONG: {problem}", file=sys.stderr)
    return wrong


def _empty(monitoring: Monitoring) -> list[str]:
    wrong = []
    counts: Counter[str] = Counter()
    for query in dashboards.queries():
        counts[query.dashboard] += 1
        try:
            values = [float(item["value"][1]) for item in monitoring.ask(query.expression)]
        except (OSError, ValueError) as error:
            wrong.append(f"{query.dashboard}, {query.panel}: {query.expression}: {error}")
            continue
        if not any(math.isfinite(value) for value in values):
            wrong.append(f"{query.dashboard}, {query.panel}: no data for {query.expression} ({values[:3]})")
    for name, count in counts.items():
        print(f"dashboard {name}: {count} queries")
    return wrong


def _no_scale(monitoring: Monitoring) -> list[str]:
    query = dashboards.adapter_query(dashboards.example_rule(), "team", ["pod-a", "pod-b"])
    found = {item["metric"]["pod"]: item["value"][1] for item in monitoring.ask(query)}
    print(f"the adapter's question for two pods: {found}")
    return [] if len(found) == 2 else [f"the adapter's question {query} has {found}"]


def _no_past(monitoring: Monitoring) -> list[str]:
    samples = past_of(Prometheus(monitoring.url).ask)
    claims = sum(use.used_bytes is not None for sample in samples for use in sample.uses.values())
    gpus = sum(gpu.used_bytes is not None and gpu.node != "" for sample in samples for gpu in sample.gpus.values())
    print(f"the page's charts begin with {len(samples)} samples: {claims} of claims, {gpus} of GPUs")
    return [] if claims and gpus else ["the page finds no use before it started"]


def _failed_rules(monitoring: Monitoring) -> list[str]:
    failures = monitoring.ask("sum(prometheus_rule_evaluation_failures_total) or vector(0)")
    count = sum(float(item["value"][1]) for item in failures)
    return [f"{count:g} evaluations of rules failed"] if count else []


if __name__ == "__main__":
    sys.exit(main())
