"""Allocation of a pod's claims on one node: pure, from API objects to AllocationResults.

Owns the entry point and what counts as taken. Refuses to know an API server, a clock or a scheduler's queue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.allocation.pools import DeviceId, gather_pools
from dra_driver.allocation.result import allocation_result
from dra_driver.allocation.search import Search

Wire = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``allocations``: one AllocationResult per claim in their order, or None with the ``reason`` why not."""

    allocations: Sequence[dict[str, Any]] | None
    reason: str = ""


class Allocator:
    """Devices, classes and what is taken, at one moment. Immutable; the objects handed in are not changed.

    ``slices`` are all ResourceSlices of the cluster, ``allocated`` all claims that may have ``status.allocation``.
    """

    def __init__(self, *, slices: Sequence[Wire], classes: Iterable[Wire], allocated: Iterable[Wire]) -> None:
        self._slices = slices
        self._classes = {item["metadata"]["name"]: item for item in classes}
        self._taken = frozenset(taken_devices(allocated))

    def allocate(self, node: Wire, claims: Sequence[Wire]) -> Outcome:
        """Devices for all of a pod's unallocated claims on ``node``, or why they do not fit there.

        Raises AllocationError, CelSyntaxError or CelEvaluationError when the attempt has to end for all nodes.
        """
        pools = gather_pools(self._slices, node)
        search = Search(claims, self._classes, pools, self._taken)
        picks = search.run()
        if picks is None:
            broken = [str(pool) for pool in pools if pool.invalid]
            if broken:
                return Outcome(allocations=None, reason=f"invalid resource pools were encountered: {', '.join(broken)}")
            return Outcome(allocations=None, reason=f"{search.stuck_at}: no combination of free devices matches")
        return Outcome(
            allocations=[
                allocation_result(claim, picks[index], search.chosen[index], node) for index, claim in enumerate(claims)
            ]
        )


def taken_devices(claims: Iterable[Wire]) -> Iterable[DeviceId]:
    """Devices that allocated claims hold. Admin access holds nothing."""
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if not result.get("adminAccess"):
                yield DeviceId(result["driver"], result["pool"], result["device"])
