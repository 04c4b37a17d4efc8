"""``kubectl dra devices``: list the published devices of all drivers, and the claims and pods that use them."""

import argparse
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from msgspec import to_builtins

from dra_driver.core.text import listed
from dra_driver.kubectl.capacity import ClaimDevice, DeviceRow, Holder, devices_of, with_claim_gaps
from dra_driver.kubectl.commands.source import add_source, is_unread, print_json, print_table, state_of, tell_gaps
from dra_driver.kubectl.explain import with_defaults

DESCRIPTION: Final = (
    "List published devices with the claims that use them and the pods for which these claims are reserved."
)
UNKNOWN: Final = "?"
HEADINGS: Final = ("NODE", "DRIVER", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "STATE", "TAINTS", "CLAIMS", "PODS")
_FIELDS: Final = ("claims", "slices", "taint_rules")
_SHARE_COUNT: Final = "shares"  # a capacity of which each share consumes one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", default="", help="only devices on this node")
    parser.add_argument("--driver", metavar="NAME", default="", help="only devices of this driver")
    parser.add_argument("--all", action="store_true", help="one line per placement of a MIG profile")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="only devices used by claims of this namespace")


def run(args: argparse.Namespace) -> int:
    state = with_claim_gaps(with_defaults(state_of(args, only=_FIELDS)))
    namespace = args.namespace or ""
    found = devices_of(state, node=args.node, driver=args.driver, namespace=namespace)
    if args.output == "json":
        print_json("DeviceList", {"gaps": state.gaps, "items": to_builtins(found)})
        return 0
    tell_gaps(state)
    if found:
        print_table(HEADINGS, rows(found, every=args.all))
        return 0
    if not state.slices and is_unread(state, "resourceslices"):
        print("Cannot read the published devices.")
        return 1
    filtered = args.node or args.driver or namespace
    print("No matching devices are published." if filtered else "No devices are published.")
    return 0


def rows(devices: Sequence[DeviceRow], *, every: bool) -> list[Sequence[str]]:
    """Return a row for each device; without ``every``, unused placements of one profile on one GPU share a row."""
    groups: dict[Hashable, list[tuple[str, Sequence[str]]]] = {}
    for number, device in enumerate(devices):
        cells = row(device)
        alike = (device.pool, device.parent, *cells[:2], *cells[3:])
        alone = every or not device.profile or not device.published or device.holders
        groups.setdefault(number if alone else alike, []).append((device.device, cells))
    shown: list[Sequence[str]] = []
    for group in groups.values():
        name, cells = group[0]
        if len(group) > 1:
            common = os.path.commonprefix([each for each, _ in group])  # noqa: RUF071  names, not paths
            name = f"{common}* ({len(group)})"
        shown.append((*cells[:2], name, *cells[3:]))
    return shown


def row(device: DeviceRow) -> Sequence[str]:
    if device.holders is None:
        state, claims, pods = UNKNOWN, [UNKNOWN], [UNKNOWN]
    else:  # such as ``in shares, left: memory 20Gi, computePercent 30``
        state = f"{device.state}, left: {amounts(device.left)}" if device.left and device.holders else device.state
        claims = [use_text(f"{holder.namespace}/{holder.claim}", holder) for holder in device.holders]
        pods = [pod for holder in device.holders for pod in holder.pods]
    kind = device.type if device.published else "(not published)"
    kind += f" ({device.sharing})" if device.sharing else ""
    product = f"{device.profile} of {device.product}" if device.profile else device.product
    names = (device.node, device.driver, device.device, kind, product, device.memory)
    return (*names, state, ",".join(device.taints), listed(claims), listed(pods))


def amounts(capacities: Mapping[str, str]) -> str:
    """Return ``memory 50Gi, computePercent 70``, memory first."""
    names = sorted(capacities, key=lambda name: (name != "memory", name))
    return ", ".join(f"{name} {capacities[name]}" for name in names)


def use_text(name: str, use: Holder | ClaimDevice) -> str:
    """Return the name with the capacities that a share consumes."""
    consumed = {name: value for name, value in use.consumed.items() if name != _SHARE_COUNT}
    about = "admin access" if use.admin_access else amounts(consumed)
    return f"{name} ({about})" if about else name
