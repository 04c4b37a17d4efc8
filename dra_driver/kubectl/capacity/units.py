"""Split pools into units: devices that consume the same counter set, or have the UUID of the same GPU.

An allocation in one unit does not affect other units, so units are counted separately, and equal units only once.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.quantity import NANO
from dra_driver.kube.devices import Wire, attribute_shown, unhealthy_by
from dra_driver.kube.published import COMPUTE_PERCENT, MEMORY, names
from dra_driver.scheduler.allocation import Pool, PoolDevice, consumption, nano, untolerated

# --- Kinds of devices that claims can request: whole devices of a model, MIG profiles, shares.


class DeviceKind(NamedTuple):
    """Devices that serve the same claims. ``profile`` is "" for whole ones; ``shared`` allows several allocations."""

    driver: str
    model: str
    type: str
    profile: str
    shared: bool = False


class SyntheticRequest(NamedTuple):
    """A request to try: ``count`` devices of a kind, or ``share`` of the memory and ``extra`` of other capacities.
    ``default``: the amounts that one without any gets, if they are a part of the device."""

    kind: DeviceKind
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which is not used
    share: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    default: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """``2 GPUs``, ``3g.40gb``, ``share of 10Gi, 12 computePercent``; ``1 shared GPU``: a claim without amounts,
        which is a ``default share of 10Gi, 12 computePercent`` if the policy sets one."""
        if self.default:
            amounts = (amount if name == MEMORY else f"{amount} {name}" for name, amount in self.default)
            of_profile = f"{self.kind.profile} " if self.kind.profile else ""
            return f"{of_profile}default share of {', '.join(amounts)}"
        if self.share:
            return ", ".join([f"share of {self.share}", *(f"{amount} {name}" for name, amount in self.extra)])
        noun = "GPU" if self.kind.type == "gpu" else self.kind.type or "device"
        name = self.kind.profile or (noun if self.count == 1 else f"{noun}s" if noun == "GPU" else noun)
        if self.kind.shared:
            name = f"shared {name}"
        return name if self.kind.profile and self.count == 1 else f"{self.count} {name}"


def node_problem(node: Wire) -> str:
    """Return why ordinary pods are not placed on the node: ``deleting``, ``cordoned``, ``not-ready`` or ""."""
    if (node.get("metadata") or {}).get("deletionTimestamp"):
        return "deleting"
    if (node.get("spec") or {}).get("unschedulable"):
        return "cordoned"
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "True")
    return "" if ready == "True" else "not-ready"


def kind_of(device: Wire, driver: str, *, shares: bool) -> DeviceKind:
    """Return the kind of a device. Without ``shares`` (gate DRAConsumableCapacity off) no device is shared."""
    text = partial(attribute_shown, device.get("attributes"), driver)
    found, profile = text(names.TYPE), text(names.PROFILE)
    model = text(names.PRODUCT_NAME) or found or "device"
    return _kind(driver, model, found, profile, shares and bool(device.get("allowMultipleAllocations")))


@lru_cache(maxsize=1024)
def _kind(driver: str, model: str, found: str, profile: str, shared: bool) -> DeviceKind:
    # Equal kinds are one object, which makes comparisons fast.
    return DeviceKind(driver=driver, model=model, type=found, profile=profile, shared=shared)


class Unit(Struct, kw_only=True, eq=False):
    """``offered`` devices can be tried; ``elsewhere`` are allocated ones of other nodes that consume the same counters.

    ``overdrawn``: allocated devices consume more than the pool has, which blocks all devices with counters.
    """

    driver: str
    offered: list[PoolDevice] = field(default_factory=list)
    elsewhere: list[PoolDevice] = field(default_factory=list)
    sets: list[Wire] = field(default_factory=list)
    kinds: list[DeviceKind] = field(default_factory=list)
    overdrawn: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the unit, independent of the node that reaches it."""
        return (*self.offered[0].slice.key, self.offered[0].name)

    @property
    def gpu_count(self) -> int:
        """Number of whole devices; at least one."""
        return max(1, sum(not kind.profile for kind in self.kinds))

    @property
    def main_kind(self) -> DeviceKind:
        return next((kind for kind in self.kinds if not kind.profile), self.kinds[0])

    def is_local(self) -> bool:
        return all(device.placement.get("nodeName") for device in self.offered)

    def without_allocations(self) -> "Unit":
        offered = [replace(device, allocated=False, shared=False, consumed=None) for device in self.offered]
        return Unit(driver=self.driver, offered=offered, sets=self.sets, kinds=self.kinds)

    def has_allocations(self) -> bool:
        return bool(self.elsewhere) or self.overdrawn or any(one.allocated or one.shared for one in self.offered)

    def signature(self) -> Hashable:
        """Return a key that is equal for units in which every request fits equally often."""
        numbers = {entry["name"]: index for index, entry in enumerate(self.sets)}
        return (
            self.overdrawn,
            tuple(tuple((name, item["value"]) for name, item in (s.get("counters") or {}).items()) for s in self.sets),
            tuple(
                _device_signature(device, kind, numbers) for device, kind in zip(self.offered, self.kinds, strict=True)
            ),
            tuple(_counter_signature(device.wire, numbers) for device in self.elsewhere),
        )


