"""What a share of a device requests besides memory, what it consumes, and what is left for others.

A share of a tenth of the memory also requests a tenth of each capacity that a claim would otherwise take all of.
"""

from collections.abc import Mapping
from typing import Any

from dra_driver.core.quantity import NANO
from dra_driver.kube.published import MEMORY
from dra_driver.scheduler.allocation import PoolDevice, consumption, nano

Wire = Mapping[str, Any]
Extra = tuple[tuple[str, str], ...]
"""Capacities besides memory, with their amounts."""


def extra_for(device: Wire, share: str) -> Extra:
    """Returns the part of each other capacity that corresponds to the memory: whole units, rounded down, at least min.

    Only capacities whose default is all of them are included; for others the policy has set the default of a share.
    Empty when the device does not publish its memory.
    """
    capacities: Mapping[str, Wire] = device.get("capacity") or {}
    total = nano((capacities.get(MEMORY) or {}).get("value", "0"))
    if total <= 0:
        return ()
    found = []
    for name, capacity in capacities.items():
        policy = capacity.get("requestPolicy") or {}
        least = (policy.get("validRange") or {}).get("min")
        value = nano(capacity["value"])
        if name == MEMORY or least is None or policy.get("default") is None or nano(policy["default"]) != value:
            continue
        part = min(value, value * nano(share) // total)
        found.append((name, str(max(part // NANO, -(-nano(least) // NANO)))))
    return tuple(found)


def consumed_by_share(device: Wire, share: str, extra: Extra) -> dict[str, int]:
    """Returns the billionths of each capacity that such a share consumes. Raises ValueError on invalid quantities."""
    requests = {MEMORY: share, **dict(extra)}
    found = consumption(requests, device.get("capacity") or {})
    return {name: amount.nano for name, amount in found.items()}


def left_by_shares(device: PoolDevice) -> dict[str, int]:
    """Returns the billionths of each capacity that no share consumes."""
    capacities: Mapping[str, Wire] = device.wire.get("capacity") or {}
    consumed = device.consumed or {}
    return {name: max(0, nano(item["value"]) - consumed.get(name, 0)) for name, item in capacities.items()}
