"""The devices that one alternative of a request may get on one node, in the order in which they are tried.

Selectors are evaluated lazily, as in the scheduler: a device is checked once, when the search first reaches it while it
is free. A selector that fails on a later device does no harm if earlier devices suffice.
"""

from collections.abc import Sequence
from typing import Protocol

from dra_driver.scheduler.allocation.devices import PoolDevice
from dra_driver.scheduler.allocation.requests import Alternative


class DeviceChecks(Protocol):
    """Checks of a device at this moment of the search. `AllocationState` implements them."""

    def is_taken_by_pod(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether this search has allocated the device already."""

    def is_suitable(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether selectors, node selection and gates admit the device; constant during a search."""

    def has_capacity(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether the device has the requested capacity left."""

    def is_stateful(self, alternative: Alternative, constraint: int) -> bool:
        """Whether a constraint of the claim is changed by allocating and deallocating a device."""

    def is_allocated(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether an allocated claim has the device; constant during a search."""


class Candidates:
    """The candidates of one alternative in one search.

    ``size`` is how many devices the request needs. For a request of all devices they are listed in ``every``.
    """

    __slots__ = (
        "_alternative",
        "_checks",
        "_cursor",
        "_devices",
        "_found",
        "_has_side_effects",
        "_unchecked",
        "_unsuitable",
        "every",
        "size",
    )

    def __init__(self, alternative: Alternative, devices: Sequence[PoolDevice], checks: DeviceChecks) -> None:
        self._alternative = alternative
        self._devices = devices
        self._checks = checks
        self._cursor = 0
        self._found: list[PoolDevice] = []
        self._unchecked: set[PoolDevice] = set()
        self._unsuitable: set[PoolDevice] = set()
        self.every: list[PoolDevice] = []
        self.size = alternative.count
        self._has_side_effects = any(checks.is_stateful(alternative, place) for place in alternative.constraints)

    def list_all(self) -> None:
        """Sets ``every`` and ``size`` for a request of all devices."""
        checks, alternative = self._checks, self._alternative
        self.every = [
            device
            for device in self._devices
            if checks.is_suitable(alternative, device) and checks.has_capacity(alternative, device)
        ]
        self.size = len(self.every)

    def next(self, position: int) -> tuple[PoolDevice, int] | None:
        """The first device from ``position`` on that could be allocated now, and the position after it."""
        found, checks, alternative = self._found, self._checks, self._alternative
        while position < len(found) or self._extend():
            device = found[position]
            position += 1
            if device in self._unsuitable or checks.is_taken_by_pod(alternative, device):
                continue
            if device in self._unchecked:
                self._unchecked.discard(device)
                if not checks.is_suitable(alternative, device):
                    self._unsuitable.add(device)
                    continue
            if checks.has_capacity(alternative, device):
                return device, position
        return None

    def is_short(self, position: int, needed: int) -> bool:
        """Whether fewer than ``needed`` devices remain from ``position`` on. A cheap check: False if in doubt.

        True only if all devices are checked and trying them has no effect on later tries. In 1.36 a failed try changes
        counters and distinctAttribute, which later tries must see.
        """
        if self._cursor < len(self._devices) or self._has_side_effects:
            return False
        return len(self._found) - position < needed

    def _extend(self) -> bool:
        """Finds one more device that is suitable, or that is in use by the pod and cannot be checked yet."""
        checks, alternative, devices = self._checks, self._alternative, self._devices
        while self._cursor < len(devices):
            device = devices[self._cursor]
            self._cursor += 1
            if checks.is_allocated(alternative, device):
                continue
            if checks.is_taken_by_pod(alternative, device):
                self._unchecked.add(device)
            elif not checks.is_suitable(alternative, device):
                continue
            self._found.append(device)
            wire = device.wire
            if wire.get("consumesCounters") or wire.get("allowMultipleAllocations"):
                self._has_side_effects = True
            return True
        return False
