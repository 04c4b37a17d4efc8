"""``kubectl dra capacity``: how many more claims for GPUs, MIG profiles and shares fit, and what is stranded."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.command_line.table import show
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import gib, printable
from dra_driver.kubectl.capacity import Options, survey, to_wire
from dra_driver.kubectl.commands.source import Progress, add_source, state_of, wants_colour
from dra_driver.kubectl.explain import scheduler_for, with_defaults

DESCRIPTION: Final = """\
Count free, used, fragmented and stranded GPUs, and how many more claims for each model, MIG profile and share fit now
by the scheduler's own rules. Uses the cluster of the kubeconfig, or a file (--cluster-state).

  free         GPUs without allocated devices that a claim can get now
  used         GPUs allocated as a whole, or in parts that leave nothing for any request
  fragmented   GPUs allocated in parts, with something left for a request
  fits         claims for this request that could be allocated now, one after another, without any others
  by sum       claims that the free amounts would serve if they were contiguous
  stranded     by sum minus fits: claims that fail only because the free amounts are not contiguous
"""
_FIELDS: Final = ("nodes", "claims", "slices", "taint_rules")
_MAX_ROWS: Final = 30
_GPUS: Final = ("GPUS", "FREE", "USED", "FRAGMENTED", "UNAVAILABLE", "MEMORY FREE", "IN FRAGMENTS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="only this node")
    parser.add_argument("--by-node", action="store_true", help="one line per node; equal nodes share a line")
    parser.add_argument("--driver", metavar="NAME", default="", help="only devices of this driver")
    parser.add_argument(
        "--share",
        action="append",
        metavar="MEMORY",
        help="count shares with this much memory (default: 10Gi); repeatable",
    )
    parser.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="feature gates of the scheduler that differ from the defaults of its version",
    )
    parser.add_argument("--totals", action="store_true", help="with -o json: leave single nodes out")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="")


def run(args: argparse.Namespace) -> int:
    shares = tuple(dict.fromkeys(_share(text) for text in args.share or ("10Gi",)))
    state = with_defaults(state_of(args, only=_FIELDS))
    if args.node and state.nodes and all(item["metadata"].get("name") != args.node for item in state.nodes):
        raise ConfigurationError(f"--node {args.node!r}: none of the {len(state.nodes)} nodes has this name")
    scheduler = scheduler_for(state, args.feature_gates)
    options = Options(features=scheduler.features, quirks=scheduler.quirks, shares=shares)
    with Progress("counting what would fit"):
        report = survey(state, options, driver=args.driver, node=args.node or "")
    if args.output == "json":
        document = to_wire(replace(report, nodes=()) if args.totals else report, "CapacityReport")
        print(json.dumps(document, indent=2))
        return 0
    _print(report, by_node=args.by_node)
    return 1 if _is_unknown(report) else 0


def _is_unknown(report: Any) -> bool:
    """Whether nothing could be counted, because the published devices could not be read."""
    return not report.models and any(gap.startswith("resourceslices:") for gap in report.gaps)


def _share(text: str) -> str:
    """Checks a share's memory: the API server refuses text that is not a quantity."""
    try:
        amount = Quantity.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"--share: {error}") from error
    if amount.as_int() < 1:
        raise ConfigurationError(f"--share {text[:40]}: expected an amount greater than zero")
    return text


def _print(report: Any, *, by_node: bool) -> None:
    for sentence in (*report.gaps, *report.notes):
        print(f"note: {printable(sentence)}", file=sys.stderr)
    if not report.models:
        print("Which devices are published is not known." if _is_unknown(report) else "No devices are published.")
        return
    colour = wants_colour()
    show(("MODEL", *_GPUS), [(model.model, *_gpus(model)) for model in report.models], colour=colour)
    print()
    show(
        ("MODEL", "REQUEST", "IN USE", "FITS", "BY SUM", "STRANDED"),
        [row for model in report.models for row in _requests(model)],
        colour=colour,
    )
    if report.stranded_shapes:
        print("\nFits nowhere although the total would suffice:")
        for shape in report.stranded_shapes:
            print(f"  {printable(shape.request)} of {printable(shape.model)}: {printable(shape.why)}")
    if by_node:
        print()
        show(("NODE", "MODEL", *_GPUS, "FITS"), _nodes(report.nodes), colour=colour)


def _gpus(model: Any) -> Sequence[str]:
    gpus, memory = model.gpus, model.memory_bytes
    reasons = ", ".join(f"{count} {name}" for name, count in gpus.reasons.items())
    return (
        *map(str, (gpus.total, gpus.free, gpus.used, gpus.fragmented)),
        reasons or "0",
        gib(memory.free),
        gib(memory.fragmented),
    )


def _requests(model: Any) -> Iterator[Sequence[str]]:
    for item in model.requests:
        fits = f"{'>=' if item.at_least else ''}{item.fits}"
        in_use = str(item.in_use) if item.count == 1 and not item.share else "-"
        yield model.model, item.request, in_use, fits, str(item.by_sum), str(item.stranded)


def _nodes(nodes: Sequence[Any]) -> list[Sequence[str]]:
    """Returns a row per node and model; nodes with equal values share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        for model in node.models:
            fits = ", ".join(f"{item.fits} x {item.request.removeprefix('1 ')}" for item in model.requests if item.fits)
            groups.setdefault((model.model, *_gpus(model), fits or "-"), []).append(node.node or "(any node)")
    rows = [(_named(names), *row) for row, names in groups.items()]
    return [*rows[:_MAX_ROWS], *([_more(len(rows))] if len(rows) > _MAX_ROWS else [])]


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (+{len(names) - 1} equal)"


def _more(count: int) -> Sequence[str]:
    text = f"... {count - _MAX_ROWS} more rows: use -o json for all, --node for one"
    return text, *["-"] * (len(_GPUS) + 2)
