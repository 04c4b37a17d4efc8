"""Computes the state of published devices from allocations and from the counters that they consume.

A GPU that is published whole, in partitions and shared is one piece of hardware: a device without an allocation may
still be blocked, because others have used its counters (KEP-4815). Selectors, taints and nodes are ignored here;
`kubectl dra explain` and `kubectl dra capacity` take them into account.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from dra_driver.core.quantity import Quantity
from dra_driver.scheduler.allocation import amount, nano

Wire = Mapping[str, Any]
DeviceKey = tuple[str, str, str]
Counters = dict[tuple[str, str, str, str], int]
"""(driver, pool, counter set, counter) -> billionths."""

FREE: Final = "free"
IN_USE: Final = "in use"
SHARED: Final = "in shares"
BLOCKED: Final = "blocked"
UNKNOWN: Final = ""


def counters_left(slices: Iterable[Wire], allocated: Collection[DeviceKey]) -> Counters:
    """Returns what allocated devices leave of every counter. ``slices`` must be those of the newest generations."""
    every = [item["spec"] for item in slices]
    left: Counters = {}
    for spec in every:
        for entry in spec.get("sharedCounters") or ():
            for name, counter in (entry.get("counters") or {}).items():
                left[spec["driver"], spec["pool"]["name"], entry["name"], name] = nano(counter["value"])
    for spec in every:
        pool = spec["driver"], spec["pool"]["name"]
        for device in spec.get("devices") or ():
            if (*pool, device["name"]) in allocated:
                for key, value in _consumed(device, *pool):
                    left[key] = left.get(key, 0) - value
    return left


def state_of(device: Wire, pool: tuple[str, str], left: Counters, *, allocated: bool, in_shares: bool) -> str:
    """Returns ``free``, ``in use``, ``in shares`` (the rest is available) or ``blocked`` (its counters are used up)."""
    if allocated:
        return SHARED if in_shares else IN_USE
    return BLOCKED if any(left.get(key, 0) < value for key, value in _consumed(device, *pool)) else FREE


def remaining_capacity(device: Wire, consumed: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns what shares leave of each capacity of a device that allows several allocations."""
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
