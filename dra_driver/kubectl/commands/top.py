"""``kubectl dra top``: show the devices in use now, by claim, pod, namespace or node."""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.listing import Listed, add_list, print_list
from dra_driver.kubectl.commands.usage import compared_scope, listed_devices, listed_sums
from dra_driver.kubectl.usage.device_use import KEYS, ClaimDeviceUse, UseSum, summed

DESCRIPTION: Final = """\
Show the current use of GPUs from the usage exporters: the busiest first, unknown use last. -w shows it again every few
seconds. `kubectl dra usage` sorts by name, and reads Prometheus.
"""
_KINDS: Final = {
    **dict.fromkeys(("claim", "claims", "resourceclaims"), "claim"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
    **dict.fromkeys(("namespace", "namespaces", "ns"), "namespace"),
    **dict.fromkeys(("node", "nodes", "no"), "node"),
    **dict.fromkeys(("device", "devices"), "device"),
}
_SORTED: Final = {"sm": "sm_ratio", "memory": "used_bytes"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "by",
        nargs="?",
        default="claim",
        metavar="claim|pod|namespace|node|device",
        help="one row for each of these (default: claim)",
    )
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    parser.add_argument("--sort-by", choices=tuple(_SORTED), default="sm", help="default: sm, the utilization")
    usage_source.add_exporters(parser)
    add_list(parser, csv=True)


def run(args: argparse.Namespace) -> int:
    by = _KINDS.get(args.by)
    if by is None:
        raise ConfigurationError(f"{args.by[:40]!r}: expected claim, pod, namespace, node or device")
    args.prometheus = args.window = None
    namespace = compared_scope(args, by)

    def read() -> Listed[Any]:
        report, _ = usage_source.read_joined(args, 0, namespace=namespace, node=args.node)
        if not args.watch:
            usage_source.tell_source(report)
        if by == "device":
            return listed_devices(args, namespace, replace(report, uses=busiest(report.uses, args.sort_by)))
        return listed_sums(namespace, report, by, "", busiest(summed(report.uses, KEYS[by]), args.sort_by))

    return print_list(args, read, redraw=True)


def busiest(rows: Sequence[Any], sort_by: str) -> list[Any]:
    """Return rows of use, the busiest first and unknown use last; equal ones stay in order."""

    def order(row: ClaimDeviceUse | UseSum) -> tuple[bool, float]:
        value = getattr(row, _SORTED[sort_by])
        return value is None, -(value or 0)

    return sorted(rows, key=order)
