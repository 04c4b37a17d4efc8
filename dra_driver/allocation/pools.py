"""Pools of devices that one node can reach, and which of their slices count.

Owns which slices are relevant, the newest generation, completeness, validity and the order in which devices are tried.
Follows k8s.io/dynamic-resource-allocation structured/internal/incubating/pools_incubating.go (Kubernetes 1.36).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dra_driver.allocation.nodes import node_matches

Wire = Mapping[str, Any]


class DeviceId(NamedTuple):
    """What makes a device unique in a cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One published device and the slice that it is in."""

    id: DeviceId
    wire: Wire
    slice: Wire

    @property
    def placement(self) -> Wire:
        """The object that says which nodes reach the device: the device itself or its slice's spec."""
        return self.wire if self.slice["spec"].get("perDeviceNodeSelection") else self.slice["spec"]


@dataclass(slots=True, eq=False)
class Pool:
    """Devices of one pool that the node reaches. ``problem`` is set when they must not be allocated."""

    driver: str
    name: str
    devices: list[Device] = field(default_factory=list)
    incomplete: bool = False
    invalid: bool = False

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def gather_pools(slices: Sequence[Wire], node: Wire) -> list[Pool]:
    """The node's pools in the order in which they are tried: by driver and name, those with binding conditions last."""
    groups: dict[tuple[str, str], list[Wire]] = {}
    for candidate in slices:
        if _is_relevant(candidate["spec"], node):
            groups.setdefault(_pool_key(candidate), []).append(candidate)
    pools = [pool for key, found in sorted(groups.items()) if (pool := _pool(key, found, slices, node))]
    return sorted(pools, key=_binds_later)


def _pool_key(item: Wire) -> tuple[str, str]:
    return item["spec"]["driver"], item["spec"]["pool"]["name"]


def _generation(item: Wire) -> int:
    return int(item["spec"]["pool"].get("generation", 0))


def _is_relevant(spec: Wire, node: Wire) -> bool:
    """Counter slices matter everywhere: what they count may be consumed from any node."""
    if spec.get("sharedCounters"):
        return True
    if spec.get("perDeviceNodeSelection"):
        return any(_reaches(device, node) for device in spec.get("devices") or ())
    return _reaches(spec, node)


def _reaches(placement: Wire, node: Wire) -> bool:
    if placement.get("nodeName"):
        return bool(placement["nodeName"] == node["metadata"]["name"])
    if placement.get("allNodes"):
        return True
    selector = placement.get("nodeSelector")
    return selector is not None and node_matches(selector, node)


def _pool(key: tuple[str, str], relevant: list[Wire], every: Sequence[Wire], node: Wire) -> Pool | None:
    """The pool at its newest generation; None when a newer one exists somewhere else."""
    newest = max(map(_generation, relevant))
    current = [item for item in relevant if _generation(item) == newest]
    expected = current[0]["spec"]["pool"].get("resourceSliceCount", 0)
    incomplete = False
    if len(current) != expected:
        whole = [item for item in every if _pool_key(item) == key]
        if any(_generation(item) > newest for item in whole):
            return None
        incomplete = sum(_generation(item) == newest for item in whole) != expected
    current.sort(key=lambda item: item["metadata"]["name"])
    pool = Pool(*key, incomplete=incomplete, invalid=_is_invalid(current))
    pool.devices = [device for item in current for device in _devices(item, node)]
    return pool


def _devices(item: Wire, node: Wire) -> Iterable[Device]:
    driver, pool = _pool_key(item)
    for wire in item["spec"].get("devices") or ():
        device = Device(DeviceId(driver, pool, wire["name"]), wire, item)
        if _reaches(device.placement, node):
            yield device


def _is_invalid(current: list[Wire]) -> bool:
    devices = [device for item in current for device in item["spec"].get("devices") or ()]
    sets = [entry for item in current for entry in item["spec"].get("sharedCounters") or ()]
    counters = {entry["name"]: entry.get("counters") or {} for entry in sets}
    names = {device["name"] for device in devices}
    if len(names) != len(devices) or len(counters) != len(sets):
        return True
    consumed = [entry for device in devices for entry in device.get("consumesCounters") or ()]
    return any(
        entry["counterSet"] not in counters
        or not set(entry.get("counters") or ()) <= set(counters[entry["counterSet"]])
        for entry in consumed
    )


def _binds_later(pool: Pool) -> bool:
    return any(device.wire.get("bindingConditions") for device in pool.devices)
