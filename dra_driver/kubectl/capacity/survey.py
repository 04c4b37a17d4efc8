"""Count free, used, fragmented and stranded devices of a cluster, and the claims that fit.

The allocator decides which pools a node reaches, so a pool counts exactly when the scheduler would use it. Other
requirements of pods (CPU, affinity, node taints) are ignored. Devices that several nodes reach are a separate place.
Synthetic claims are allocated in each unit until the allocator refuses one.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import DraError
from dra_driver.core.quantity import Format, Quantity
from dra_driver.kube.devices import Wire, newest_slices
from dra_driver.kube.published import MEMORY
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import units
from dra_driver.kubectl.capacity.report import MAX_FITS, Aggregate, CapacityReport, FitCounts, NodeCapacity
from dra_driver.kubectl.capacity.units import DeviceKind, SyntheticRequest, Unit
from dra_driver.scheduler import allocation
from dra_driver.scheduler.allocation import Pool, PoolDevice, PoolKey, PoolSlice

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

    features: allocation.SchedulerFeatures = field(default_factory=allocation.SchedulerFeatures)
    quirks: allocation.SchedulerQuirks = allocation.V1_36
    shares: Sequence[str] = ("10Gi",)
    timeout_s: float = 60.0
    clock: Callable[[], float] = time.monotonic


class FitCounter:
    """Count how often requests fit in units, equal units once. Not thread-safe."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._counts_by_signature: dict[Hashable, FitCounts] = {}
        self._end = options.clock() + options.timeout_s

    def count_fits(self, unit: Unit) -> FitCounts:
        """Count the claims that fit in the unit now, regardless of the node and of other requirements of pods."""
        key = unit.signature()
        if key not in self._counts_by_signature:
            self._counts_by_signature[key] = self._count_fits(unit)
        return self._counts_by_signature[key]

    def _count_fits(self, unit: Unit) -> FitCounts:
        supply = units.supply_of(unit)
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
            found.append(SyntheticRequest(kind=kind, default=units.default_share(device.wire) if kind.shared else ()))
            for share in self._options.shares if kind.shared else ():
                found.append(SyntheticRequest(kind=kind, share=share, extra=units.extra_for(device.wire, share)))
        return found

    def _count(self, unit: Unit, request: SyntheticRequest) -> int:
        slices, results = _synthetic_cluster(unit, request.kind)
        claim = _claim(request)
        count = 0
        while count < MAX_FITS:
            allocator = allocation.Allocator(
                slices=slices,
                classes=[_CLASS],
                allocated=[{"status": {"allocation": {"devices": {"results": results}}}}],
                features=self._options.features,
                quirks=self._options.quirks,
                limits=allocation.Limits(steps=100_000, timeout_s=2.0, clock=self._options.clock),
                new_share_id=lambda: "share",
            )
            outcome = allocator.allocate({"metadata": {"name": _NODE}}, [claim])
            if outcome.allocations is None:
                break
            got = outcome.allocations[0]["devices"]["results"]
            count += 1
            if all(item.get("shareID") and not item.get("consumedCapacity") for item in got):
                return MAX_FITS  # shares without consumption are unlimited
            results = [*results, *got]
        return count


