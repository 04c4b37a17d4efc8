"""Equivalent nodes: equal in everything that a search reads, except the names of devices.

The answer of a long search is cached as positions in the list of devices, under a key that equivalent nodes share. Of
attributes that only constraints compare, the key holds which devices have equal values, not the values: nodes whose
GPUs have different UUIDs are equivalent.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.scheduler.allocation.constraints import attribute_of
from dra_driver.scheduler.allocation.devices import PoolDevice
from dra_driver.scheduler.allocation.events import MALFORMED
from dra_driver.scheduler.allocation.pools import Pool
from dra_driver.scheduler.allocation.requests import Alternative
from dra_driver.scheduler.allocation.state import AllocationState

Key = tuple[object, ...]
_MOST_KEPT: Final = 256


class Solution(Struct, frozen=True):
    """The answer of a search: for each claim its alternatives, and its picks as alternative and device position."""

    fits: bool
    stuck_at: str
    chosen: Sequence[Sequence[Alternative]]
    picks: Sequence[Sequence[tuple[Alternative, int]]]


class SolutionCache:
    """Solutions by key, for the claims of one question. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Key, Solution] = {}
        self._tokens: dict[Key, int] = {}
        self._texts: dict[int, int] = {}

    def find(self, key: Key) -> Solution | None:
        return self._kept.get(key)

    def keep(self, key: Key, solution: Solution) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept[key] = solution

    def key(self, state: AllocationState, pools: Sequence[Pool]) -> Key | None:
        """The key of the node of this search; None if it has none, as with two pools of one name."""
        try:
            return self._key(state, pools)
        except MALFORMED:  # in a field that the search may never read
            return None

    def _key(self, state: AllocationState, pools: Sequence[Pool]) -> Key | None:
        if len({pool.key[1] for pool in pools}) < len(pools):
            return None
        alternatives = [one for claim in state.decoded for request in claim.requests for one in request.alternatives]
        values = _Values(state)
        parts: list[object] = []
        for pool in pools:
            counted = any("consumesCounters" in device.wire for device in pool.devices)
            parts.append((len(pool.devices), pool.key[0], tuple(pool.supply.left) if counted else ()))
            for device in pool.devices:
                if counted and device.charges is None:
                    device.charges = pool.supply.charges(device.wire)
                parts.append(self._token(self._content(state, device, alternatives)))
                parts.append(values.of(device))
        return None if values.unclear else tuple(parts)

    def _content(self, state: AllocationState, device: PoolDevice, alternatives: Sequence[Alternative]) -> Key:
        wire = device.wire
        return (
            device.allocated,
            device.shared,
            None if device.consumed is None else tuple(sorted(device.consumed.items())),
            bool(wire.get("allowMultipleAllocations")),
            device.charges if wire.get("consumesCounters") else None,
            self._text(wire.get("capacity")),
            self._text(wire.get("taints")),
            tuple([_suits(state, device, one) for one in alternatives]),
        )

    def _text(self, of: object) -> int:
        """A number for a part of a device. Parts live as long as the devices, so their identity is a valid key."""
        if not of:
            return -1
        known = self._texts.get(id(of))
        if known is None:
            known = self._texts[id(of)] = self._token((repr(of),))
        return known

    def _token(self, content: Key) -> int:
        return self._tokens.setdefault(content, len(self._tokens))


class _Values:
    def __init__(self, state: AllocationState) -> None:
        self._names = [(place, one.attribute) for place, claim in enumerate(state.decoded) for one in claim.constraints]
        self._seen: list[dict[Key, int]] = [{} for _ in self._names]
        self.unclear = False

    def of(self, device: PoolDevice) -> Key:
        found: list[int | None] = []
        for seen, (_, name) in zip(self._seen, self._names, strict=True):
            value = attribute_of(device, name)
            if value is None:
                found.append(None)
                continue
            content = tuple(value.items())
            self.unclear = self.unclear or len(content) != 1
            found.append(seen.setdefault((content, type(content[0][1]).__name__ if content else ""), len(seen)))
        return tuple(found)


def _suits(state: AllocationState, device: PoolDevice, alternative: Alternative) -> bool | None:
    """None stands for an error, which a search may or may not reach."""
    try:
        return state.unsuitable(alternative, device) is None
    except DraError:
        return None
