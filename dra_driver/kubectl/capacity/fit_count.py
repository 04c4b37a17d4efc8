"""Counts how often each request fits in one unit, by allocating synthetic claims until the allocator refuses one.

Allocation is greedy like the scheduler's: each claim gets the first suitable device, and none is moved later. Equal
units are counted once.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import DraError
from dra_driver.core.quantity import NANO, Format, Quantity
from dra_driver.kube.devices import Wire
from dra_driver.kube.published import MEMORY
from dra_driver.kubectl.capacity.report import Gpus, Memory, ModelCapacity, RequestCapacity, StrandedShape
from dra_driver.kubectl.capacity.units import (
    DeviceKind,
    Sums,
    SyntheticRequest,
    Unit,
    UnitSupply,
    consumed_by_share,
    extra_for,
    is_tainted,
    supply_of,
)
from dra_driver.scheduler.allocation import (
    MAX_DEVICES,
    V1_36,
    Allocator,
    Limits,
    PoolDevice,
    SchedulerFeatures,
    SchedulerQuirks,
)

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
    exactly: dict[str, object] = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
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


# --- Adds the counts of units up, per node and in total.
#
# Computes the states of GPUs and the sums behind ``fits``, ``bySum`` and ``stranded`` (defined in ``report.py``).

ModelKey = tuple[str, str]
_DEVICES: Final = ""
"""Key of the sums of kinds that consume no counters: the number of devices."""


class _Line(Struct):
    """One request in one place. ``most`` is how many claims the units behind ``left`` would serve when unused."""

    in_use: int = 0
    fits: int = 0
    most: int = 0
    capped: bool = False
    left: Sums = field(default_factory=Counter)
    demand: Sums = field(default_factory=Counter)

    def by_sum(self) -> int:
        """Claims that the sums would serve; at least ``fits`` and at most what the hardware can serve."""
        counts = [max(0, self.left[stem]) // need for stem, need in self.demand.items() if need > 0]
        return max(self.fits, min([*counts, self.most]))

    def add(self, other: "_Line") -> None:
        self.in_use += other.in_use
        self.fits += other.fits
        self.most += other.most
        self.capped = self.capped or other.capped
        self.left.update(other.left)
        for stem, value in other.demand.items():
            self.demand[stem] = min(value, self.demand.get(stem, value))


class _Model(Struct):
    states: Counter[str] = field(default_factory=Counter)
    memory: Counter[str] = field(default_factory=Counter)
    lines: dict[SyntheticRequest, _Line] = field(default_factory=dict)


class Aggregate:
    """Counts of one place: a node, or the whole cluster."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, _Model] = {}

    def add(self, unit: Unit, counted: FitCounts, problem: str) -> None:
        """Adds one unit; with ``problem`` it is unavailable for that reason."""
        main_kind = unit.main_kind
        model = self._models.setdefault((main_kind.driver, main_kind.model), _Model())
        states = _states(unit, counted, problem)
        model.states.update(states)
        supply = counted.supply
        model.memory["total"] += supply.memory
        if "free" in states:
            model.memory["free"] += min(supply.memory_left, supply.memory * states["free"] // unit.gpu_count)
        elif "fragmented" in states:
            model.memory["fragmented"] += supply.memory_left
        for request in counted.fits or (SyntheticRequest(kind=kind) for kind in dict.fromkeys(unit.kinds)):
            line = model.lines.setdefault(request, _Line())
            line.add(_line(unit, counted, request, usable=not problem))

    def join(self, other: "Aggregate") -> None:
        for key, theirs in other._models.items():
            mine = self._models.setdefault(key, _Model())
            mine.states.update(theirs.states)
            mine.memory.update(theirs.memory)
            for request, line in theirs.lines.items():
                mine.lines.setdefault(request, _Line()).add(line)

    def models(self, places: Sequence["Aggregate"] = ()) -> list[ModelCapacity]:
        """Returns the counts. With ``places`` also for claims of several GPUs, which one place has to serve."""
        return [
            ModelCapacity(
                driver=driver,
                model=name,
                gpus=_gpus(model.states),
                memory_bytes=Memory(**{key: value // NANO for key, value in model.memory.items()}),
                requests=self._requests((driver, name), places),
            )
            for (driver, name), model in sorted(self._models.items())
        ]

    def stranded(self, places: Sequence["Aggregate"]) -> list[StrandedShape]:
        """Returns the requests that fit in none of the places although the total would suffice."""
        found = []
        for key in sorted(self._models):
            lines = self._models[key].lines
            for request, line in _lines_of_several(key, lines, places) + sorted(lines.items()):
                by_sum = line.by_sum()
                if line.fits or not by_sum:
                    continue
                why = _why_one(request, line)
                if request.count > 1:
                    one = SyntheticRequest(kind=request.kind)
                    most = max((place.fits(key, one) for place in places), default=0)
                    why = f"{lines[one].fits} are free, but at most {most} on one node"
                found.append(StrandedShape(driver=key[0], model=key[1], request=request.label, by_sum=by_sum, why=why))
        return found

    def fits(self, key: ModelKey, request: SyntheticRequest) -> int:
        """Returns how many claims for a request of a model fit here."""
        return self._models.get(key, _Model()).lines.get(request, _Line()).fits

    def size(self, key: ModelKey) -> int:
        """Returns the number of GPUs of a model here, in any state."""
        return self._models.get(key, _Model()).states.total()

    def _requests(self, key: ModelKey, places: Sequence["Aggregate"]) -> list[RequestCapacity]:
        lines = self._models[key].lines
        pairs = [*lines.items(), *_lines_of_several(key, lines, places)]
        return [
            RequestCapacity(
                request=request.label,
                profile=request.kind.profile,
                share=request.share,
                count=request.count,
                in_use=line.in_use,
                fits=line.fits,
                by_sum=line.by_sum(),
                stranded=line.by_sum() - line.fits,
                at_least=line.capped and line.fits >= MAX_FITS,
            )
            for request, line in sorted(pairs, key=lambda pair: _order(pair[0]))
        ]


def _order(request: SyntheticRequest) -> tuple[bool, str, str, int, str]:
    """Sort key: whole devices by count, then profiles by name, then shares."""
    return bool(request.share), request.kind.profile, request.kind.type, request.count, request.share


def _states(unit: Unit, counted: FitCounts, problem: str) -> dict[str, int]:
    supply, whole = counted.supply, SyntheticRequest(kind=unit.main_kind)
    anything = any(counted.fits.values())
    used = min(supply.allocated, unit.gpu_count)
    rest = unit.gpu_count - used
    free = 0
    if unit.main_kind.profile:
        free = rest if anything and not supply.in_parts else 0
    else:
        free = min(rest - supply.in_parts, counted.fits.get(whole, 0)) if rest else 0
    rest -= free
    states = Counter({"used": used, problem or "free": free})
    if rest and supply.in_parts:
        states["fragmented" if anything and not problem else "used"] += rest
    elif rest:
        states[problem or ("tainted" if supply.tainted else "other")] += rest
    return {state: count for state, count in states.items() if count}


def _line(unit: Unit, counted: FitCounts, request: SyntheticRequest, *, usable: bool) -> _Line:
    supply, kind = counted.supply, request.kind
    line = _Line(in_use=supply.in_use.get(kind, 0))
    demand = supply.demands.get(kind)
    if request.share:
        line.demand = Counter(consumed_by_share(supply.shared[kind], request.share, request.extra))
    else:
        line.demand = demand.copy() if demand else Counter({_DEVICES: 1})
    if not usable:
        return line
    line.fits = counted.fits.get(request, 0)
    line.most = counted.empty.get(request, 0)
    line.capped = request in counted.capped
    if request.share:
        line.left = Counter(supply.share_left.get(kind))
    elif not demand or kind.shared:
        line.left, line.demand = Counter({_DEVICES: line.fits}), Counter({_DEVICES: 1})
    elif offers(unit, kind) and not unit.overdrawn and not counted.problem:
        line.left = Counter(supply.left)
    else:
        line.most = 0
    return line


def _lines_of_several(
    key: ModelKey, lines: Mapping[SyntheticRequest, _Line], places: Sequence[Aggregate]
) -> list[tuple[SyntheticRequest, _Line]]:
    """Returns lines for claims of 2, 4, 8, ... whole devices, up to the number in the largest place."""
    most = min(MAX_DEVICES, max((place.size(key) for place in places), default=0))
    counts = sorted({2**power for power in range(1, 6) if 2**power <= most} | ({most} if most > 1 else set()))
    found = []
    for one in [each for each in lines if not (each.share or each.kind.profile or each.kind.shared)]:
        free = [place.fits(key, one) for place in places]
        for count in counts:
            fits, by_sum = sum(here // count for here in free), sum(free) // count
            left, demand = Counter({_DEVICES: sum(free)}), Counter({_DEVICES: count})
            line = _Line(fits=fits, most=by_sum, left=left, demand=demand)
            found.append((SyntheticRequest(kind=one.kind, count=count), line))
    return found


def _why_one(request: SyntheticRequest, line: _Line) -> str:
    if request.share:
        named = {MEMORY: request.share, **dict(request.extra)}
        free = [f"{Quantity.from_bytes(line.left[name] // NANO)} of {name}" for name in named]
        wanted = " and ".join(f"{amount} of {name}" for name, amount in named.items())
        if len(named) == 1:
            return f"{free[0]} are free, but less than {request.share} on every GPU"
        return f"{' and '.join(free)} are free, but no GPU has {wanted}"
    stem = "memory-slice" if "memory-slice" in line.demand else next(s for s, need in line.demand.items() if need > 0)
    noun = "memory slices" if stem == "memory-slice" else stem
    left, need = (Quantity.from_bytes(amount[stem] // NANO) for amount in (line.left, line.demand))
    return f"{left} {noun} are free in total, {need} are needed, but not together on any GPU"


def _gpus(states: Counter[str]) -> Gpus:
    reasons = {name: count for name, count in sorted(states.items()) if name not in ("free", "used", "fragmented")}
    return Gpus(
        total=states.total(),
        free=states["free"],
        used=states["used"],
        fragmented=states["fragmented"],
        unavailable=sum(reasons.values()),
        reasons=reasons,
    )
