"""``kubectl dra devices``: what the nodes have published, and who has it.

Owns flags and the choice of columns. The list is ``dra_driver.capacity``'s: devices of any driver, as the scheduler
sees them.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from dra_driver.cli.source import add_source, state_of, wants_colour
from dra_driver.cli.table import show

UNKNOWN: Final = "?"
HEADINGS: Final = ("NODE", "DRIVER", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "TAINTS", "CLAIMS", "PODS")
_FIELDS: Final = ("claims", "slices", "taint_rules")
_MOST_HOLDERS: Final = 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "devices",
        help="list published devices and the claims that hold them",
        description="List the devices that drivers have published as ResourceSlices, the claims that hold them and "
        "the pods that these are reserved for.",
        allow_abbrev=False,
    )
    parser.add_argument("--node", metavar="NAME", default="", help="only devices of this node")
    parser.add_argument("--driver", metavar="NAME", default="", help="only devices of this driver")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="only devices that claims of this namespace hold")


def run(args: argparse.Namespace) -> int:
    from dra_driver.capacity import devices_of, to_wire
    from dra_driver.explain.defaults import completed

    state = completed(state_of(args, only=_FIELDS))
    namespace = args.namespace or ""
    found = devices_of(state, node=args.node, driver=args.driver, namespace=namespace)
    if args.output == "json":
        document = {"gaps": list(state.gaps), "items": to_wire(found)}
        print(json.dumps({"schemaVersion": 1, "kind": "DeviceList", **document}, indent=2))
    elif found:
        show(HEADINGS, [row(device) for device in found], colour=wants_colour())
    else:
        filtered = args.node or args.driver or namespace
        print("No such devices are published." if filtered else "No devices are published.")
    return 0


def row(device: Any) -> Sequence[str]:
    """The columns of one `DeviceRow`."""
    if device.holders is None:
        claims, pods = [UNKNOWN], [UNKNOWN]
    else:
        claims = list(dict.fromkeys(_claim(holder) for holder in device.holders))
        pods = list(dict.fromkeys(pod for holder in device.holders for pod in holder.pods))
    kind = device.type if device.published else "(not published)"
    product = f"{device.profile} of {device.product}" if device.profile else device.product
    names = (device.node, device.driver, device.device, kind, product, device.memory)
    return (*names, ",".join(device.taints), listed(claims), listed(pods))


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - _MOST_HOLDERS
    return ",".join(names[:_MOST_HOLDERS]) + (f" and {more} more" if more > 0 else "")


def _claim(holder: Any) -> str:
    return f"{holder.namespace}/{holder.claim}{' (admin access)' if holder.admin_access else ''}"
