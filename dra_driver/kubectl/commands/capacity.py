"""``kubectl dra capacity``: count the claims for GPUs, MIG profiles and shares that still fit, and stranded ones."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import gib, printable, wrapped
from dra_driver.kubectl import capacity
from dra_driver.kubectl.capacity import LEGEND, CapacityReport, ModelCapacity, NodeCapacity
from dra_driver.kubectl.commands import source
from dra_driver.kubectl.commands.explain import added_node
from dra_driver.kubectl.commands.listing import WIDE, add_output, add_selector, print_document, print_table, print_text
from dra_driver.kubectl.explain import not_checked, scheduler_for, with_defaults

DESCRIPTION: Final = """\
Count free, used and fragmented GPUs, and the claims per model, MIG profile and share that fit now by the scheduler's
rules.

  free         GPUs without allocated devices that accept a claim
  used         GPUs without room for another request
  fragmented   partly allocated GPUs with room for a request
  in use       allocated devices of this kind; "-" for shares and for several GPUs in one claim
  fits         claims for this request that can be allocated now, if no others are
  by sum       claims that would fit if the free amounts were contiguous
  stranded     by sum minus fits
"""
_FIELDS: Final = ("nodes", "claims", "slices", "taint_rules")
_MAX_ROWS: Final = 30
_NARROW: Final = 5
"""Number of the next that a table without -o wide has."""
_GPUS: Final = ("GPUS", "FREE", "USED", "FRAGMENTED", "UNAVAILABLE", "MEMORY FREE", "IN FRAGMENTS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="only this node")
    add_selector(parser, "nodes")
    parser.add_argument("--by-node", action="store_true", help="one line per node; equal nodes share a line")
    parser.add_argument("--driver", metavar="NAME", default="", help="only devices of this driver")
    parser.add_argument(
        "--share",
        action="append",
        metavar="MEMORY",
        help="count shares with this much memory (default: 10Gi); repeatable",
    )
    source.add_scheduling(parser)
    parser.add_argument("--totals", action="store_true", help="with -o json: omit nodes")
    add_output(parser, WIDE, "json", "yaml")
    source.add_source(parser)


def run(args: argparse.Namespace) -> int:
    shares = tuple(dict.fromkeys(_share(text) for text in args.share or ("10Gi",)))
    state = with_defaults(source.on_selected_nodes(args, source.state_of(args, only=_FIELDS)))
    if args.node and state.nodes and all(item["metadata"].get("name") != args.node for item in state.nodes):
        raise ConfigurationError(f"--node {args.node!r}: none of the {len(state.nodes)} nodes has this name")
    scheduler = scheduler_for(state, args.feature_gates)
    options = capacity.Options(features=scheduler.features, quirks=scheduler.quirks, shares=shares)
    with source.Progress("counting fitting claims"):
        report = capacity.survey(state, options, driver=args.driver, node=args.node or "")
        if added := added_node(args, state):
            on_node = capacity.survey(added.alone_in(state), options).models
            more = capacity.AddedCapacity(gpus=added.gpus, models=on_node, not_checked=added.not_checked)
            report = replace(report, added_node=more)
    unknown = not report.models and source.is_unread(state, "resourceslices")
    if args.output in ("json", "yaml"):
        print_document(args.output, replace(report, nodes=()) if args.totals else report)
    else:
        _print(report, by_node=args.by_node, unknown=unknown, full=args.output == WIDE)
    return 1 if unknown else 0


def _share(text: str) -> str:
    try:
        amount = Quantity.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"--share: {error}") from error
    if amount.as_int() < 1:
        raise ConfigurationError(f"--share {text[:40]}: expected an amount greater than zero")
    return text


def _print(report: CapacityReport, *, by_node: bool, unknown: bool, full: bool) -> None:
    for sentence in (*report.gaps, *report.notes):
        print(f"note: {printable(sentence)}", file=sys.stderr)
    gpus = _GPUS if full else _GPUS[:_NARROW]
    if report.models:
        rows = [(model.model, *_gpus(model)[: len(gpus)]) for model in report.models]
        print_table(("PRODUCT", *gpus), rows, full=full)
        print()
        headings = ("PRODUCT", "REQUEST", "IN USE", "FITS", "BY SUM", "STRANDED")
        print_table(headings, [row for model in report.models for row in _requests(model)], full=full)
        print_text("\n".join(wrapped(LEGEND)))
        if report.stranded_shapes:
            print("\nFits nowhere although the total would suffice:")
            for shape in report.stranded_shapes:
                print_text(f"  {printable(shape.request)} of {printable(shape.model)}: {printable(shape.why)}")
    else:
        print("Unknown: the published devices cannot be read." if unknown else "No devices found.", file=sys.stderr)
    if report.added_node is not None:
        print_text(f"\nEach added node of {printable(report.added_node.gpus)}:")
        more = _on_added_node(report, unpublished="?" if unknown else "0")
        print_table(("PRODUCT", "REQUEST", "FITS NOW", "FITS ON IT"), [*more], full=full)
        print_text("\n".join(map(printable, not_checked(report.added_node.not_checked))))
    if by_node and report.models:
        print()
        print_table(("NODE", "PRODUCT", *gpus, "FITS"), _nodes(report.nodes, len(gpus)), full=full)


def _gpus(model: ModelCapacity) -> Sequence[str]:
    gpus, memory = model.gpus, model.memory_bytes
    unhealthy = [f"{gpus.held_unhealthy} held unhealthy"] if gpus.held_unhealthy else []
    reasons = ", ".join([*(f"{count} {name}" for name, count in gpus.reasons.items()), *unhealthy])
    return (
        *map(str, (gpus.total, gpus.free, gpus.used, gpus.fragmented)),
        reasons or "0",
        gib(memory.free),
        gib(memory.fragmented),
    )


def _requests(model: ModelCapacity) -> Iterator[Sequence[str]]:
    for item in model.requests:
        fits = f"{'>=' if item.at_least else ''}{item.fits}"
        in_use = "-" if item.in_use is None else str(item.in_use)
        yield model.model, item.request, in_use, fits, str(item.by_sum), str(item.stranded)


def _on_added_node(report: CapacityReport, *, unpublished: str) -> Iterator[Sequence[str]]:
    now = {row[:2]: row[3] for model in report.models for row in _requests(model)}
    for model in report.added_node.models if report.added_node is not None else ():
        for product, request, _, fits, *_ in _requests(model):
            yield product, request, now.get((product, request), unpublished), fits


def _nodes(nodes: Sequence[NodeCapacity], columns: int) -> list[Sequence[str]]:
    """Return a row per node and product with so many counts; nodes with equal values share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        for model in node.models:
            fits = ", ".join(f"{item.fits} x {item.request.removeprefix('1 ')}" for item in model.requests if item.fits)
            row = (model.model, *_gpus(model)[:columns], fits or "-")
            groups.setdefault(row, []).append(node.node or "(any node)")
    rows = [(f"{names[0]} (+{len(names) - 1} equal)" if names[1:] else names[0], *row) for row, names in groups.items()]
    more = f"... {len(rows) - _MAX_ROWS} more rows: use -o json for all, --node for one"
    return [*rows[:_MAX_ROWS], *([(more, *"-" * (columns + 2))] if len(rows) > _MAX_ROWS else [])]
