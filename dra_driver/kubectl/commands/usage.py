"""``kubectl dra usage``: show the use of GPUs by claims, pods, namespaces and nodes."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from msgspec import to_builtins

from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.text import gib, listed, printable, span
from dra_driver.kube import paths
from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.source import client, kubeconfig_of, print_json, print_table
from dra_driver.kubectl.commands.usage_source import energy, note_of, number, percent, print_csv
from dra_driver.kubectl.usage import device_use
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, LabelledClaim, LabelledPod, UseSum, summed

DESCRIPTION: Final = """\
Show used and granted memory, utilization, energy and idle time per device of a claim, or per pod, namespace or node.
Queries the usage exporters through the API server, or Prometheus. Standard error names the source and the window.

  USED     current memory of the claim's processes
  PEAK     maximum in the window
  SM       device utilization: current, or the mean over the window with --prometheus
  ENERGY   in the window; ~ marks an estimate: hardware measures whole GPUs only
  IDLE     time since the last use; ? is unknown, not idle
"""
_WINDOW: Final = "1h"
_BY_LABEL: Final = "label:"
_DEVICES: Final = (
    *("NAMESPACE", "CLAIM", "NODE", "DEVICE", "USED", "GRANTED", "PEAK", "SM", "ENERGY", "PROCESSES", "IDLE", "PODS"),
)
_SUMS: Final = ("CLAIMS", "DEVICES", "USED", "GRANTED", "PEAK", "SM", "ENERGY", "PROCESSES", "IDLE")
_KINDS: Final = ("device", "claim", "pod", "namespace", "node")
_KEYS: Final = {"claim": ("NAMESPACE", "CLAIM"), "pod": ("NAMESPACE", "POD"), "namespace": ("NAMESPACE",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        metavar="|".join((*_KINDS, "label:KEY")),
        default="device",
        help="group rows by this; labels of a claim, or else of all its pods (default: device)",
    )
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only claims of this namespace (default: all)")
    parser.add_argument("--node", metavar="NAME", default="", help="only this node")
    usage_source.add_usage_source(parser, window=_WINDOW)
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    key = _label_of(args.by)
    report, _ = usage_source.read_joined(args, _WINDOW, node=args.node)
    uses = [use for use in report.uses if args.namespace in (None, use.namespace)]
    sums = [] if args.by == "device" else _labelled(args, uses, key) if key else summed(uses, device_use.KEYS[args.by])
    usage_source.tell_source(report)
    if args.output == "json":
        about = {"source": report.source, "windowSeconds": report.window_s, "gaps": report.gaps, "by": args.by}
        print_json("UsageReport", {**about, "items": to_builtins(uses if args.by == "device" else sums)})
    elif args.by == "device":
        _print_devices(uses, args.output)
    else:
        _print_sums(sums, (key.upper(),) if key else _KEYS.get(args.by, ("NODE",)), args.output)
    return 0


def _label_of(by: str) -> str:
    """Return the key of ``label:KEY``, "" for other kinds. Raises ConfigurationError."""
    key = by.removeprefix(_BY_LABEL) if by.startswith(_BY_LABEL) else ""
    if not key and by not in _KINDS:
        raise ConfigurationError(f"--by {by[:60]!r}: expected {', '.join(_KINDS)} or label:KEY")
    return key


def _labelled(args: argparse.Namespace, uses: Sequence[ClaimDeviceUse], key: str) -> list[UseSum]:
    api = client(kubeconfig_of(args))
    items, pods = api.list(paths.resource_claims(args.namespace))["items"], list[LabelledPod]()
    claims = read_all(LabelledClaim, items, note_of("ResourceClaim"))
    try:
        pods = read_all(LabelledPod, api.list(paths.pods(args.namespace))["items"], note_of("Pod"))
    except KubernetesApiError as error:
        said = f"cannot read labels of pods, only labels of claims apply: {error}"
        print(f"note: {printable(said)}", file=sys.stderr)
    labels = device_use.claim_labels(claims, pods)
    missing = device_use.GONE if len(claims) == len(items) else device_use.GONE_OR_UNREAD
    return summed(uses, lambda use: (device_use.value_in(labels.get((use.namespace, use.claim)), key, missing),))


def _print_devices(uses: Sequence[ClaimDeviceUse], output: str) -> None:
    if output == "csv":
        names = ClaimDeviceUse.__struct_fields__
        cells = [[",".join(use.pods) if name == "pods" else getattr(use, name) for name in names] for use in uses]
        print_csv(names, cells)
        return
    rows = [
        (
            *(use.namespace, use.claim, use.node, use.device, gib(use.used_bytes), gib(use.granted_bytes)),
            *(gib(use.peak_bytes), percent(use.sm_ratio), energy(use.energy_joules, estimated=use.energy_estimated)),
            *(number(use.processes), span(use.idle_s), listed(use.pods)),
        )
        for use in uses
    ]
    _table(_DEVICES, rows)


def _print_sums(sums: Sequence[UseSum], keys: Sequence[str], output: str) -> None:
    if output == "csv":
        names = [name for name in UseSum.__struct_fields__ if name not in ("key", "partial")] if sums else []
        print_csv(
            [*map(str.lower, keys), *names], [[*each.key, *(getattr(each, name) for name in names)] for each in sums]
        )
        return
    rows = [
        (
            *each.key,
            *(str(each.claims), str(each.devices)),
            *(_part(each, "used_bytes", gib(each.used_bytes)), _part(each, "granted_bytes", gib(each.granted_bytes))),
            _part(each, "peak_bytes", gib(each.peak_bytes)),
            f"{percent(each.sm_ratio)}{'?' if 'sm_ratio' in each.partial else ''}",  # a mean over some devices
            _part(each, "energy_joules", energy(each.energy_joules, estimated=each.energy_estimated)),
            *(_part(each, "processes", number(each.processes)), span(each.idle_s)),
        )
        for each in sums
    ]
    _table((*keys, *_SUMS), rows)


def _part(each: UseSum, name: str, shown: str) -> str:
    """Mark a sum that lacks devices with unknown values with ``>=``."""
    return f">={shown}" if name in each.partial else shown


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_table(headings, rows)
    else:
        print("No claims with devices found.")
