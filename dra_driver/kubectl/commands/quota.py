"""``kubectl dra quota``: compare ResourceQuotas with the GPUs that namespaces use."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.core.request_rights import missing_right
from dra_driver.core.text import gib, printable
from dra_driver.kube import paths
from dra_driver.kube.objects.resource import DeviceClass
from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.idle import add_idle_for
from dra_driver.kubectl.commands.listing import Listed, add_list, namespace_column, print_list, scope_of, selected
from dra_driver.kubectl.commands.source import client, kubeconfig_of, listed_of_kueue, tell_gaps
from dra_driver.kubectl.commands.usage_source import note_of, number
from dra_driver.kubectl.usage import quota
from dra_driver.kubectl.usage.idle_report import DeviceSize, UsageFinding, classify
from dra_driver.kubectl.usage.quota import CountedClaim, QuotaList, QuotaRow

if TYPE_CHECKING:
    from dra_driver.kube.rest import RestClient

DESCRIPTION: Final = """\
Show each namespace's ResourceQuotas for devices and claims: limit, use (Kubernetes counts requests, not allocations)
and rest; and quotas of Kueue for devices. --idle counts the devices of idle claims. Classes in use without a quota
are listed as "no limit".
"""
_WINDOW_S: Final = 86_400
COLUMNS: Final = (
    TableColumn[QuotaRow]("QUOTA", lambda row: row.quota),
    TableColumn[QuotaRow]("LIMIT OF", lambda row: row.device_class or row.limit),
    TableColumn[QuotaRow]("HARD", lambda row: _amount(row, row.hard) if row.quota else "no limit"),
    TableColumn[QuotaRow]("USED", lambda row: _amount(row, row.used)),
    TableColumn[QuotaRow]("LEFT", lambda row: _amount(row, row.left) if row.quota else "no limit"),
    TableColumn[QuotaRow]("IDLE", lambda row: "" if row.idle is None else str(row.idle)),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--idle", action="store_true", help="query exporters or Prometheus for idle claims")
    add_idle_for(parser)
    usage_source.add_usage_source(parser, window_s=_WINDOW_S)
    add_list(parser, labels_of="quotas", csv=True)


def run(args: argparse.Namespace) -> int:
    namespace = scope_of(args)

    def read() -> Listed[QuotaRow]:
        rows = _rows(args, namespace)
        return Listed(
            document=QuotaList(items=rows),
            rows=rows,
            columns=[*namespace_column(args, lambda row: row.namespace), *COLUMNS],
            namespace=namespace,
            name=_name,
            noun="quotas on devices or claims, and no devices in use",
        )

    return print_list(args, read)


def _name(row: QuotaRow) -> str:
    kind, _, name = row.quota.rpartition("/")  # only quotas of Kueue have a kind
    kind = f"{kind}.kueue.x-k8s.io" if kind else "resourcequota"
    return f"{kind}/{name}" if name else f"deviceclass.resource.k8s.io/{row.device_class}"


def _rows(args: argparse.Namespace, namespace: str | None) -> list[QuotaRow]:
    api = client(kubeconfig_of(args))
    items = selected(args.selector, _quotas(api, namespace))
    quotas = read_all(quota.ResourceQuota, items, note_of("ResourceQuota"))
    claims = read_all(CountedClaim, api.list(paths.resource_claims(namespace))["items"], note_of("ResourceClaim"))
    classes = read_all(DeviceClass, api.list(paths.device_classes())["items"], note_of("DeviceClass"))
    extended = (each.spec.extended_resource_name for each in classes)
    idle = _idle(args, claims) if args.idle else None
    rows = quota.rows(quotas, filter(None, extended), idle)
    if args.selector:
        return rows
    rows += _kueue_rows(api)
    if len(quotas) < len(items):
        print("note: unlimited classes are not listed: some quotas are unreadable", file=sys.stderr)
        return rows
    return rows + quota.unlimited(claims, rows)


def _quotas(api: "RestClient", namespace: str | None) -> Sequence[dict[str, object]]:
    try:
        found: Sequence[dict[str, object]] = api.list(paths.resource_quotas(namespace))["items"]
    except NotFoundError:
        print("note: the API server does not support ResourceQuotas (as in `dra-driver sim up`)", file=sys.stderr)
        return ()
    return found


def _kueue_rows(api: "RestClient") -> list[QuotaRow]:
    try:
        return quota.queue_rows(listed_of_kueue(api, paths.cluster_queues()) or ())
    except KubernetesApiError as error:
        print(f"note: quotas of Kueue are not listed: {printable(missing_right(error))}", file=sys.stderr)
        return []


def _amount(row: QuotaRow, value: int | None) -> str:
    return gib(value) if row.limit.endswith("memory") else number(value)


def _idle(args: argparse.Namespace, claims: Sequence[CountedClaim]) -> Counter[tuple[str, str]]:
    report = usage_source.read_use(args, _WINDOW_S)
    usage_source.tell_source(report)
    tell_gaps(report.gaps)
    rows = classify(report.uses, idle_after_s=args.idle_for, size_of=lambda _: DeviceSize())
    idle = {(row.namespace, row.claim) for row in rows if row.finding is UsageFinding.IDLE}
    if not report.uses:
        print("note: no usage data for any claim, so none counts as idle", file=sys.stderr)
    return Counter(
        (str(claim.metadata.namespace), name)
        for claim in claims
        if (claim.metadata.namespace, claim.metadata.name) in idle
        for name in quota.classes_held(claim)
    )
