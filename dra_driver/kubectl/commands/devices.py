"""``kubectl dra devices``: list the published devices of all drivers, and the claims and pods that use them."""

import argparse
import os
from collections.abc import Hashable, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.text import UNKNOWN, gib, listed
from dra_driver.kubectl.capacity import (
    ClaimDevice,
    DeviceList,
    DeviceRow,
    Holder,
    amounts_text,
    devices_of,
    with_claim_gaps,
)
from dra_driver.kubectl.commands.listing import Listed, add_list, print_list
from dra_driver.kubectl.commands.source import add_source, is_unread, on_selected_nodes, state_of
from dra_driver.kubectl.explain import with_defaults

DESCRIPTION: Final = (
    "List published devices with the claims that use them; -o wide adds driver, product, taints and pods. "
    "(N) after a name counts equal, unused placements of a MIG profile."
)
COLUMNS: Final = (
    TableColumn[DeviceRow]("NODE", lambda row: row.node),
    TableColumn[DeviceRow]("DEVICE", lambda row: row.device),
    TableColumn[DeviceRow](
        "TYPE",
        lambda row: f"{row.type} ({row.sharing})" if row.sharing else row.type if row.published else "(not published)",
    ),
    TableColumn[DeviceRow]("MEMORY", lambda row: "" if row.memory_bytes is None else gib(row.memory_bytes)),
    TableColumn[DeviceRow](
        "STATE", lambda row: f"{UNKNOWN if row.holders is None else row.state}{', tainted' if row.taints else ''}"
    ),
    TableColumn[DeviceRow](
        "CLAIMS",
        lambda row: _held(row, [use_text(f"{each.namespace}/{each.claim}", each) for each in row.holders or ()]),
    ),
    TableColumn[DeviceRow]("LEFT", lambda row: amounts_text(row.left) if row.left and row.holders else "", wide=True),
    TableColumn[DeviceRow](
        "PODS", lambda row: _held(row, [pod for each in row.holders or () for pod in each.pods]), wide=True
    ),
    TableColumn[DeviceRow]("TAINTS", lambda row: ",".join(row.taints), wide=True),
    TableColumn[DeviceRow](
        "PRODUCT", lambda row: f"{row.profile} of {row.product}" if row.profile else row.product, wide=True
    ),
    TableColumn[DeviceRow]("DRIVER", lambda row: row.driver, wide=True),
)
_FIELDS: Final = ("claims", "slices", "taint_rules")
_SHARE_COUNT: Final = "shares"  # a capacity of which each share consumes one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE|NODE/DEVICE", help="only these nodes or devices")
    parser.add_argument("--node", metavar="NAME", default="", help="only devices on this node")
    parser.add_argument("--driver", metavar="NAME", default="", help="only devices of this driver")
    parser.add_argument("--all", action="store_true", help="one line per placement of a MIG profile")
    add_list(parser, labels_of="nodes", namespaced=False)
    add_source(parser)


def run(args: argparse.Namespace) -> int:
    namespace = "" if args.all_namespaces else args.namespace or ""

    def read() -> Listed[DeviceRow]:
        state = state_of(args, only=(*_FIELDS, *(("nodes",) if args.selector else ())))
        state = with_claim_gaps(with_defaults(on_selected_nodes(args, state)))
        selected = {item["spec"].get("nodeName") for item in state.slices} if args.selector else None
        found = [
            row
            for row in devices_of(state, node=args.node, driver=args.driver, namespace=namespace)
            if (not args.nodes or row.node in args.nodes or f"{row.node}/{row.device}" in args.nodes)
            and (selected is None or row.node in selected)  # claims also name devices of other nodes
        ]
        every = args.all or args.output not in ("table", "wide")
        return Listed(
            document=DeviceList(gaps=state.gaps, items=found),
            rows=found if every else grouped(found),
            columns=COLUMNS,
            name=lambda row: f"{row.node}/{row.device}",
            noun="devices",
            unknown="the published devices cannot be read" if is_unread(state, "resourceslices") else "",
        )

    return print_list(args, read)


def grouped(devices: Sequence[DeviceRow]) -> list[DeviceRow]:
    """Return the rows; unused placements of one profile on one GPU share one, such as
    ``gpu-0-mig-1g10gb-19-* (7)``."""
    groups: dict[Hashable, list[DeviceRow]] = {}
    for number, device in enumerate(devices):
        alike = (
            device.pool,
            device.parent,
            device.profile,
            device.type,
            device.memory_bytes,
            device.state,
            device.taints,
        )
        alone = not device.profile or not device.published or device.holders or device.holders is None
        groups.setdefault(number if alone else alike, []).append(device)
    return [_group(group) for group in groups.values()]


def _group(group: Sequence[DeviceRow]) -> DeviceRow:
    if len(group) == 1:
        return group[0]
    common = os.path.commonprefix([each.device for each in group])  # noqa: RUF071  names, not paths
    return replace(group[0], device=f"{common}* ({len(group)})")


def _held(row: DeviceRow, names: Sequence[str]) -> str:
    return UNKNOWN if row.holders is None else listed(names)


def use_text(name: str, use: Holder | ClaimDevice) -> str:
    """Return the name with the capacities that a share consumes."""
    consumed = {name: value for name, value in use.consumed.items() if name != _SHARE_COUNT}
    about = "admin access" if use.admin_access else amounts_text(consumed)
    return f"{name} ({about})" if about else name
