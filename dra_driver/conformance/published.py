"""What a driver publishes, as values: pools of slices, devices, and which devices fit together. Pure.

Follows staging/src/k8s.io/api/resource/v1/types.go: the newest generation counts, and a pool is complete when it has
as many slices of it as they say.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.conformance.cluster import Wire
from dra_driver.core.quantity import Quantity

MANY: Final = 32
"""The largest number of devices of a claim (types.go:1749)."""
BLOCKING: Final = ("NoSchedule", "NoExecute")


class PublishedDevice(Struct, frozen=True, kw_only=True):
    """A device and the pool that it is in. ``wire`` is the device as published."""

    pool: str
    wire: Wire

    @property
    def name(self) -> str:
        return str(self.wire["name"])

    @property
    def key(self) -> tuple[str, str]:
        return self.pool, self.name

    @property
    def is_shared(self) -> bool:
        return bool(self.wire.get("allowMultipleAllocations"))

    @property
    def is_partition(self) -> bool:
        return bool(self.wire.get("consumesCounters"))

    @property
    def is_blocked(self) -> bool:
        """Whether a taint keeps ordinary claims from it."""
        return any(taint.get("effect") in BLOCKING for taint in self.wire.get("taints") or ())

    @property
    def charges(self) -> dict[tuple[str, str, str], Quantity]:
        """What it consumes, by pool, counter set and counter."""
        return {
            (self.pool, use["counterSet"], name): Quantity.parse(counter["value"])
            for use in self.wire.get("consumesCounters") or ()
            for name, counter in use["counters"].items()
        }


def newest(slices: Sequence[Wire]) -> dict[str, list[Wire]]:
    """The slices of each pool that have its highest generation."""
    pools: dict[str, list[Wire]] = {}
    for item in slices:
        pools.setdefault(item["spec"]["pool"]["name"], []).append(item)
    return {
        name: [item for item in found if item["spec"]["pool"]["generation"] == _highest(found)]
        for name, found in pools.items()
    }


def incomplete(slices: Sequence[Wire]) -> str:
    """What is missing of the pools, as a sentence; empty if they are complete."""
    pools = newest(slices)
    if not pools:
        return "the driver has published no ResourceSlice for this node"
    for name, found in pools.items():
        counts = {item["spec"]["pool"]["resourceSliceCount"] for item in found}
        if counts != {len(found)}:
            return (
                f"pool {name} has {len(found)} slices of its newest generation {_highest(found)}, "
                f"and they say that there are {' or '.join(map(str, sorted(counts)))}"
            )
    return ""


def devices(slices: Sequence[Wire]) -> list[PublishedDevice]:
    """All devices of the newest generations, in published order."""
    return [
        PublishedDevice(pool=name, wire=device)
        for name, found in newest(slices).items()
        for item in sorted(found, key=lambda one: str(one["metadata"]["name"]))
        for device in item["spec"].get("devices") or ()
    ]


def counters(slices: Sequence[Wire]) -> dict[tuple[str, str, str], Quantity]:
    return {
        (name, one["name"], counter): Quantity.parse(value["value"])
        for name, found in newest(slices).items()
        for item in found
        for one in item["spec"].get("sharedCounters") or ()
        for counter, value in one["counters"].items()
    }


def together(slices: Sequence[Wire], candidates: Sequence[PublishedDevice], most: int) -> list[PublishedDevice]:
    """Up to ``most`` of the candidates that do not exclude each other, small ones first. Shares are left out."""
    left = counters(slices)
    chosen: list[PublishedDevice] = []
    for device in sorted((one for one in candidates if not one.is_shared), key=size):
        charges = device.charges
        if len(chosen) == most:
            break
        if all(key in left and not left[key] < amount for key, amount in charges.items()):
            chosen.append(device)
            for key, amount in charges.items():
                left[key] = left[key] - amount
    return chosen


def narrowed(slices: Sequence[Wire], keep: set[tuple[str, str]]) -> list[Wire]:
    """The slices with these devices only, and with all of their counters."""
    return [_narrow(item, keep) for item in slices]


def _narrow(item: Wire, keep: set[tuple[str, str]]) -> Wire:
    spec = item["spec"]
    if "devices" not in spec:
        return item
    pool = spec["pool"]["name"]
    kept = [device for device in spec["devices"] or () if (pool, device["name"]) in keep]
    return {**item, "spec": {**spec, "devices": kept}}


def _highest(slices: Sequence[Wire]) -> int:
    return max(int(item["spec"]["pool"]["generation"]) for item in slices)


def size(device: PublishedDevice) -> tuple[int, str]:
    """For sorting: how much the device consumes of its counters, then its name."""
    return sum(amount.as_int() for amount in device.charges.values()), device.name


def taints(slices: Sequence[Wire]) -> Iterator[tuple[PublishedDevice, Wire]]:
    for device in devices(slices):
        for taint in device.wire.get("taints") or ():
            yield device, taint