def units_of(pool: Pool, *, shares: bool) -> list[Unit]:
    """Return the units of a usable pool, in the order of their first devices."""
    driver = pool.key[0]
    offered = [device for device in pool.devices if not _is_monitor(device.wire, driver)]
    units = units_of_devices(driver, offered, shares=shares)
    if not pool.counter_slices:
        return units
    overdrawn = any(value < 0 for value in pool.supply.left)
    sets = {entry["name"]: entry for item in pool.counter_slices for entry in item.spec["sharedCounters"]}
    taken = [device for device in pool.elsewhere if device.allocated or device.shared]
    for unit in units:
        names = dict.fromkeys(name for device in unit.offered for name in _set_names(device.wire))
        unit.sets = [sets[name] for name in names if name in sets]
        unit.overdrawn = overdrawn
        if taken:
            unit.elsewhere = [device for device in taken if any(name in names for name in _set_names(device.wire))]
    return units


def units_of_devices(driver: str, devices: Sequence[PoolDevice], *, shares: bool) -> list[Unit]:
    leaders: dict[Hashable, Hashable] = {}
    marks = []
    for place, device in enumerate(devices):
        mine: list[Hashable] = [("set", name) for name in _set_names(device.wire)]
        text = partial(attribute_shown, device.wire.get("attributes"), driver)
        if uuid := text(names.PARENT_UUID) or text(names.UUID):
            mine.append(("body", uuid))
        if not mine:
            mine.append(place)
        marks.append(mine[0])
        for mark in mine:
            leaders[_leader(leaders, mark)] = _leader(leaders, mine[0])
    units: dict[Hashable, Unit] = {}
    for device, mark in zip(devices, marks, strict=True):
        unit = units.setdefault(_leader(leaders, mark), Unit(driver=driver))
        unit.offered.append(device)
        unit.kinds.append(kind_of(device.wire, driver, shares=shares))
    return list(units.values())


def _leader(leaders: dict[Hashable, Hashable], mark: Hashable) -> Hashable:
    while leaders.setdefault(mark, mark) != mark:
        leaders[mark] = leaders[leaders[mark]]
        mark = leaders[mark]
    return mark


def _is_monitor(device: Wire, driver: str) -> bool:
    """Return whether the device is for admin access only, which allocates nothing."""
    return attribute_shown(device.get("attributes"), driver, names.TYPE) == names.TYPE_MONITOR


def _set_names(device: Wire) -> Iterable[str]:
    return (entry["counterSet"] for entry in device.get("consumesCounters") or ())


