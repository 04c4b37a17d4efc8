"""``kubectl dra topology``: show linked GPUs, GPUs of one PCIe root or NUMA node, and the claims that hold them."""

import argparse
from typing import Final

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.text import UNKNOWN, listed
from dra_driver.kubectl.capacity import TopologyList, TopologyRow, topology_of, with_claim_gaps
from dra_driver.kubectl.commands.listing import Listed, add_output, add_selector, add_watch, print_list
from dra_driver.kubectl.commands.source import add_source, is_unread, on_selected_nodes, state_of

DESCRIPTION: Final = (
    "Show NUMA node, PCIe root, rail, NVLink connections and claims of GPUs and other drivers' devices such as network"
    " cards, from ResourceSlices."
)
_MAX_LINKED: Final = 4


def linked(one: TopologyRow) -> str:
    """Return ``pair: gpu-0 gpu-1``, ``switch: 8 GPUs`` or "" for a GPU without an island."""
    if not one.linked:
        return ""
    kind = "pair" if len(one.linked) == 2 and one.link_type == "direct" else one.link_type or "linked"
    return f"{kind}: " + (" ".join(one.linked) if len(one.linked) <= _MAX_LINKED else f"{len(one.linked)} GPUs")


COLUMNS: Final = (
    TableColumn[TopologyRow]("NODE", lambda row: row.node),
    TableColumn[TopologyRow]("NUMA", lambda row: ",".join(map(str, row.numa))),
    TableColumn[TopologyRow]("DEVICE", lambda row: row.device),
    TableColumn[TopologyRow]("SAME ROOT", lambda row: " ".join(row.same_root)),
    TableColumn[TopologyRow]("RAIL", lambda row: ",".join(map(str, row.rails))),
    TableColumn[TopologyRow]("NVLINK", linked),
    TableColumn[TopologyRow]("STATE", lambda row: f"{row.state or UNKNOWN}{', tainted' if row.taints else ''}"),
    TableColumn[TopologyRow]("PCIE ROOT", lambda row: row.pcie_root, wide=True),
    TableColumn[TopologyRow](
        "PRODUCT", lambda row: row.product or f"{row.type or 'device'} of {row.driver}", wide=True
    ),
    TableColumn[TopologyRow]("CLAIMS", lambda row: listed(row.claims), wide=True),
)
_FIELDS: Final = ("claims", "slices")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="only these nodes")
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    add_selector(parser, "nodes")
    add_output(parser, "wide", "name", "json", "yaml")
    add_watch(parser)
    add_source(parser)


def run(args: argparse.Namespace) -> int:
    def read() -> Listed[TopologyRow]:
        state = state_of(args, only=(*_FIELDS, *(("nodes",) if args.selector else ())))
        state = with_claim_gaps(on_selected_nodes(args, state))
        found = [row for row in topology_of(state, node=args.node) if not args.nodes or row.node in args.nodes]
        return Listed(
            document=TopologyList(gaps=state.gaps, items=found),
            rows=found,
            columns=COLUMNS,
            name=lambda row: f"{row.node}/{row.device}",
            noun="devices with topology attributes",
            unknown="the published devices cannot be read" if is_unread(state, "resourceslices") else "",
        )

    return print_list(args, read)
