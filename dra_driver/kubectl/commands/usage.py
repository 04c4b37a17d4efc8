"""``kubectl dra usage``: show the use of GPUs by claims, pods, namespaces and nodes."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.text import gib, listed, printable, span
from dra_driver.kube import paths
from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.listing import Listed, add_list, namespace_column, print_list, scope_of
from dra_driver.kubectl.commands.source import client, kubeconfig_of
from dra_driver.kubectl.commands.usage_source import energy, note_of, number, percent
from dra_driver.kubectl.usage import device_use
from dra_driver.kubectl.usage.device_use import (
    ClaimDeviceUse,
    LabelledClaim,
    LabelledPod,
    UsageList,
    UsageSumList,
    UseReport,
    UseSum,
    json_key,
    summed,
)

DESCRIPTION: Final = """\
Show used and granted memory, utilization and idle time per device of a claim, or per pod, namespace or node; -o wide
adds peak, energy, processes and pods. Queries the usage exporters through the API server, or Prometheus. Standard
error names the source and the window. `kubectl dra top` sorts by use.

  USED     current memory of the claim's processes
  PEAK     maximum in the window
  SM       device utilization: current, or the mean over the window with --prometheus
  ENERGY   in the window; ~ marks an estimate: hardware measures whole GPUs only
  IDLE     time since the last use; ? is unknown, not idle
