"""``kubectl dra claims``: list claims with their state, requests, devices and pods."""

import argparse
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.text import listed, span
from dra_driver.kubectl.capacity import ClaimDevice, ClaimList, ClaimRow, claims_of, with_claim_gaps
from dra_driver.kubectl.commands import listing
from dra_driver.kubectl.commands.devices import use_text
from dra_driver.kubectl.commands.source import add_source, is_unread, state_of
from dra_driver.kubectl.explain import with_taint_rules

DESCRIPTION: Final = (
    "List ResourceClaims with their node and devices; -o wide adds requests and pods. "
    "`kubectl dra explain claim NAME` explains why a claim is pending."
)
COLUMNS: Final = (
    TableColumn[ClaimRow]("CLAIM", lambda row: row.name),
    TableColumn[ClaimRow]("STATE", lambda row: row.state),
    TableColumn[ClaimRow]("NODE", lambda row: listed(row.nodes)),
    TableColumn[ClaimRow]("DEVICES", lambda row: listed(map(device_text, row.devices))),
    TableColumn[ClaimRow]("AGE", lambda row: span(row.age_s), live=True),
    TableColumn[ClaimRow]("REQUESTS", lambda row: listed(map(str, row.requests)), wide=True),
    TableColumn[ClaimRow]("PODS", lambda row: listed(row.pods), wide=True),
    TableColumn[ClaimRow](
        "TAINTS", lambda row: listed(each for device in row.devices for each in device.unhealthy), wide=True
    ),
)
_FIELDS: Final = ("claims", "slices", "taint_rules")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these claims")
    parser.add_argument("--node", metavar="NAME", default="", help="only claims with devices on this node")
    parser.add_argument("--pending", action="store_true", help="only unallocated claims")
    listing.add_list(parser)
    add_source(parser)


def run(args: argparse.Namespace) -> int:
    namespace = listing.scope_of(args)
    name = "resourceclaim.resource.k8s.io/{}".format

    def read() -> listing.Listed[ClaimRow]:
        state = with_taint_rules(state_of(args, namespace=namespace, only=_FIELDS))
        state = with_claim_gaps(replace(state, claims=tuple(listing.selected(args.selector, state.claims))))
        every = claims_of(state, datetime.now(UTC), node=args.node, namespace=namespace or "")
        is_unknown = is_unread(state, "resourceclaims")
        known = every if is_unknown else listing.named(args, every, lambda row: row.name)
        found = [row for row in known if not args.pending or row.state == "pending"]
        return listing.Listed(
            document=ClaimList(gaps=state.gaps, items=found),
            rows=found,
            columns=[*listing.namespace_column(args, lambda row: row.namespace), *COLUMNS],
            namespace=namespace,
            name=lambda row: name(row.name),
            noun="claims",
            unknown="the claims cannot be read" if is_unknown else "",
        )

    return listing.print_list(args, read)


def device_text(device: ClaimDevice) -> str:
    """Return the device with its grant and its health: ``gpu-0 (memory 10.0 GiB)``, ``gpu-3 (unhealthy)``."""
    trouble = " (not published)" if device.published is False else " (unhealthy)" if device.unhealthy else ""
    return f"{use_text(device.device, device)}{trouble}"
