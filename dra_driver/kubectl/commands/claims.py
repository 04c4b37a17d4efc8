"""``kubectl dra claims``: list claims with their state, requests, devices and pods."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import to_builtins

from dra_driver.core.text import listed
from dra_driver.kubectl.capacity import ClaimDevice, ClaimRow, claims_of, with_claim_gaps
from dra_driver.kubectl.commands.devices import use_text
from dra_driver.kubectl.commands.source import add_source, is_unread, print_json, print_table, state_of, tell_gaps
from dra_driver.kubectl.explain import with_taint_rules

DESCRIPTION: Final = (
    "List ResourceClaims with their requests, node, devices and pods. "
    "`kubectl dra explain claim/NAME` explains why a claim is pending."
)
HEADINGS: Final = ("NAMESPACE", "CLAIM", "STATE", "NODE", "REQUESTS", "DEVICES", "PODS", "AGE")
_FIELDS: Final = ("claims", "slices", "taint_rules")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", default="", help="only claims with devices on this node")
    parser.add_argument("--pending", action="store_true", help="only unallocated claims")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_source(parser, namespace_help="only claims of this namespace (default: all namespaces)")


def run(args: argparse.Namespace) -> int:
    state = with_claim_gaps(with_taint_rules(state_of(args, only=_FIELDS)))
    found = claims_of(state, datetime.now(UTC), node=args.node, namespace=args.namespace or "")
    if args.pending:
        found = [claim for claim in found if claim.state == "pending"]
    if args.output == "json":
        print_json("ClaimList", {"gaps": state.gaps, "items": to_builtins(found)})
        return 0
    tell_gaps(state)
    if found:
        print_table(HEADINGS, [row(claim) for claim in found])
        return 0
    unknown = not state.claims and is_unread(state, "resourceclaims")
    print("Cannot read the claims." if unknown else "No matching claims.")
    return 1 if unknown else 0


def row(claim: ClaimRow) -> Sequence[str]:
    devices = [f"{use_text(device.device, device)}{_trouble(device)}" for device in claim.devices]
    names, lists = (claim.namespace, claim.name, claim.state), (claim.nodes, claim.requests, devices, claim.pods)
    return *names, *map(listed, lists), age(claim.age_s)


def _trouble(device: ClaimDevice) -> str:
    if device.published is False:
        return " (not published)"
    return f" (unhealthy: {listed(device.unhealthy)})" if device.unhealthy else ""


def age(seconds: int | None) -> str:
    """Return the age in the largest unit: ``3d``, ``4h``, ``12m``; "?" when unknown."""
    if seconds is None:
        return "?"
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if seconds >= size), "0s")
