"""Sums up what is left of a unit: counters, memory and devices, regardless of their position.

Numbered counters such as ``memory-slice-0`` to ``memory-slice-7`` are added up under their stem ``memory-slice``.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.kube.published import MEMORY
from dra_driver.kubectl.capacity.kinds import DeviceKind
from dra_driver.kubectl.capacity.shares import left_by_shares
from dra_driver.kubectl.capacity.units import Unit, is_tainted, memory_nano
from dra_driver.scheduler.allocation import PoolDevice, nano

Wire = Mapping[str, Any]
Sums = dict[str, int]
"""Stem of counters -> billionths."""

_NUMBER: Final = re.compile(r"-?\d+\Z")


class UnitSupply(Struct, frozen=True, kw_only=True):
    """Sums of one unit, in billionths (memory in billionths of a byte).

    ``demands`` is the minimum that a device of each kind consumes of the counters; kinds without counters have none.
    ``share_left`` is what shares have not consumed, by capacity; ``shared`` has one device of each shared kind.
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


def supply_of(unit: Unit) -> UnitSupply:
    """Returns the sums of a unit. Raises ValueError on invalid quantities."""
    pairs = list(zip(unit.offered, unit.kinds, strict=True))
    left, total = _counters(unit)
    demands: dict[DeviceKind, Sums] = {}
    in_use: dict[DeviceKind, int] = {}
    for device, kind in pairs:
        if device.wire.get("consumesCounters"):
            wanted = _sums(device)
            known = demands.setdefault(kind, wanted)
            demands[kind] = {stem: min(value, known.get(stem, 0)) for stem, value in wanted.items()}
        if device.allocated or device.shared:
            in_use[kind] = in_use.get(kind, 0) + 1
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
        in_use=in_use,
    )


def stem_of(counter: str) -> str:
    """Returns ``memory-slice`` for ``memory-slice-3``."""
    return _NUMBER.sub("", counter) or counter


def _counters(unit: Unit) -> tuple[Sums, Sums]:
    total: Sums = {}
    for entry in unit.sets:
        _add(total, entry.get("counters") or {}, 1)
    left = dict(total)
    for device in (*unit.offered, *unit.elsewhere):
        if device.allocated or device.shared:
            for stem, value in _sums(device).items():
                left[stem] = left.get(stem, 0) - value
    return left, total


def _sums(device: PoolDevice) -> Sums:
    found: Sums = {}
    for entry in device.wire.get("consumesCounters") or ():
        _add(found, entry.get("counters") or {}, 1)
    return found


def _add(sums: Sums, counters: Mapping[str, Wire], sign: int) -> None:
    for name, counter in counters.items():
        stem = stem_of(name)
        sums[stem] = sums.get(stem, 0) + sign * nano(counter["value"])


def _memory(unit: Unit, left: Sums, total: Sums) -> tuple[int, int]:
    """Returns the unit's memory and what is left of it."""
    # A device in shares has consumed its counters completely; what its shares leave is available to other shares.
    for_shares = sum(left_by_shares(device).get(MEMORY, 0) for device in unit.offered if device.shared)
    if MEMORY in total:
        return total[MEMORY], left[MEMORY] + for_shares
    if unit.sets:  # placements overlap, and no counter says how much memory they leave
        largest = max(memory_nano(device.wire) for device in unit.offered)
        return largest, for_shares if any(device.allocated or device.shared for device in unit.offered) else largest
    of_whole = not unit.main_kind.profile
    devices = [d for d, kind in zip(unit.offered, unit.kinds, strict=True) if not (of_whole and kind.profile)]
    whole = sum(memory_nano(device.wire) for device in devices)
    return whole, sum(memory_nano(device.wire) - _consumed(device) for device in devices if not device.allocated)


def _share_left(unit: Unit, left: Sums) -> dict[DeviceKind, Sums]:
    found: dict[DeviceKind, Sums] = {}
    for device, kind in zip(unit.offered, unit.kinds, strict=True):
        if not kind.shared or device.allocated or is_tainted(device.wire):
            continue
        mine = left_by_shares(device)
        if device.wire.get("consumesCounters") and not device.shared and MEMORY in mine:
            # The first share consumes the counters like a whole device, so the memory of MIG devices is not available.
            mine[MEMORY] = max(0, min(mine[MEMORY], left.get(MEMORY, mine[MEMORY])))
        sums = found.setdefault(kind, {})
        for name, value in mine.items():
            sums[name] = sums.get(name, 0) + value
    return found


def _consumed(device: PoolDevice) -> int:
    return (device.consumed or {}).get(MEMORY, 0)
