"""Splits pools into units: devices that affect each other, usually one GPU in all its forms.

Devices belong to one unit when they consume the same counter set or have the UUID of the same GPU. Allocating a device
of one unit does not affect other units, so units are counted separately, and equal units only once.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.kube.published import names
from dra_driver.kubectl.capacity.kinds import DeviceKind, gpu_uuid_of, kind_of
from dra_driver.scheduler.allocation import Pool, PoolDevice, nano, untolerated

Wire = Mapping[str, Any]


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
        """Identifies the unit, independent of the node that reaches it."""
        return (*self.offered[0].slice.key, self.offered[0].name)

    @property
    def gpu_count(self) -> int:
        """Number of GPUs (or other whole devices); at least one."""
        return max(1, sum(not kind.profile for kind in self.kinds))

    @property
    def main_kind(self) -> DeviceKind:
        """Kind of the first whole device, or of the first device."""
        return next((kind for kind in self.kinds if not kind.profile), self.kinds[0])

    def is_local(self) -> bool:
        """Whether all devices belong to one node."""
        return all(device.placement.get("nodeName") for device in self.offered)

    def without_allocations(self) -> "Unit":
        """Returns the unit without any allocations."""
        offered = [replace(device, allocated=False, shared=False, consumed=None) for device in self.offered]
        return Unit(driver=self.driver, offered=offered, sets=self.sets, kinds=self.kinds)

    def has_allocations(self) -> bool:
        """Whether devices of the unit, or counters that it needs, are allocated."""
        return bool(self.elsewhere) or self.overdrawn or any(one.allocated or one.shared for one in self.offered)

    def signature(self) -> Hashable:
        """Returns a key that is equal for units in which every request fits equally often."""
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
    """Returns the units of a usable pool, in the order of their first devices."""
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
    """Returns the units of devices whose pool cannot be used."""
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
    """Whether the device has a taint that a claim without tolerations does not tolerate."""
    return bool(device.get("taints")) and untolerated(device["taints"], ()) is not None


def memory_nano(device: Wire) -> int:
    """Returns the device's memory in billionths of a byte; 0 when it is not published."""
    found = (device.get("capacity") or {}).get(names.MEMORY)
    return nano(found["value"]) if found else 0
