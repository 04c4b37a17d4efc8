"""``kubectl dra cost``: what claims cost by hours, part of a GPU and energy."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.core.command_line.table import show
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.text import UNKNOWN, printable
from dra_driver.kubectl.commands.claim_labels import ABOUT, BY_LABEL, read_labels
from dra_driver.kubectl.commands.kubeconfig import kubeconfig_of
from dra_driver.kubectl.commands.source import client, wants_colour
from dra_driver.kubectl.commands.usage_output import print_csv, small
from dra_driver.kubectl.commands.usage_source import (
    add_usage_source,
    answer_of,
    from_prometheus,
    prometheus_of,
    window_s,
    window_text,
)

if TYPE_CHECKING:
    from dra_driver.kubectl.usage.cost import CostLine, CostSum, Held
    from dra_driver.kubectl.usage.prices import Prices

DESCRIPTION: Final = """\
Price what claims hold: hours times the part of a GPU's memory times the price of an hour, and energy. What a claim has
is charged whether it is used or not, because others cannot have it. Without --prometheus: the claims that exist, since
they were allocated, and no energy. With it: all claims of the window, also those that are gone, and their energy.

The file of prices:

  currency: EUR
  gpuHour:                        # a whole GPU, by product name as in `kubectl dra devices`
    NVIDIA H100 80GB HBM3: 2.50
  otherGpuHour: 1.00              # models that are not listed; without it they have no price, and that is said
  kilowattHour: 0.28
  carbonGramsPerKilowattHour: 380
