"""What is allocated: whole devices, shares of devices, and how much of their capacities.

Follows kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go: a result with admin
access allocates nothing, one with a share ID a share, any other the whole device.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from dra_driver.scheduler.allocation.amounts import nano
from dra_driver.scheduler.allocation.capacity import Consumed
from dra_driver.scheduler.allocation.events import DeviceId

Wire = Mapping[str, Any]
PoolKey = tuple[str, str]


class PoolUse(Struct):
    """What is allocated in one pool, by device name. ``holders`` are the claims, ``namespace/name``."""

    whole: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    consumed: dict[str, Consumed] = field(default_factory=dict)
    holders: dict[str, list[str]] = field(default_factory=dict)


NO_USE = PoolUse()
"""The use of a pool without allocated devices. Not to be changed."""


def pool_uses(claims: Iterable[Wire], *, shares: bool) -> dict[PoolKey, PoolUse]:
    """Use by driver and pool. Without ``shares`` (gate DRAConsumableCapacity off) a share counts as a whole device."""
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
    """Devices that are allocated, whole or in shares. A result with admin access allocates nothing."""
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
