"""The devices that one alternative of a request may get on one node, in the order in which they are tried.

Owns laziness: a device is weighed when the search first reaches it while it is free, never before and never twice,
because a selector that would fail on a later device must do no harm. Whether a device is free or suits is asked of the
attempt.
"""

from collections.abc import Sequence
from typing import Protocol

from dra_driver.allocation.devices import PoolDevice
from dra_driver.allocation.requests import Alternative


class DeviceChecks(Protocol):
    """What a lane asks about devices."""

    def is_taken_by_pod(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether the pod's own claims stand in the way at this moment."""

    def is_suitable(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether selectors, node selection and capacity let the request have the device; does not change."""

    def has_capacity(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether a shared device has capacity left for one more share at this moment."""

    def is_stateful(self, alternative: Alternative, constraint: int) -> bool:
        """Whether a constraint of the claim is changed by a device that was taken and given back."""

    def is_allocated(self, alternative: Alternative, device: PoolDevice) -> bool:
        """Whether allocated claims stand in the way; does not change."""


class Candidates:
    """Made once for each alternative and attempt. ``size`` is how many devices the request needs; for a request of all
    devices these are ``every``."""

    __slots__ = (
        "_alternative",
        "_checks",
        "_cursor",
        "_devices",
        "_found",
        "_leaves_traces",
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
        self._leaves_traces = any(checks.is_stateful(alternative, place) for place in alternative.constraints)

    def list_all(self) -> None:
        """Fix the devices of a request that wants all of them."""
        checks, alternative = self._checks, self._alternative
        self.every = [
            device
            for device in self._devices
            if checks.is_suitable(alternative, device) and checks.has_capacity(alternative, device)
        ]
        self.size = len(self.every)

    def next(self, position: int) -> tuple[PoolDevice, int] | None:
        """The first device at ``position`` or behind it that could be taken now, and the position behind it."""
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
        """Whether certainly fewer than ``needed`` devices can be taken from ``position`` on; not looked at in detail.

        Said only when all devices are weighed and trying them would leave no traces: in 1.36 counters and
        distinctAttribute look different after a failed try, which later tries must see.
        """
        if self._cursor < len(self._devices) or self._leaves_traces:
            return False
        return len(self._found) - position < needed

    def _extend(self) -> bool:
        """Find one more device that suits, or that cannot be weighed yet because it is occupied."""
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
                self._leaves_traces = True
            return True
        return False