"""
_WINDOW: Final = "24h"
_MAX_FILE: Final = 1 << 20
_MAX_NOTES: Final = 10
_BY: Final = {"namespace": ("namespace",), "claim": ("namespace", "claim")}
_AMOUNTS: Final = ("DEVICES", "GPU HOURS", "COST", "ENERGY", "COST OF ENERGY", "CARBON")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cost",
        help="price what claims hold and the energy that they use",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--prices", metavar="FILE", required=True, help="YAML or JSON, as above")
    parser.add_argument(
        "--by",
        metavar="namespace|claim|label:KEY",
        default="namespace",
        help=f"what a line is about; {ABOUT} (default: namespace)",
    )
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only claims of this namespace (default: all)")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    add_usage_source(parser, window=_WINDOW)
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    from dra_driver.kubectl.usage.cost import price, sums

    names, key_of = _grouping(args.by)
    prices = read_prices(args.prices)
    held, source, gaps = _held(args)
    lines = [price(item, prices) for item in held if args.namespace in (None, item.namespace)]
    found = sums(lines, key_of)
    print(f"from {printable(source)}", file=sys.stderr)
    for note in (*gaps, *_missing(lines), *_no_energy(lines, prices)):
        print(f"note: {printable(note)}", file=sys.stderr)
    if args.output == "json":
        items = [_wire(dict(zip(names, each.key, strict=True)), each) for each in found]
        about = {"source": source, "currency": prices.currency, "gaps": list(gaps), "missing": list(_missing(lines))}
        print(json.dumps({"schemaVersion": 1, "kind": "CostReport", **about, "items": items}, indent=2))
    elif args.output == "csv":
        fields = [name for name in asdict(found[0]) if name != "key"] if found else []
        rows = [[*each.key, *(getattr(each, name) for name in fields), prices.currency] for each in found]
        print_csv([*names, *fields, "currency"], rows)
    elif found:
        show(
            (*map(str.upper, names), *_AMOUNTS),
            [_cells(each, prices.currency) for each in found],
            colour=wants_colour(),
        )
    else:
        print("No claims hold devices here, as far as is known.")
    return 0


def read_prices(path: str) -> "Prices":
    """The prices of a file. Raises ConfigurationError, which names file and field."""
    import yaml

    from dra_driver.kubectl.usage.prices import decode

    try:
        with Path(path).open(encoding="utf-8") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise ConfigurationError(f"--prices {path}: larger than {_MAX_FILE >> 20} MiB")
        document = yaml.safe_load(content)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prices {path}: cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"--prices {path}: not YAML: {printable(str(error))[:300]}") from error
    try:
        return decode(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"--prices {path}: {error}") from error


def _grouping(by: str) -> "tuple[tuple[str, ...], Callable[[Held], tuple[str, ...]]]":
    from dra_driver.kubectl.usage.cost import label_key

    kind, _, key = by.partition(":")
    if kind == "label" and key:
        return (key,), label_key(key)
    if by == "namespace":
        return _BY[by], lambda held: (held.namespace,)
    if by == "claim":
        return _BY[by], lambda held: (held.namespace, held.claim)
    raise ConfigurationError(f"--by {by[:60]!r}: expected namespace, claim or label:KEY")


def _held(args: argparse.Namespace) -> "tuple[list[Held], str, tuple[str, ...]]":
    """What was held, who said so, and what could not be read."""
    from dra_driver.kube import paths
    from dra_driver.kubectl.usage import held

    window = window_s(args, _WINDOW)
    labels, unread = read_labels(args) if args.by.startswith(BY_LABEL) else ({}, ())
    if not args.prometheus:
        api = client(kubeconfig_of(args))
        claims = api.list(paths.resource_claims(args.namespace))["items"]
        slices = api.list(paths.resource_slices())["items"]
        now = datetime.now(UTC)
        found = held.from_claims(claims, slices, args.driver, now, labels)
        return found, "the claims that exist, since they were allocated", unread
    server = prometheus_of(args)
    report = from_prometheus(server, window)
    recorded = held.gpus_in(answer_of(server, held.GPUS_QUERY.format(window=window)))
    published, gap = _published(args)
    found = held.from_history(report.uses, {**published, **recorded}, labels)
    return found, f"{report.source}, window {window_text(window)}", (*report.gaps, *gap, *unread)


def _published(args: argparse.Namespace) -> tuple[Any, tuple[str, ...]]:
    """How large partitions are, which the API server knows; without it those that exist no more have no cost."""
    from dra_driver.kube import paths
    from dra_driver.kubectl.usage.held import devices_in

    try:
        slices = client(kubeconfig_of(args)).list(paths.resource_slices())["items"]
    except (KubernetesApiError, ConfigurationError) as error:
        return {}, (f"how large partitions are is not known: {error}",)
    return devices_in(slices, args.driver, by_node=True), ()


def _missing(lines: "Sequence[CostLine]") -> Sequence[str]:
    """Why lines have no amount, each reason once with how many there are."""
    counts: dict[str, int] = {}
    for line in lines:
        if line.missing:
            counts[line.missing] = counts.get(line.missing, 0) + 1
    said = [f"{count} without a cost: {why}" for why, count in counts.items()]
    return [*said[:_MAX_NOTES], *([f"and {len(said) - _MAX_NOTES} more reasons"] if len(said) > _MAX_NOTES else [])]


def _no_energy(lines: "Sequence[CostLine]", prices: "Prices") -> Sequence[str]:
    if prices.kilowatt_hour is None or not lines or any(line.energy_kwh is not None for line in lines):
        return ()
    return ("energy is not known: it needs --prometheus, and GPUs that count it",)


def _cells(each: "CostSum", currency: str) -> Sequence[str]:
    mark = "~" if each.estimated else ""
    lacks = ">=" if each.unpriced else ""
    return (
        *each.key,
        str(each.lines),
        small(each.gpu_hours, 1),
        UNKNOWN if each.amount is None else f"{lacks}{small(each.amount, 2)} {currency}".rstrip(),
        UNKNOWN if each.energy_kwh is None else f"{mark}{each.energy_kwh:.2f} kWh",
        UNKNOWN if each.energy_amount is None else f"{mark}{small(each.energy_amount, 2)} {currency}".rstrip(),
        UNKNOWN if each.carbon_grams is None else f"{mark}{each.carbon_grams / 1000:.2f} kg",
    )


def _wire(key: dict[str, str], each: "CostSum") -> dict[str, Any]:
    return {
        **key,
        "devices": each.lines,
        "unpriced": each.unpriced,
        "gpuHours": each.gpu_hours,
        "amount": each.amount,
        "energyKilowattHours": each.energy_kwh,
        "energyAmount": each.energy_amount,
        "carbonGrams": each.carbon_grams,
        "energyEstimated": each.estimated,
    }
