"""``kubectl dra idle``: list idle and oversized claims."""

import argparse
from typing import Final

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.text import gib, listed, span
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.listing import Listed, add_list, duration, namespace_column, print_list, scope_of
from dra_driver.kubectl.usage.idle_report import IdleList, IdleRow, UsageFinding, classify

DESCRIPTION: Final = """\
List idle claims, and claims that would fit into a smaller MIG profile or share: their peak memory in the window plus
20 %. A claim is idle when none of its devices was used for --idle-for. Claims without data are listed as unknown, never
as idle. The exporters keep a short window: use --prometheus with --window before reclaiming.
"""
_WINDOW_S: Final = 86_400


def finding_text(row: IdleRow) -> str:
    if row.share_bytes is None:
        return row.finding.value
    profile = f"{row.profile} or " if row.profile else ""
    return f"would fit {profile}a share of {gib(row.share_bytes)}"


COLUMNS: Final = (
    TableColumn[IdleRow]("CLAIM", lambda row: row.claim),
    TableColumn[IdleRow]("NODE", lambda row: row.node),
    TableColumn[IdleRow]("DEVICE", lambda row: row.device),
    TableColumn[IdleRow]("MEMORY", lambda row: gib(row.memory_bytes)),
    TableColumn[IdleRow]("IDLE", lambda row: span(row.idle_s), live=True),
    TableColumn[IdleRow]("FINDING", finding_text),
    TableColumn[IdleRow]("PEAK", lambda row: gib(row.peak_bytes), wide=True),
    TableColumn[IdleRow]("PODS", lambda row: listed(row.pods), wide=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    add_idle_for(parser)
    parser.add_argument("--all", action="store_true", help="also claims in use and of the right size")
    usage_source.add_usage_source(parser, window_s=_WINDOW_S)
    add_list(parser, csv=True)


def add_idle_for(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--idle-for", metavar="DURATION", type=duration, default="30m", help="minimum idle time (default: 30m)"
    )


def run(args: argparse.Namespace) -> int:
    namespace = scope_of(args)

    def read() -> Listed[IdleRow]:
        report, size_of = usage_source.read_joined(args, _WINDOW_S, namespace=namespace, node=args.node)
        rows = classify(report.uses, idle_after_s=args.idle_for, size_of=size_of)
        shown = [row for row in rows if args.all or row.finding is not UsageFinding.USED]
        usage_source.tell_source(report)
        return Listed(
            document=IdleList(source=report.source, window_s=report.window_s, gaps=report.gaps, items=shown),
            rows=shown,
            columns=[*namespace_column(args, lambda row: row.namespace), *COLUMNS],
            namespace=namespace,
            name=lambda row: f"resourceclaim.resource.k8s.io/{row.claim}",
            noun="claims" if args.all else "idle or oversized claims",
        )

    return print_list(args, read)