def _device_signature(device: PoolDevice, kind: DeviceKind, numbers: Mapping[str, int]) -> Hashable:
    wire = device.wire
    capacity = wire.get("capacity") or {}
    memory = (capacity.get(names.MEMORY) or {}).get("value")
    return (
        kind,
        device.allocated,
        device.shared,
        tuple(sorted((device.consumed or {}).items())),
        is_tainted(wire),
        bool(unhealthy_by(wire)),
        bool(wire.get("bindingConditions")),
        repr(capacity) if kind.shared else memory,
        _counter_signature(wire, numbers),
    )


def _counter_signature(wire: Wire, numbers: Mapping[str, int]) -> Hashable:
    return tuple(
        (
            numbers.get(entry["counterSet"]),
            tuple((name, c["value"]) for name, c in (entry.get("counters") or {}).items()),
        )
        for entry in wire.get("consumesCounters") or ()
    )


def is_tainted(device: Wire) -> bool:
    """Return whether the device has a taint that a claim without tolerations does not tolerate."""
    return bool(device.get("taints")) and untolerated(device["taints"], ()) is not None


def memory_nano(device: Wire) -> int:
    """Return billionths of a byte; 0 without published memory."""
    found = (device.get("capacity") or {}).get(names.MEMORY)
    return nano(found["value"]) if found else 0


# --- Requests and consumption of shares.
#
# A share of a tenth of the memory also requests a tenth of each capacity that a claim would otherwise take all of.

Extra = tuple[tuple[str, str], ...]
"""Capacities besides memory, with their amounts."""


