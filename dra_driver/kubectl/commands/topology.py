"""``kubectl dra topology``: show linked GPUs, GPUs of one PCIe root or NUMA node, and the claims that hold them."""

import argparse
from collections.abc import Sequence
from typing import Final

from msgspec import to_builtins

from dra_driver.core.text import listed
from dra_driver.kubectl.capacity import TopologyRow, topology_of, with_claim_gaps
from dra_driver.kubectl.commands.devices import UNKNOWN
from dra_driver.kubectl.commands.source import add_source, is_unread, print_json, print_table, state_of, tell_gaps

DESCRIPTION: Final = (
    "Show NUMA node, PCIe root, NVLink connections and claims of GPUs and other drivers' devices, from ResourceSlices."
)
HEADINGS: Final = ("NODE", "NUMA", "PCIE ROOT", "DEVICE", "PRODUCT", "NVLINK", "STATE", "CLAIMS")
_FIELDS: Final = ("claims", "slices")
_MAX_LINKED: Final = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="")


def run(args: argparse.Namespace) -> int:
    state = with_claim_gaps(state_of(args, only=_FIELDS))
    found = topology_of(state, node=args.node)
    if args.output == "json":
        print_json("TopologyList", {"gaps": state.gaps, "items": to_builtins(found)})
        return 0
    tell_gaps(state)
    if found:
        print_table(HEADINGS, [row(one) for one in found])
        return 0
    unknown = not state.slices and is_unread(state, "resourceslices")
    print("Cannot read the published devices." if unknown else "No device has topology attributes.")
    return 1 if unknown else 0


def row(one: TopologyRow) -> Sequence[str]:
    product = one.product or f"{one.type or 'device'} of {one.driver}"
    place = (one.node, ",".join(map(str, one.numa)), one.pcie_root, one.device)
    return (*place, product, linked(one), one.state or UNKNOWN, listed(one.claims))


def linked(one: TopologyRow) -> str:
    """Return ``pair: gpu-0 gpu-1``, ``switch: 8 GPUs`` or "" for a GPU without an island."""
    if not one.linked:
        return ""
    kind = "pair" if len(one.linked) == 2 and one.link_type == "direct" else one.link_type or "linked"
    return f"{kind}: " + (" ".join(one.linked) if len(one.linked) <= _MAX_LINKED else f"{len(one.linked)} GPUs")
