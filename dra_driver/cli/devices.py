"""``kubectl dra devices``: what the nodes have published, and who has it.

Owns the choice of columns. Refuses to know how slices come about; it reads ResourceSlices and ResourceClaims of any
driver through the API server, so it shows what the scheduler sees. Of a pool only its newest generation counts
(resource/v1 ``ResourcePool.generation``).
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dra_driver.cli.table import render
from dra_driver.errors import ForbiddenError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient

UNKNOWN = "?"

Slice = Mapping[str, Any]
DeviceKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """One row. ``claims`` are namespace/name; ``node`` is empty for a device that is not bound to one."""

    node: str
    driver: str
    pool: str
    device: str
    type: str
    product: str
    memory: str
    taints: tuple[str, ...]
    claims: tuple[str, ...]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "devices",
        help="list published devices and the claims that hold them",
        description="List the devices that drivers have published as ResourceSlices, and the claims that hold them.",
    )
    parser.add_argument("--node", metavar="NAME", help="only devices of this node")
    parser.add_argument("--driver", metavar="NAME", help="only devices of this driver")
    parser.add_argument("--kubeconfig", metavar="FILE", help="how to reach the API server (default: as kubectl does)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    rest = RestClient(Connection.load(args.kubeconfig))
    found = devices(rest.list(paths.resource_slices(), _selector(args))["items"], holders(rest))
    if args.output == "json":
        print(json.dumps([asdict(device) for device in found], indent=2))
    elif found:
        print(render(HEADINGS, [_row(device) for device in found]))
    else:
        print("No devices are published." if not (args.node or args.driver) else "No such devices are published.")
    return 0


HEADINGS = ("NODE", "DRIVER", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "TAINTS", "CLAIMS")


def _row(device: PublishedDevice) -> Sequence[str]:
    columns = (device.node, device.driver, device.device, device.type, device.product, device.memory)
    return (*columns, ",".join(device.taints), ",".join(device.claims))


def _selector(args: argparse.Namespace) -> dict[str, str]:
    fields = {"spec.nodeName": args.node, "spec.driver": args.driver}
    selector = ",".join(f"{name}={value}" for name, value in fields.items() if value)
    return {"fieldSelector": selector} if selector else {}


def holders(rest: RestClient) -> dict[DeviceKey, list[str]] | None:
    """Claims by (driver, pool, device); None without the right to list claims."""
    try:
        claims = rest.list(paths.resource_claims())["items"]
    except ForbiddenError:
        return None
    held: dict[DeviceKey, list[str]] = {}
    for claim in claims:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            names = held.setdefault((result["driver"], result["pool"], result["device"]), [])
            if name not in names:
                names.append(name)
    return held


def devices(slices: Sequence[Slice], held: Mapping[DeviceKey, list[str]] | None) -> list[PublishedDevice]:
    """All devices of the newest generation of each pool, by node, driver, and in the order of the slices."""
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        pool = item["spec"]["pool"]
        key = (item["spec"]["driver"], pool["name"])
        newest[key] = max(newest.get(key, 0), pool["generation"])
    current = [
        item
        for item in slices
        if item["spec"]["pool"]["generation"] == newest[(item["spec"]["driver"], item["spec"]["pool"]["name"])]
    ]
    current.sort(
        key=lambda item: (item["spec"].get("nodeName") or "", item["spec"]["driver"], item["metadata"]["name"])
    )
    return [device for item in current for device in _of_slice(item["spec"], held)]


def _of_slice(spec: Mapping[str, Any], held: Mapping[DeviceKey, list[str]] | None) -> Iterator[PublishedDevice]:
    for device in spec.get("devices") or ():
        attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
        key = (spec["driver"], spec["pool"]["name"], device["name"])
        yield PublishedDevice(
            node=device.get("nodeName") or spec.get("nodeName") or "",
            driver=spec["driver"],
            pool=spec["pool"]["name"],
            device=device["name"],
            type=_attribute(attributes, "type"),
            product=_attribute(attributes, "productName"),
            memory=str((capacity.get("memory") or {}).get("value", "")),
            taints=tuple(f"{taint['key']}:{taint['effect']}" for taint in device.get("taints") or ()),
            claims=(UNKNOWN,) if held is None else tuple(held.get(key, ())),
        )


def _attribute(attributes: Mapping[str, Any], name: str) -> str:
    """The one value of an attribute, whatever its type."""
    return str(next(iter((attributes.get(name) or {}).values()), ""))
