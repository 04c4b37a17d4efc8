"""What allocated claims hold: whole devices, shares of devices, and how much of their capacities.

Follows kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go: a result with admin
access holds nothing, one with a share ID holds a share, any other the device.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.amounts import nano
from dra_driver.allocation.capacity import Consumed
from dra_driver.allocation.events import DeviceId

Wire = Mapping[str, Any]
PoolKey = tuple[str, str]


@dataclass(slots=True)
class PoolUse:
    """What is taken in one pool, by name of the device. ``holders`` names the claims, ``namespace/name``."""

    whole: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    consumed: dict[str, Consumed] = field(default_factory=dict)
    holders: dict[str, list[str]] = field(default_factory=dict)


NO_USE = PoolUse()
"""For pools of which nothing is taken; never changed."""


def pool_uses(claims: Iterable[Wire], *, shares: bool) -> dict[PoolKey, PoolUse]:
    """Use by driver and pool. Without ``shares`` (gate DRAConsumableCapacity off) a share takes the whole device."""
    uses: dict[PoolKey, PoolUse] = {}
    for claim in claims:
        for result in _results(claim):
            if result.get("adminAccess"):
                continue
            name = result["device"]
            use = uses.setdefault((result["driver"], result["pool"]), PoolUse())
            use.holders.setdefault(name, []).append(_name(claim))
            if not shares or result.get("shareID") is None:
                use.whole.add(name)
                continue
            use.shared.add(name)
            if result.get("consumedCapacity") is not None:
                total = use.consumed.setdefault(name, {})
                for capacity, value in result["consumedCapacity"].items():
                    total[capacity] = total.get(capacity, 0) + nano(value)
    return uses


def allocated_devices(claims: Iterable[Wire]) -> Iterable[DeviceId]:
    """Devices that allocated claims hold, whole or in part. Admin access holds nothing."""
    for claim in claims:
        for result in _results(claim):
            if not result.get("adminAccess"):
                yield DeviceId(result["driver"], result["pool"], result["device"])


def _results(claim: Wire) -> Iterable[Wire]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def _name(claim: Wire) -> str:
    metadata = claim.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