"""
_WINDOW_S: Final = 3600
_BY_LABEL: Final = "label:"
_KINDS: Final = ("device", "claim", "pod", "namespace", "node")
DEVICES: Final = (
    TableColumn[ClaimDeviceUse]("CLAIM", lambda use: use.claim),
    TableColumn[ClaimDeviceUse]("NODE", lambda use: use.node),
    TableColumn[ClaimDeviceUse]("DEVICE", lambda use: use.device),
    TableColumn[ClaimDeviceUse]("USED", lambda use: gib(use.used_bytes)),
    TableColumn[ClaimDeviceUse]("GRANTED", lambda use: gib(use.granted_bytes)),
    TableColumn[ClaimDeviceUse]("SM", lambda use: percent(use.sm_ratio)),
    TableColumn[ClaimDeviceUse]("IDLE", lambda use: span(use.idle_s), live=True),
    TableColumn[ClaimDeviceUse]("PEAK", lambda use: gib(use.peak_bytes), wide=True),
    TableColumn[ClaimDeviceUse](
        "ENERGY", lambda use: energy(use.energy_joules, estimated=use.energy_estimated), wide=True, live=True
    ),
    TableColumn[ClaimDeviceUse]("PROCESSES", lambda use: number(use.processes), wide=True),
    TableColumn[ClaimDeviceUse]("PODS", lambda use: listed(use.pods), wide=True),
)


def _energy(each: UseSum) -> str:
    estimated = each.energy_estimated and "energyJoules" not in each.partial
    return _part(each, "energy_joules", energy(each.energy_joules, estimated=estimated))


def _part(each: UseSum, name: str, shown: str) -> str:
    """Mark a sum that lacks devices with unknown values with ``>=``."""
    return f">={shown}" if json_key(name) in each.partial else shown


SUMS: Final = (
    TableColumn[UseSum]("CLAIMS", lambda each: str(each.claims)),
    TableColumn[UseSum]("DEVICES", lambda each: str(each.devices)),
    TableColumn[UseSum]("USED", lambda each: _part(each, "used_bytes", gib(each.used_bytes))),
    TableColumn[UseSum]("GRANTED", lambda each: _part(each, "granted_bytes", gib(each.granted_bytes))),
    TableColumn[UseSum]("SM", lambda each: f"{percent(each.sm_ratio)}{'?' if 'smRatio' in each.partial else ''}"),
    TableColumn[UseSum]("IDLE", lambda each: span(each.idle_s), live=True),
    TableColumn[UseSum]("PEAK", lambda each: _part(each, "peak_bytes", gib(each.peak_bytes)), wide=True),
    TableColumn[UseSum]("ENERGY", _energy, wide=True, live=True),
    TableColumn[UseSum]("PROCESSES", lambda each: _part(each, "processes", number(each.processes)), wide=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        metavar="|".join((*_KINDS, "label:KEY")),
        default="device",
        help="group rows by this; labels of a claim, or else of all its pods (default: device)",
    )
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    usage_source.add_usage_source(parser, window_s=_WINDOW_S)
    add_list(parser, csv=True)


def run(args: argparse.Namespace) -> int:
    key, namespace = _label_of(args.by), compared_scope(args, args.by)

    def read() -> Listed[Any]:
        report, _ = usage_source.read_joined(args, _WINDOW_S, namespace=namespace, node=args.node)
        usage_source.tell_source(report)
        if args.by == "device":
            return listed_devices(args, namespace, report)
        sums = _labelled(args, namespace, report.uses, key) if key else summed(report.uses, device_use.KEYS[args.by])
        return listed_sums(namespace, report, args.by, key, sums)

    return print_list(args, read)


def compared_scope(args: argparse.Namespace, by: str) -> str | None:
    """Return the namespace of the rows; None for nodes and namespaces, which are compared, without -n."""
    args.all_namespaces = args.all_namespaces or (by in ("node", "namespace") and not args.namespace)
    return scope_of(args)


def listed_devices(args: argparse.Namespace, namespace: str | None, report: UseReport) -> Listed[ClaimDeviceUse]:
    return Listed(
        document=UsageList(source=report.source, window_s=report.window_s, gaps=report.gaps, items=report.uses),
        rows=report.uses,
        columns=[*namespace_column(args, lambda use: use.namespace), *DEVICES],
        namespace=namespace,
        name=lambda use: f"resourceclaim.resource.k8s.io/{use.claim}",
        noun="claims with devices",
    )


def listed_sums(
    namespace: str | None, report: UseReport, by: str, label: str, sums: Sequence[UseSum]
) -> Listed[UseSum]:
    names = [label] if label else [name for name, _ in device_use.KEYS[by](ClaimDeviceUse(namespace="", claim=""))]
    return Listed(
        document=UsageSumList(source=report.source, window_s=report.window_s, by=by, gaps=report.gaps, items=sums),
        rows=sums,
        columns=[*(TableColumn[UseSum](name.upper(), partial(_key, at)) for at, name in enumerate(names)), *SUMS],
        namespace=namespace,
        name=lambda each: "/".join(each.key.values()),
        noun="claims with devices",
    )


def _key(at: int, each: UseSum) -> str:
    return [*each.key.values()][at]


def _label_of(by: str) -> str:
    """Return the key of ``label:KEY``, "" for other kinds. Raises ConfigurationError."""
    key = by.removeprefix(_BY_LABEL) if by.startswith(_BY_LABEL) else ""
    if not key and by not in _KINDS:
        raise ConfigurationError(f"--by {by[:60]!r}: expected {', '.join(_KINDS)} or label:KEY")
    return key


def _labelled(
    args: argparse.Namespace, namespace: str | None, uses: Sequence[ClaimDeviceUse], key: str
) -> list[UseSum]:
    api = client(kubeconfig_of(args))
    items, pods = api.list(paths.resource_claims(namespace))["items"], list[LabelledPod]()
    claims = read_all(LabelledClaim, items, note_of("ResourceClaim"))
    try:
        pods = read_all(LabelledPod, api.list(paths.pods(namespace))["items"], note_of("Pod"))
    except KubernetesApiError as error:
        said = f"cannot read labels of pods, only labels of claims apply: {error}"
        print(f"note: {printable(said)}", file=sys.stderr)
    labels = device_use.claim_labels(claims, pods)
    missing = device_use.GONE if len(claims) == len(items) else device_use.GONE_OR_UNREAD
    return summed(uses, lambda use: ((key, device_use.value_in(labels.get((use.namespace, use.claim)), key, missing)),))
