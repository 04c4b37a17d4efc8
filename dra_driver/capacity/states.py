"""Whether a published device can be had, from what is held of it and of the counters that it consumes.

Owns the states behind `kubectl dra devices`. A GPU that is published whole, in partitions and shared is one piece of
hardware: that nobody holds one form of it does not make that form free (KEP-4815 counters). Refuses to know selectors,
taints and nodes; whether a claim would get the device is what `kubectl dra explain` and `capacity` say.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from dra_driver.allocation.amounts import amount, nano
from dra_driver.quantity import Quantity

Wire = Mapping[str, Any]
DeviceKey = tuple[str, str, str]
Counters = dict[tuple[str, str, str, str], int]
"""(driver, pool, counter set, counter) -> billionths."""

FREE: Final = "free"
IN_USE: Final = "in use"
SHARED: Final = "in shares"
BLOCKED: Final = "blocked"
UNKNOWN: Final = ""


def counters_left(slices: Iterable[Wire], held: Collection[DeviceKey]) -> Counters:
    """What held devices leave of every counter of the slices, which are those of the newest generations."""
    every = [item["spec"] for item in slices]
    left: Counters = {}
    for spec in every:
        for entry in spec.get("sharedCounters") or ():
            for name, counter in (entry.get("counters") or {}).items():
                left[spec["driver"], spec["pool"]["name"], entry["name"], name] = nano(counter["value"])
    for spec in every:
        pool = spec["driver"], spec["pool"]["name"]
        for device in spec.get("devices") or ():
            if (*pool, device["name"]) in held:
                for key, value in _consumed(device, *pool):
                    left[key] = left.get(key, 0) - value
    return left


def state_of(device: Wire, pool: tuple[str, str], left: Counters, *, held: bool, in_shares: bool) -> str:
    """``free``, ``in use``, ``in shares`` (the rest can be had), or ``blocked``: others use what it consists of."""
    if held:
        return SHARED if in_shares else IN_USE
    return BLOCKED if any(left.get(key, 0) < value for key, value in _consumed(device, *pool)) else FREE


def remaining_capacity(device: Wire, consumed: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What shares leave of each capacity of a device that allows several allocations."""
    shares = list(consumed)
    found = {}
    for name, capacity in (device.get("capacity") or {}).items():
        total = amount(capacity["value"]).quantity
        gone = sum(nano(share[name]) for share in shares if name in share)
        found[name] = str(Quantity(max(0, total.nano - gone), total.format))
    return found


def _consumed(device: Wire, driver: str, pool: str) -> Iterable[tuple[tuple[str, str, str, str], int]]:
    for entry in device.get("consumesCounters") or ():
        for name, counter in (entry.get("counters") or {}).items():
            yield (driver, pool, entry["counterSet"], name), nano(counter["value"])
