"""``kubectl dra quota``: what namespaces may have of GPUs by their ResourceQuotas, and what they have."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from dra_driver.core.command_line.table import show
from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kubectl.commands.source import client, kubeconfig_of, wants_colour
from dra_driver.kubectl.commands.usage_source import add_usage_source, number, print_csv, read_use, seconds, tell_source
from dra_driver.kubectl.usage import quota
from dra_driver.kubectl.usage.quota import QuotaRow, UnlimitedClass, allocated, class_of
from dra_driver.kubectl.usage.waste import DeviceSize, WasteFinding, judge

DESCRIPTION: Final = """\
Show for each namespace the ResourceQuotas about devices and claims: what they allow, what Kubernetes counts (what is
requested, whatever is allocated), and what is left. With --idle, how many of the devices belong to claims that are
idle, as `kubectl dra idle` finds them. A class that a namespace uses and no quota counts is listed without a limit.
"""
_HEADINGS: Final = ("NAMESPACE", "QUOTA", "LIMIT OF", "HARD", "USED", "LEFT", "IDLE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only this namespace (default: all)")
    parser.add_argument("--idle", action="store_true", help="ask the exporters, or --prometheus, which claims are idle")
    parser.add_argument("--idle-for", metavar="TIME", default="30m", help="how long a claim is unused (default: 30m)")
    add_usage_source(parser, window="24h")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    after_s = seconds(args.idle_for, "--idle-for")
    api = client(kubeconfig_of(args))
    quotas = _quotas(api, args.namespace)
    claims = api.list(paths.resource_claims(args.namespace))["items"]
    classes = api.list(paths.device_classes())["items"]
    extended = [str(item.get("spec", {}).get("extendedResourceName") or "") for item in classes]
    idle = _idle(args, claims, after_s) if args.idle else None
    rows = quota.rows(quotas, filter(None, extended), idle)
    free = quota.unlimited(claims, rows)
    if args.output == "json":
        items = [{**asdict(row), "left": row.left} for row in rows]
        document = {"items": [_wire(item) for item in items], "unlimited": [_wire(asdict(each)) for each in free]}
        print(json.dumps({"schemaVersion": 1, "kind": "QuotaReport", **document}, indent=2))
    elif args.output == "csv":
        print_csv([*map(str.lower, _HEADINGS)], [_values(row) for row in rows] + [_unlimited(each) for each in free])
    elif rows or free:
        cells = [[number(cell) for cell in row] for row in map(_values, rows)]
        cells += [[str(cell) for cell in _unlimited(each)] for each in free]
        show(_HEADINGS, cells, colour=wants_colour())
    else:
        print("No namespace has a quota on devices or claims, or devices.")
    return 0


def _quotas(api: Any, namespace: str | None) -> Sequence[Mapping[str, Any]]:
    """None, with a note, from an API server that does not serve them."""
    try:
        found: Sequence[Mapping[str, Any]] = api.list(paths.resource_quotas(namespace))["items"]
    except NotFoundError:
        print("note: this API server has no ResourceQuotas, as that of `dra-driver sim up`", file=sys.stderr)
        return ()
    return found


def _idle(args: argparse.Namespace, claims: Sequence[Mapping[str, Any]], after_s: int) -> dict[tuple[str, str], int]:
    """Devices of idle claims by namespace and class."""
    report = read_use(args, "24h")
    tell_source(report)
    rows = judge(report.uses, idle_after_s=after_s, size_of=lambda _: DeviceSize())
    names = {(row.use.namespace, row.use.claim) for row in rows if row.finding is WasteFinding.IDLE}
    counts: dict[tuple[str, str], int] = {}
    for claim in claims:
        metadata = claim.get("metadata") or {}
        namespace = str(metadata.get("namespace"))
        if (namespace, str(metadata.get("name"))) in names:
            for request, devices in allocated(claim).items():
                key = (namespace, class_of(claim, request))
                counts[key] = counts.get(key, 0) + devices
    if not report.uses:
        print("note: nothing is known of any claim, so none counts as idle", file=sys.stderr)
    return counts


def _values(row: QuotaRow) -> Sequence[Any]:
    idle = "" if row.idle is None else row.idle
    return row.namespace, row.quota, row.device_class or row.limit, row.hard, row.used, row.left, idle


def _unlimited(each: UnlimitedClass) -> Sequence[Any]:
    return each.namespace, "", each.device_class, "no limit", each.devices, "no limit", ""


def _wire(item: Mapping[str, Any]) -> dict[str, Any]:
    named = {"device_class": "deviceClass"}
    return {named.get(key, key): value for key, value in item.items()}
