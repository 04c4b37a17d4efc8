"""``kubectl dra claims``: lists claims with their state, requests, devices and pods."""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.core.command_line.table import show
from dra_driver.core.text import listed
from dra_driver.kubectl.capacity import claims_of, to_wire
from dra_driver.kubectl.commands.devices import consumed_text
from dra_driver.kubectl.commands.source import add_source, state_of, tell_gaps, wants_colour

DESCRIPTION: Final = (
    "List ResourceClaims of all namespaces with their requests, node, devices and pods. "
    "`kubectl dra explain claim/NAME` explains why a claim is pending."
)
HEADINGS: Final = ("NAMESPACE", "CLAIM", "STATE", "NODE", "REQUESTS", "DEVICES", "PODS", "AGE")
_FIELDS: Final = ("claims", "slices")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", default="", help="only claims with devices on this node")
    parser.add_argument("--pending", action="store_true", help="only claims that are not allocated yet")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="only claims of this namespace (default: all namespaces)")


def run(args: argparse.Namespace) -> int:
    state = state_of(args, only=_FIELDS)
    found = claims_of(state, datetime.now(UTC), node=args.node, namespace=args.namespace or "")
    if args.pending:
        found = [claim for claim in found if claim.state == "pending"]
    if args.output == "json":
        document = {"gaps": list(state.gaps), "items": to_wire(found)}
        print(json.dumps({"schemaVersion": 1, "kind": "ClaimList", **document}, indent=2))
        return 0
    tell_gaps(state)
    if found:
        show(HEADINGS, [row(claim) for claim in found], colour=wants_colour())
        return 0
    unknown = not state.claims and any(gap.startswith("resourceclaims:") for gap in state.gaps)
    print("Which claims there are is not known." if unknown else "No matching claims.")
    return 1 if unknown else 0


def row(claim: Any) -> Sequence[str]:
    devices = [_device(device) for device in claim.devices]
    return (
        claim.namespace,
        claim.name,
        claim.state,
        listed(claim.nodes),
        listed(claim.requests),
        listed(devices),
        listed(claim.pods),
        age(claim.age_s),
    )


def _device(device: Any) -> str:
    about = "admin access" if device.admin_access else consumed_text(device.consumed)
    return f"{device.device} ({about})" if about else str(device.device)


def age(seconds: int | None) -> str:
    """Returns the age in the largest unit: ``3d``, ``4h``, ``12m``; "?" when unknown."""
    if seconds is None:
        return "?"
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if seconds >= size), "0s")
