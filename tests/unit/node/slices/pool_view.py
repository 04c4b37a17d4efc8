"""What a scheduler makes of the slices of one pool at a moment, as far as giving a GPU away twice is concerned.

Source: kubernetes/dynamic-resource-allocation structured/internal/incubating/pools_incubating.go (1.36): only the
highest generation counts, nothing of an incomplete pool is allocated, and a device that refers to a counter that is
not there makes the pool invalid. The scheduler of 1.34 does allocate devices of incomplete pools, and compares the
counters of one slice at a time.
"""

from collections.abc import Mapping
from typing import Any

from dra_driver.core.quantity import Quantity


def offered(objects: Mapping[str, Any], *, is_1_34: bool = False) -> list[dict[str, Any]]:
    """The devices that may be allocated now; none while the pool is incomplete (but in 1.34) or invalid."""
    specs = [item["spec"] for _, item in sorted(objects.items())]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    specs = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if not is_1_34 and (not specs or specs[0]["pool"]["resourceSliceCount"] != len(specs)):
        return []
    sets = counter_sets(specs)
    devices = [device for spec in specs for device in spec.get("devices", [])]
    for device in devices:
        for taken in device.get("consumesCounters", []):
            if not taken["counters"].keys() <= sets.get(taken["counterSet"], {}).keys():
                return []
    return devices


def counter_sets(specs: list[Any]) -> dict[str, dict[str, int]]:
    return {
        one["name"]: {name: Quantity.parse(counter["value"]).as_int() for name, counter in one["counters"].items()}
        for spec in specs
        for one in spec.get("sharedCounters", [])
    }


def doubly_offered(objects: Mapping[str, Any], *, is_1_34: bool = False) -> list[tuple[str, str]]:
    """Pairs of overlapping devices of one GPU that no counter excludes."""
    devices = offered(objects, is_1_34=is_1_34)
    sets = counter_sets([item["spec"] for item in objects.values()])
    return [
        (one["name"], other["name"])
        for index, one in enumerate(devices)
        for other in devices[index + 1 :]
        if _overlap(one, other) and not _kept_apart(one, other, sets)
    ]


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if _gpu(one) != _gpu(other):
        return False
    (start, size), (at, length) = _extent(one), _extent(other)
    return start < at + length and at < start + size


def _gpu(device: dict[str, Any]) -> str:
    attributes = device["attributes"]
    return str((attributes.get("parentUUID") or attributes["uuid"])["string"])


def _extent(device: dict[str, Any]) -> tuple[int, int]:
    attributes = device["attributes"]
    if "placementStart" not in attributes:
        return (0, 1000)
    return attributes["placementStart"]["int"], attributes["placementSize"]["int"]


def _kept_apart(one: dict[str, Any], other: dict[str, Any], sets: dict[str, dict[str, int]]) -> bool:
    wanted: dict[tuple[str, str], int] = {}
    for device in (one, other):
        for taken in device.get("consumesCounters", []):
            for name, counter in taken["counters"].items():
                key = (taken["counterSet"], name)
                wanted[key] = wanted.get(key, 0) + Quantity.parse(counter["value"]).as_int()
    return any(value > sets[counter_set][name] for (counter_set, name), value in wanted.items())
