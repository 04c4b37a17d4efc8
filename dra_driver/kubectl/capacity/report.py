"""Result of `survey`, as values and as JSON. Counts are of GPUs or claims, memory is in bytes.

The fields are the schema of the output: new ones may be added, but none is renamed or gets another meaning. The help of
``kubectl dra capacity`` defines the terms.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.quantity import NANO, Quantity
from dra_driver.kube.published import MEMORY
from dra_driver.kubectl.capacity import units
from dra_driver.kubectl.capacity.units import DeviceKind, Sums, SyntheticRequest, Unit
from dra_driver.scheduler.allocation import MAX_DEVICES

MAX_FITS: Final = 256
"""Limit of claims tried on one unit; a count that reaches it is a lower bound."""


LEGEND: Final = (
    "IN USE counts allocated devices. FITS, BY SUM and STRANDED count claims for the request of their line. Lines are"
    " alternatives: a claim reduces the counts of all lines."
)
"""Printed by the command and the web UI below their tables."""


class Gpus(Struct, frozen=True, kw_only=True, rename=camel):
    """GPUs (or other whole devices) of a model; ``total`` is the sum of the next four. Of ``used`` and ``fragmented``
    ones, ``held_unhealthy`` have an unhealthy device that a claim holds.

    ``reasons`` splits ``unavailable``: ``tainted``, ``incomplete-pool``, ``invalid-pool``, ``cordoned``, ``not-ready``,
    ``deleting``, ``no-such-node``, ``other``.
    """

    total: int = 0
    free: int = 0
    used: int = 0
    fragmented: int = 0
    unavailable: int = 0
    reasons: Mapping[str, int] = field(name="unavailableReasons", default_factory=dict)
    held_unhealthy: int = 0


class Memory(Struct, frozen=True, kw_only=True, rename=camel):
    """Memory of all GPUs and free GPUs, and the rest of fragmented GPUs; 0 if unpublished."""

    total: int = 0
    free: int = 0
    fragmented: int = 0


class RequestCapacity(Struct, frozen=True, kw_only=True, rename=camel):
    """One request. ``in_use`` counts allocated devices of its kind, and is None for several GPUs in one claim and for
    shares, whose devices other requests count. With ``at_least``, ``fits`` is a lower bound.

    ``by_sum`` is for MIG profiles the rest of the counters on GPUs with such a free device, divided by the need of one
    device; for shares the rest of the memory; for several GPUs the free GPUs of all nodes. It is at most the number
    that the same GPUs serve when unused.
    """

    request: str
    profile: str = ""
    share_bytes: int | None = None
    count: int = 1
    in_use: int | None = field(name="inUseCount", default=None)
    fits: int = field(name="fitCount", default=0)
    by_sum: int = field(name="bySumCount", default=0)
    stranded: int = field(name="strandedCount", default=0)
    at_least: bool = False


class ModelCapacity(Struct, frozen=True, kw_only=True, rename=camel):
    """One model of one driver, on one node or in total."""

    driver: str
    model: str = field(name="product")
    gpus: Gpus = field(name="gpuCount")
    memory_bytes: Memory
    requests: Sequence[RequestCapacity] = ()


class NodeCapacity(Struct, frozen=True, kw_only=True, rename=camel):
    """One node; ``node`` is "" for devices that several nodes reach. ``problem`` is why it takes no ordinary pods."""

    node: str
    problem: str
    models: Sequence[ModelCapacity] = field(name="products")


class StrandedShape(Struct, frozen=True, kw_only=True, rename=camel):
    driver: str
    model: str = field(name="product")
    request: str
    by_sum: int = field(name="bySumCount")
    why: str = field(name="reason")


class AddedCapacity(Struct, frozen=True, kw_only=True, rename=camel):
    """One more node with ``gpus``: what fits there when it is empty, if its ``not_checked`` parts allow it."""

    gpus: str
    models: Sequence[ModelCapacity] = field(name="products")
    not_checked: Sequence[str]


class CapacityReport(JsonDocument, frozen=True, kw_only=True):
    """Capacity of each product. ``notes`` are about uncounted devices, ``gaps`` about unread objects."""

    source: str = ""
    server_version: str = ""
    gaps: Sequence[str] = ()
    notes: Sequence[str] = ()
    models: Sequence[ModelCapacity] = field(name="items", default=())
    stranded_shapes: Sequence[StrandedShape] = field(name="stranded", default=())
    nodes: Sequence[NodeCapacity] = ()
    added_node: AddedCapacity | None = None


# --- The states of GPUs and the sums of units, per node and in total.

ModelKey = tuple[str, str]


class FitCounts(Struct, frozen=True, kw_only=True):
    """Number of claims per request that fit in a unit now, and without any allocations (``empty``).

    For ``capped`` requests the count is a lower bound. ``problem`` is the reason for a missing count.
    """

    fits: Mapping[SyntheticRequest, int]
    empty: Mapping[SyntheticRequest, int]
    supply: units.UnitSupply
    capped: frozenset[SyntheticRequest] = frozenset()
    problem: str = ""


_DEVICES: Final = ""  # key of the sums of kinds that consume no counters: the number of devices


class _Line(Struct):
    """One request in one place. ``most`` is the number of claims that the units behind ``left`` serve when unused."""

    in_use: int = 0
    fits: int = 0
    most: int = 0
    capped: bool = False
    left: Sums = field(default_factory=Counter)
    demand: Sums = field(default_factory=Counter)

    def by_sum(self) -> int:
        """Claims that the sums would serve; at least ``fits``, at most ``most``."""
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
    held_unhealthy: int = 0
    lines: dict[SyntheticRequest, _Line] = field(default_factory=dict)


class Aggregate:
    """Counts of a node or of the whole cluster."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, _Model] = {}

    def add(self, unit: Unit, counted: FitCounts, problem: str) -> None:
        """Add one unit; with ``problem`` it is unavailable for that reason."""
        main_kind = unit.main_kind
        model = self._models.setdefault((main_kind.driver, main_kind.model), _Model())
        states = _states(unit, counted, problem)
        model.states.update(states)
        supply = counted.supply
        model.memory["total"] += supply.memory
        model.held_unhealthy += supply.held_unhealthy
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
            mine.held_unhealthy += theirs.held_unhealthy
            for request, line in theirs.lines.items():
                mine.lines.setdefault(request, _Line()).add(line)

    def models(self, places: Sequence["Aggregate"] = ()) -> list[ModelCapacity]:
        """Return the counts. With ``places`` also for claims of several GPUs, which one place has to serve."""
        return [
            ModelCapacity(
                driver=driver,
                model=name,
                gpus=_gpus(model.states, model.held_unhealthy),
                memory_bytes=Memory(**{key: value // NANO for key, value in model.memory.items()}),
                requests=self._requests((driver, name), places),
            )
            for (driver, name), model in sorted(self._models.items())
        ]

    def stranded(self, places: Sequence["Aggregate"]) -> list[StrandedShape]:
        """Return the requests that fit in none of the places although the total would suffice."""
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
        return self._models.get(key, _Model()).lines.get(request, _Line()).fits

    def size(self, key: ModelKey) -> int:
        """Return the number of GPUs of a model here, in any state."""
        return self._models.get(key, _Model()).states.total()

    def _requests(self, key: ModelKey, places: Sequence["Aggregate"]) -> list[RequestCapacity]:
        lines = self._models[key].lines

        def order(request: SyntheticRequest) -> tuple[bool, str, str, int, str]:
            """Whole devices by count, then profiles by name, then shares."""
            return bool(request.share), request.kind.profile, request.kind.type, request.count, request.share

        pairs = [*lines.items(), *_lines_of_several(key, lines, places)]
        return [
            RequestCapacity(
                request=request.label,
                profile=request.kind.profile,
                share_bytes=Quantity.parse(request.share).as_int() if request.share else None,
                count=request.count,
                in_use=line.in_use if request.count == 1 and not request.share else None,
                fits=line.fits,
                by_sum=line.by_sum(),
                stranded=line.by_sum() - line.fits,
                at_least=line.capped and line.fits >= MAX_FITS,
            )
            for request, line in sorted(pairs, key=lambda pair: order(pair[0]))
        ]


def _states(unit: Unit, counted: FitCounts, problem: str) -> dict[str, int]:
    supply = counted.supply
    whole = sum(fits for each, fits in counted.fits.items() if each.kind == unit.main_kind and not each.share)
    anything = any(counted.fits.values())
    used = min(supply.allocated, unit.gpu_count)
    rest = unit.gpu_count - used
    free = 0
    if unit.main_kind.profile:
        free = rest if anything and not supply.in_parts else 0
    else:
        free = min(rest - supply.in_parts, whole) if rest else 0
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
        line.demand = Counter(units.consumed_by_share(supply.shared[kind], request.share, request.extra))
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
    """Return lines for claims of 2, 4, 8, ... whole devices, up to the number in the largest place."""
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
    return f"{left} {noun} are free in total, but no GPU has {need} together"


def _gpus(states: Counter[str], held_unhealthy: int) -> Gpus:
    reasons = {name: count for name, count in sorted(states.items()) if name not in ("free", "used", "fragmented")}
    return Gpus(
        total=states.total(),
        free=states["free"],
        used=states["used"],
        fragmented=states["fragmented"],
        unavailable=sum(reasons.values()),
        reasons=reasons,
        held_unhealthy=held_unhealthy,
    )


def offers(unit: Unit, kind: DeviceKind) -> bool:
    """Return whether the unit has a device of the kind that is not allocated and not tainted."""
    return any(
        of == kind and not device.allocated and not units.is_tainted(device.wire)
        for device, of in zip(unit.offered, unit.kinds, strict=True)
    )
