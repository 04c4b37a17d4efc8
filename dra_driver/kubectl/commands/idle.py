"""``kubectl dra idle``: list idle and oversized claims."""

import argparse
from collections.abc import Sequence
from typing import Final

from dra_driver.core.text import gib, listed, span
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.source import print_json, print_table
from dra_driver.kubectl.commands.usage_source import Cell, print_csv
from dra_driver.kubectl.usage.device_use import camel
from dra_driver.kubectl.usage.idle_report import IdleRow, UsageFinding, classify

DESCRIPTION: Final = """\
List idle claims, and claims that would fit into a smaller MIG profile or share: their peak memory in the window plus
20 %. A claim is idle when none of its devices was used for --idle-for. Claims without data are listed as unknown, never
as idle. The exporters keep a short window: use --prometheus with --window before reclaiming.
"""
_WINDOW: Final = "24h"
_HEADINGS: Final = ("NAMESPACE", "CLAIM", "NODE", "DEVICE", "HAS", "PEAK", "IDLE", "FINDING", "PODS")
_CSV: Final = (
    *("namespace", "claim", "node", "device", "held_bytes", "peak_bytes", "idle_seconds", "finding"),
    *("profile", "share_bytes", "pods"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only claims of this namespace (default: all)")
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    parser.add_argument("--idle-for", metavar="TIME", default="30m", help="minimum idle time (default: 30m)")
    parser.add_argument("--all", action="store_true", help="also claims in use and of the right size")
    usage_source.add_usage_source(parser, window=_WINDOW)
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    after_s = usage_source.seconds(args.idle_for, "--idle-for")
    report, size_of = usage_source.read_joined(args, _WINDOW, node=args.node)
    uses = [use for use in report.uses if args.namespace in (None, use.namespace)]
    usage_source.tell_source(report)
    rows = classify(uses, idle_after_s=after_s, size_of=size_of)
    shown = [row for row in rows if args.all or row.finding is not UsageFinding.USED]
    if args.output == "json":
        items = [dict(zip(map(camel, _CSV), _values(row), strict=True)) for row in shown]
        about = {"source": report.source, "windowSeconds": report.window_s, "gaps": report.gaps}
        print_json("IdleReport", {**about, "items": items})
    elif args.output == "csv":
        print_csv(_CSV, [_values(row) for row in shown])
    elif shown:
        print_table(_HEADINGS, [_cells(row) for row in shown])
    else:
        print("No idle or oversized claims found.")
    return 0


def _cells(row: IdleRow) -> Sequence[str]:
    use, enough, finding = row.use, row.enough, row.finding.value
    if enough is not None:
        profile = f"{enough.profile} or " if enough.profile else ""
        finding = f"would fit {profile}a share of {gib(enough.share_bytes)}"
    names = (use.namespace, use.claim, use.node, use.device)
    return (*names, gib(row.held_bytes), gib(use.peak_bytes), span(use.idle_s), finding, listed(use.pods))


def _values(row: IdleRow) -> Sequence[Cell]:
    use, enough = row.use, row.enough
    fits = (enough.profile, enough.share_bytes) if enough is not None else (None, None)
    names = (use.namespace, use.claim, use.node, use.device)
    return (*names, row.held_bytes, use.peak_bytes, use.idle_s, row.finding.value, *fits, ",".join(use.pods))