def extra_for(device: Wire, share: str) -> Extra:
    """Return the part of each other capacity that corresponds to the memory: whole units, rounded down, at least min.

    Only capacities with a default of all of them: of others the policy has set the share's default. Empty without
    published memory.
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


def default_share(device: Wire) -> Extra:
    """Return the amounts that a claim without any gets; empty unless they are a part of the device."""
    capacities: Mapping[str, Wire] = device.get("capacity") or {}
    found = []
    for name in (MEMORY, COMPUTE_PERCENT):
        default = (capacities.get(name, {}).get("requestPolicy") or {}).get("default")
        if default is not None:
            found.append((name, str(default)))
    is_part = any(nano(amount) < nano(capacities[name]["value"]) for name, amount in found[:1])
    return tuple(found) if is_part else ()


def consumed_by_share(device: Wire, share: str, extra: Extra) -> dict[str, int]:
    """Return the billionths of each capacity that such a share consumes. Raises ValueError for invalid quantities."""
    requests = {MEMORY: share, **dict(extra)}
    found = consumption(requests, device.get("capacity") or {})
    return {name: amount.nano for name, amount in found.items()}


def left_by_shares(device: PoolDevice) -> dict[str, int]:
    """Return the billionths of each capacity that no share consumes."""
    capacities: Mapping[str, Wire] = device.wire.get("capacity") or {}
    consumed = device.consumed or {}
    return {name: max(0, nano(item["value"]) - consumed.get(name, 0)) for name, item in capacities.items()}


# --- The rest of a unit: counters, memory and devices, regardless of their position.

Sums = Counter[str]
"""Stem of counters (``memory-slice`` for ``memory-slice-3``) -> billionths."""

_NUMBER: Final = re.compile(r"-?\d+\Z")


class UnitSupply(Struct, frozen=True, kw_only=True):
    """Sums of one unit, in billionths.

    ``demands``: the minimum that a device of each kind with counters consumes. ``share_left``: the rest that shares
    leave, by capacity. ``shared``: one device of each shared kind.
    """

    left: Mapping[str, int]
    demands: Mapping[DeviceKind, Sums]
    share_left: Mapping[DeviceKind, Sums]
    shared: Mapping[DeviceKind, Wire]
    memory: int
    memory_left: int
    allocated: int
    in_parts: bool
    tainted: bool
    in_use: Mapping[DeviceKind, int]
    held_unhealthy: int


def supply_of(unit: Unit) -> UnitSupply:
    """Raises ValueError for invalid quantities."""
    pairs = list(zip(unit.offered, unit.kinds, strict=True))
    total = _sum(unit.sets)
    left = total.copy()
    for device in (*unit.offered, *unit.elsewhere):
        if device.allocated or device.shared:
            left.subtract(_sum(device.wire.get("consumesCounters")))
    demands: dict[DeviceKind, Sums] = {}
    for device, kind in pairs:
        if device.wire.get("consumesCounters"):
            wanted = _sum(device.wire["consumesCounters"])
            known = demands.setdefault(kind, wanted)
            demands[kind] = Counter({stem: min(value, known[stem]) for stem, value in wanted.items()})
    memory, memory_left = _memory(unit, left, total)
    return UnitSupply(
        left=left,
        demands=demands,
        share_left=_share_left(unit, left),
        shared={kind: device.wire for device, kind in pairs if kind.shared},
        memory=memory,
        memory_left=max(0, memory_left),
        allocated=sum(device.allocated and not kind.profile for device, kind in pairs),
        in_parts=any(device.shared or (device.allocated and kind.profile) for device, kind in pairs)
        or bool(unit.elsewhere),
        tainted=any(is_tainted(device.wire) for device, _ in pairs),
        in_use=Counter(kind for device, kind in pairs if device.allocated or device.shared),
        held_unhealthy=_held_unhealthy(pairs, unit.gpu_count),
    )


def _held_unhealthy(pairs: Sequence[tuple[PoolDevice, DeviceKind]], gpus: int) -> int:
    """Return how many GPUs have an unhealthy device that a claim holds; partitions of one GPU count once."""
    held = [kind for device, kind in pairs if (device.allocated or device.shared) and unhealthy_by(device.wire)]
    return min(gpus, max(sum(not kind.profile for kind in held), bool(held)))


def _sum(entries: Sequence[Wire] | None) -> Sums:
    found: Sums = Counter()
    for entry in entries or ():
        for name, counter in (entry.get("counters") or {}).items():
            found[_NUMBER.sub("", name) or name] += nano(counter["value"])
    return found


def _memory(unit: Unit, left: Sums, total: Sums) -> tuple[int, int]:
    # A shared device consumes its counters completely; the rest is available to other shares.
    for_shares = sum(left_by_shares(device).get(MEMORY, 0) for device in unit.offered if device.shared)
    if MEMORY in total:
        return total[MEMORY], left[MEMORY] + for_shares
    if unit.sets:  # placements overlap, and no counter says how much memory they leave
        largest = max(memory_nano(device.wire) for device in unit.offered)
        return largest, for_shares if any(device.allocated or device.shared for device in unit.offered) else largest
    of_whole = not unit.main_kind.profile
    devices = [d for d, kind in zip(unit.offered, unit.kinds, strict=True) if not (of_whole and kind.profile)]
    whole = sum(memory_nano(device.wire) for device in devices)
    return whole, sum(
        memory_nano(device.wire) - (device.consumed or {}).get(MEMORY, 0) for device in devices if not device.allocated
    )


def _share_left(unit: Unit, left: Sums) -> dict[DeviceKind, Sums]:
    found: dict[DeviceKind, Sums] = {}
    for device, kind in zip(unit.offered, unit.kinds, strict=True):
        if not kind.shared or device.allocated or is_tainted(device.wire):
            continue
        mine = left_by_shares(device)
        if device.wire.get("consumesCounters") and not device.shared and MEMORY in mine:
            # The first share consumes the counters like a whole device, so the memory of MIG devices is not available.
            mine[MEMORY] = max(0, min(mine[MEMORY], left.get(MEMORY, mine[MEMORY])))
        found.setdefault(kind, Counter()).update(mine)
    return found
