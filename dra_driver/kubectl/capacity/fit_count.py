"""Counts how often each request fits in one unit, by allocating synthetic claims until the allocator refuses one.

Allocation is greedy like the scheduler's: each claim gets the first suitable device, and none is moved later. Equal
units are counted once.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.errors import DraError
from dra_driver.core.quantity import Format, Quantity
from dra_driver.kube.published import MEMORY
from dra_driver.kubectl.capacity.kinds import DeviceKind, SyntheticRequest
from dra_driver.kubectl.capacity.shares import extra_for
from dra_driver.kubectl.capacity.supply import UnitSupply, supply_of
from dra_driver.kubectl.capacity.units import Unit, is_tainted
from dra_driver.scheduler.allocation import V1_36, Allocator, Limits, PoolDevice, SchedulerFeatures, SchedulerQuirks

Wire = Mapping[str, Any]

MAX_FITS: Final = 256
"""Limit of claims tried on one unit; a count that reaches it is a lower bound."""

_NODE: Final = "node"
_POOL: Final = "pool"
_CLASS: Final = {"metadata": {"name": "any"}, "spec": {}}
_KEPT: Final = (
    "name",
    "capacity",
    "consumesCounters",
    "taints",
    "allowMultipleAllocations",
    "bindingConditions",
    "bindingFailureConditions",
)


class Options(Struct, frozen=True, kw_only=True):
    """The scheduler's features and quirks, the shares to try, and the time limit of all trials together."""

    features: SchedulerFeatures = field(default_factory=SchedulerFeatures)
    quirks: SchedulerQuirks = V1_36
    shares: Sequence[str] = ("10Gi",)
    timeout_s: float = 60.0
    clock: Callable[[], float] = time.monotonic


class FitCounts(Struct, frozen=True, kw_only=True):
    """How often requests fit in a unit now, and without any allocations (``empty``).

    For ``capped`` requests the count is a lower bound. ``problem`` says why nothing was counted.
    """

    fits: Mapping[SyntheticRequest, int]
    empty: Mapping[SyntheticRequest, int]
    supply: UnitSupply
    capped: frozenset[SyntheticRequest] = frozenset()
    problem: str = ""


class FitCounter:
    """Counts how often requests fit in units. Not thread-safe."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._counts_by_signature: dict[Hashable, FitCounts] = {}
        self._end = options.clock() + options.timeout_s

    def count_fits(self, unit: Unit) -> FitCounts:
        """Counts what fits in the unit now, regardless of the node and of other requirements of pods."""
        key = unit.signature()
        if key not in self._counts_by_signature:
            self._counts_by_signature[key] = self._count_fits(unit)
        return self._counts_by_signature[key]

    def _count_fits(self, unit: Unit) -> FitCounts:
        supply = supply_of(unit)
        if self._options.clock() > self._end:
            problem = f"not counted within {self._options.timeout_s:g} s"
            return FitCounts(fits={}, empty={}, supply=supply, problem=problem)
        fits: dict[SyntheticRequest, int] = {}
        problem = ""
        for request in self._requests(unit):
            try:
                fits[request] = self._count(unit, request)
            except DraError as error:
                fits[request], problem = 0, str(error)[:300]
        capped = frozenset(request for request, count in fits.items() if count >= MAX_FITS)
        empty = self.count_fits(unit.without_allocations()).fits if unit.has_allocations() else fits
        return FitCounts(fits=fits, empty=empty, supply=supply, capped=capped, problem=problem)

    def _requests(self, unit: Unit) -> list[SyntheticRequest]:
        found = []
        for kind, device in {kind: device for device, kind in zip(unit.offered, unit.kinds, strict=True)}.items():
            found.append(SyntheticRequest(kind=kind))
            for share in self._options.shares if kind.shared else ():
                found.append(SyntheticRequest(kind=kind, share=share, extra=extra_for(device.wire, share)))
        return found

    def _count(self, unit: Unit, request: SyntheticRequest) -> int:
        slices, results = _synthetic_cluster(unit, request.kind)
        claim = _claim(request)
        count = 0
        while count < MAX_FITS:
            allocator = Allocator(
                slices=slices,
                classes=[_CLASS],
                allocated=[{"status": {"allocation": {"devices": {"results": results}}}}],
                features=self._options.features,
                quirks=self._options.quirks,
                limits=Limits(steps=100_000, timeout_s=2.0, clock=self._options.clock),
                new_share_id=lambda: "share",
            )
            outcome = allocator.allocate({"metadata": {"name": _NODE}}, [claim])
            if outcome.allocations is None:
                break
            got = outcome.allocations[0]["devices"]["results"]
            count += 1
            if all(item.get("shareID") and not item.get("consumedCapacity") for item in got):
                return MAX_FITS  # shares that consume nothing never run out
            results = [*results, *got]
        return count


def _synthetic_cluster(unit: Unit, kind: DeviceKind) -> tuple[list[Wire], list[Wire]]:
    """Returns slices with the unit's devices of one kind, and the allocation results of its allocated devices.

    Allocated devices of other kinds are included because they consume counters; they are allocated as a whole.
    """
    devices: list[Wire] = []
    results: list[Wire] = []
    for number, (device, of) in enumerate(zip(unit.offered, unit.kinds, strict=True)):
        mine = of == kind and not (unit.overdrawn and device.wire.get("consumesCounters"))
        if mine or device.allocated or device.shared:
            devices.append(_device(device, f"d{number}"))
        if device.allocated or (device.shared and not mine):
            results.append(_allocation_result(f"d{number}"))
        elif device.shared:
            results.append(_share(device, f"d{number}"))
    for number, device in enumerate(unit.elsewhere):
        devices.append(_device(device, f"e{number}"))
        results.append(_allocation_result(f"e{number}"))
    pool = {"name": _POOL, "generation": 1, "resourceSliceCount": 2 if unit.sets else 1}
    spec = {"driver": unit.driver, "nodeName": _NODE, "pool": pool}
    slices: list[Wire] = [{"metadata": {"name": "devices"}, "spec": {**spec, "devices": devices}}]
    if unit.sets:
        slices.append({"metadata": {"name": "counters"}, "spec": {**spec, "sharedCounters": unit.sets}})
    return slices, [{"driver": unit.driver, **result} for result in results]


def _device(device: PoolDevice, name: str) -> Wire:
    return {**{field: device.wire[field] for field in _KEPT if device.wire.get(field) is not None}, "name": name}


def _allocation_result(name: str) -> Wire:
    return {"request": "held", "pool": _POOL, "device": name}


def _share(device: PoolDevice, name: str) -> Wire:
    consumed = {name: str(Quantity(value, Format.BINARY_SI)) for name, value in (device.consumed or {}).items()}
    result = {**_allocation_result(name), "shareID": "held"}
    return {**result, "consumedCapacity": consumed} if consumed else result


def _claim(request: SyntheticRequest) -> Wire:
    exactly: dict[str, Any] = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    if request.share:
        exactly["capacity"] = {"requests": {MEMORY: request.share, **dict(request.extra)}}
    return {
        "metadata": {"name": "trial", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }


def offers(unit: Unit, kind: DeviceKind) -> bool:
    """Whether the unit has a device of the kind that is neither allocated nor tainted."""
    return any(
        of == kind and not device.allocated and not is_tainted(device.wire)
        for device, of in zip(unit.offered, unit.kinds, strict=True)
    )
