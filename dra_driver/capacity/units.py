"""Units: devices that exclude or influence one another, which is one GPU in all its forms.

Owns the split of a pool into units: devices belong together when they consume the same counter set or carry the UUID of
the same GPU. A claim for one device of one unit leaves every other unit as it was, so units are weighed one by one, and
equal units once. Refuses to know nodes.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.allocation.amounts import nano
from dra_driver.allocation.devices import PoolDevice
from dra_driver.allocation.pools import Pool
from dra_driver.allocation.taints import untolerated
from dra_driver.capacity.kinds import DeviceKind, gpu_uuid_of, kind_of
from dra_driver.published import names

Wire = Mapping[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class Unit:
    """``offered`` devices can be tried, ``elsewhere`` are held ones behind other nodes that consume the same counters.

    ``overdrawn``: allocated devices consume more than the pool has, which blocks whatever consumes counters.
    """

    driver: str
    offered: list[PoolDevice] = field(default_factory=list)
    elsewhere: list[PoolDevice] = field(default_factory=list)
    sets: list[Wire] = field(default_factory=list)
    kinds: list[DeviceKind] = field(default_factory=list)
    overdrawn: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The same for one unit however many nodes reach it."""
        return (*self.offered[0].slice.key, self.offered[0].name)

    @property
    def gpu_count(self) -> int:
        """How many GPUs (or other whole devices) this is; at least one."""
        return max(1, sum(not kind.profile for kind in self.kinds))

    @property
    def main_kind(self) -> DeviceKind:
        """The kind of the first whole device, or of the first of all."""
        return next((kind for kind in self.kinds if not kind.profile), self.kinds[0])

    def is_local(self) -> bool:
        """Whether all of it belongs to one node."""
        return all(device.placement.get("nodeName") for device in self.offered)

    def without_allocations(self) -> "Unit":
        """The same with nothing held."""
        offered = [replace(device, allocated=False, shared=False, consumed=None) for device in self.offered]
        return Unit(driver=self.driver, offered=offered, sets=self.sets, kinds=self.kinds)

    def has_allocations(self) -> bool:
        """Whether claims hold some of it, or of what it depends on."""
        return bool(self.elsewhere) or self.overdrawn or any(one.allocated or one.shared for one in self.offered)

    def signature(self) -> Hashable:
        """Equal for units in which every request fits equally often."""
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
    """The units of a usable pool, in the order of their first devices."""
    units = _grouped(pool.key[0], pool.devices, shares=shares)
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
    """The same for devices whose pool cannot be used: nothing in it can be weighed."""
    return _grouped(driver, devices, shares=shares)


def _grouped(driver: str, devices: Sequence[PoolDevice], *, shares: bool) -> list[Unit]:
    leaders: dict[Hashable, Hashable] = {}
    marks = []
    for place, device in enumerate(devices):
        mine: list[Hashable] = [("set", name) for name in _set_names(device.wire)]
        body = gpu_uuid_of(device.wire, driver)
        if body:
            mine.append(("body", body))
        if not mine:
            mine.append(place)
        marks.append(mine[0])
        for mark in mine:
            _join(leaders, mine[0], mark)
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


def _join(leaders: dict[Hashable, Hashable], one: Hashable, other: Hashable) -> None:
    leaders[_leader(leaders, other)] = _leader(leaders, one)


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
    """Whether a claim without tolerations cannot have it."""
    return bool(device.get("taints")) and untolerated(device["taints"], ()) is not None


def memory_nano(device: Wire) -> int:
    """Its memory in billionths of a byte; 0 when it does not say."""
    found = (device.get("capacity") or {}).get(names.MEMORY)
    return nano(found["value"]) if found else 0
