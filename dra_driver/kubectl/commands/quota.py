"""``kubectl dra quota``: compare ResourceQuotas with the GPUs that namespaces use."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.source import client, kubeconfig_of, print_json, print_table
from dra_driver.kubectl.commands.usage_source import Cell, note_of
from dra_driver.kubectl.usage import quota
from dra_driver.kubectl.usage.idle_report import DeviceSize, UsageFinding, classify
from dra_driver.kubectl.usage.quota import CountedClaim, QuotaRow, UnlimitedClass

if TYPE_CHECKING:
    from dra_driver.kube.rest import RestClient

DESCRIPTION: Final = """\
Show each namespace's ResourceQuotas for devices and claims: limit, use (Kubernetes counts requests, not allocations)
and rest. --idle counts the devices of idle claims. Classes in use without a quota are listed as "no limit".
"""
_HEADINGS: Final = ("NAMESPACE", "QUOTA", "LIMIT OF", "HARD", "USED", "LEFT", "IDLE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only this namespace (default: all)")
    parser.add_argument("--idle", action="store_true", help="query exporters or Prometheus for idle claims")
    parser.add_argument("--idle-for", metavar="TIME", default="30m", help="minimum idle time (default: 30m)")
    usage_source.add_usage_source(parser, window="24h")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    after_s = usage_source.seconds(args.idle_for, "--idle-for")
    api = client(kubeconfig_of(args))
    items = _quotas(api, args.namespace)
    quotas = read_all(quota.ResourceQuota, items, note_of("ResourceQuota"))
    claims = read_all(CountedClaim, api.list(paths.resource_claims(args.namespace))["items"], note_of("ResourceClaim"))
    classes = read_all(quota.ExtendedClass, api.list(paths.device_classes())["items"], note_of("DeviceClass"))
    extended = (each.spec.extended_resource_name for each in classes)
    idle = _idle(args, claims, after_s) if args.idle else None
    rows = quota.rows(quotas, filter(None, extended), idle)
    free = quota.unlimited(claims, rows)
    if len(quotas) < len(items):
        print("note: unlimited classes are not listed: some quotas are unreadable", file=sys.stderr)
        free = []
    if args.output == "json":
        reported = [{**to_builtins(row), "left": row.left} for row in rows]
        print_json("QuotaReport", {"items": reported, "unlimited": to_builtins(free)})
    elif args.output == "csv":
        usage_source.print_csv(
            [*map(str.lower, _HEADINGS)], [_values(row) for row in rows] + [_unlimited(each) for each in free]
        )
    elif rows or free:
        cells = [[usage_source.number(cell) for cell in row] for row in map(_values, rows)]
        cells += [[str(cell) for cell in _unlimited(each)] for each in free]
        print_table(_HEADINGS, cells)
    else:
        print("No quotas on devices or claims, and no devices in use.")
    return 0


def _quotas(api: "RestClient", namespace: str | None) -> Sequence[object]:
    try:
        found: Sequence[object] = api.list(paths.resource_quotas(namespace))["items"]
    except NotFoundError:
        print("note: the API server does not support ResourceQuotas (as in `dra-driver sim up`)", file=sys.stderr)
        return ()
    return found


def _idle(args: argparse.Namespace, claims: Sequence[CountedClaim], after_s: int) -> Counter[tuple[str, str]]:
    report = usage_source.read_use(args, "24h")
    usage_source.tell_source(report)
    rows = classify(report.uses, idle_after_s=after_s, size_of=lambda _: DeviceSize())
    idle = {(row.use.namespace, row.use.claim) for row in rows if row.finding is UsageFinding.IDLE}
    if not report.uses:
        print("note: no usage data for any claim, so none counts as idle", file=sys.stderr)
    return Counter(
        (claim.metadata.namespace, name)
        for claim in claims
        if (claim.metadata.namespace, claim.metadata.name) in idle
        for name in quota.classes_held(claim)
    )


def _values(row: QuotaRow) -> Sequence[Cell]:
    idle = "" if row.idle is None else row.idle
    return row.namespace, row.quota, row.device_class or row.limit, row.hard, row.used, row.left, idle


def _unlimited(each: UnlimitedClass) -> Sequence[Cell]:
    return each.namespace, "", each.device_class, "no limit", each.devices, "no limit", ""