def _synthetic_cluster(unit: Unit, kind: DeviceKind) -> tuple[list[Wire], list[Wire]]:
    """Return slices with the unit's devices of one kind, and the allocation results of its allocated devices.

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
    exactly: dict[str, object] = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    if request.share:
        exactly["capacity"] = {"requests": {MEMORY: request.share, **dict(request.extra)}}
    return {
        "metadata": {"name": "trial", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }


ANYWHERE: Final = ""
_MAX_NOTES: Final = 10
_DEFAULTS: Final = Options()


def survey(state: ClusterState, options: Options = _DEFAULTS, *, driver: str = "", node: str = "") -> CapacityReport:
    """Count the capacity of a cluster; ``driver`` and ``node`` select a part. Slices must include taints of rules.

    Raises AllocationError for objects that no API server returns. Runs about ``options.timeout_s`` at most.
    """
    wires = {"slices": state.slices, "allocated": state.claims}
    return allocation.guarded(lambda: _Survey(state, options, driver, node).report(), wires)


class _Survey:
    def __init__(self, state: ClusterState, options: Options, driver: str, node: str) -> None:
        self._state = state
        self._only_node = node
        self._driver = driver
        self._shares = options.features.consumable_capacity
        self._allocator = allocation.Allocator(
            slices=state.slices,
            classes=(),
            allocated=state.claims,
            features=options.features,
            quirks=options.quirks,
            limits=allocation.Limits(clock=options.clock),
        )
        self._fit_counter = FitCounter(options)
        self._notes: list[str] = []
        self._broken: dict[PoolKey, str] = {}
        self._counted_units: set[tuple[str, ...]] = set()
        self._places: dict[str, Aggregate] = {}

    def report(self) -> CapacityReport:
        problems = {}
        for node, problem in self._nodes():
            problems[node["metadata"]["name"]] = problem
            self._count_node(node, problem)
        self._count_broken()
        whole = Aggregate()
        for place in self._places.values():
            whole.join(place)
        places, more = list(self._places.values()), len(self._notes) - _MAX_NOTES
        return CapacityReport(
            source=self._state.source,
            server_version=self._state.server_version,
            gaps=tuple(self._state.gaps),
            notes=(*self._notes[:_MAX_NOTES], *([f"and {more} more"] if more > 0 else [])),
            models=tuple(whole.models(places)),
            stranded_shapes=tuple(whole.stranded(places)),
            nodes=tuple(
                NodeCapacity(node=name, problem=problems.get(name, ""), models=tuple(place.models()))
                for name, place in sorted(self._places.items())
            ),
        )

    def _nodes(self) -> Iterator[tuple[Wire, str]]:
        """Yield nodes with the reason why they take no ordinary pods, then nodes that only slices name.

        Without any node in the state, nodes that slices name are assumed to be usable.
        """
        known = set()
        for node in self._state.nodes:
            known.add(node["metadata"]["name"])
            if self._only_node in ("", node["metadata"]["name"]):
                yield node, units.node_problem(node)
        missing = "no-such-node" if known else ""
        for item in self._state.slices:
            spec = item["spec"]
            own = spec.get("devices") or () if spec.get("perDeviceNodeSelection") else ()
            for name in filter(None, (spec.get("nodeName"), *(device.get("nodeName") for device in own))):
                if name not in known and self._only_node in ("", name):
                    known.add(name)
                    yield {"metadata": {"name": name}}, missing

    def _count_node(self, node: Wire, problem: str) -> None:
        name = node["metadata"]["name"]
        try:
            reach = self._allocator.reachable(node)
        except DraError as error:
            self._note(f"node {name}: its devices cannot be determined: {error}")
            return
        for pool in reach.broken:
            if pool.key not in self._broken and self._wanted(pool.key):
                self._broken[pool.key] = pool.why
                self._note(f"pool {pool} is {pool.why}: {pool.detail}")
        for pool in reach.pools:
            if self._wanted(pool.key):
                self._count(pool, name, problem)

    def _count(self, pool: Pool, node: str, problem: str) -> None:
        for unit in units.units_of(pool, shares=self._shares):
            local = unit.is_local()
            if not local:
                # Reachable from other nodes: counted once, on the first usable node.
                if problem or unit.key in self._counted_units:
                    continue
                self._counted_units.add(unit.key)
            self._add(unit, node if local else ANYWHERE, problem)

    def _add(self, unit: Unit, place: str, problem: str) -> None:
        counted = self._fit_counter.count_fits(unit)
        if counted.problem:
            self._note(f"{'/'.join(unit.key)}: {counted.problem}", by=counted.problem)
        self._places.setdefault(place, Aggregate()).add(unit, counted, problem)

    def _count_broken(self) -> None:
        if not self._broken:
            return
        uses = allocation.pool_uses(self._state.claims, shares=self._shares)
        by_place: dict[tuple[PoolKey, str], list[PoolDevice]] = {}
        for order, wire in enumerate(newest_slices(self._state.slices)):
            item = PoolSlice.read(wire, order)
            if item.key not in self._broken:
                continue
            for device in item.read_contents(uses.get(item.key, allocation.NO_USE)).devices:
                node = device.placement.get("nodeName") or ANYWHERE
                if not self._only_node or node in (ANYWHERE, self._only_node):
                    by_place.setdefault((item.key, node), []).append(device)
        for (key, node), devices in by_place.items():
            for unit in units.units_of_devices(key[0], devices, shares=self._shares):
                self._add(unit, node, f"{self._broken[key]}-pool")

    def _wanted(self, key: PoolKey) -> bool:
        return not self._driver or key[0] == self._driver

    def _note(self, text: str, *, by: str = "") -> None:
        """Add a note once per text, or once per ``by`` if many devices have the same problem."""
        if text not in self._notes and not (by and any(known.endswith(by) for known in self._notes)):
            self._notes.append(text)
