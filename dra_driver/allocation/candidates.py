"""The devices that one alternative of a request may get on one node, in the order in which they are tried.

Owns laziness: a device is weighed when the search first reaches it while it is free, never before and never twice,
because a selector that would fail on a later device must do no harm. Whether a device is free or suits is asked of the
attempt.
"""

from collections.abc import Sequence
from typing import Protocol

from dra_driver.allocation.devices import Device
from dra_driver.allocation.requests import Alternative


class Judge(Protocol):
    """What a lane asks about devices."""

    def occupied(self, alternative: Alternative, device: Device) -> bool:
        """Whether the pod's own claims stand in the way at this moment."""

    def suits(self, alternative: Alternative, device: Device) -> bool:
        """Whether selectors, node selection and capacity let the request have the device; does not change."""

    def has_room(self, alternative: Alternative, device: Device) -> bool:
        """Whether a shared device has capacity left for one more share at this moment."""

    def remembers(self, alternative: Alternative, constraint: int) -> bool:
        """Whether a constraint of the claim is changed by a device that was taken and given back."""

    def held(self, alternative: Alternative, device: Device) -> bool:
        """Whether allocated claims stand in the way; does not change."""


class Lane:
    """Made once for each alternative and attempt. ``size`` is how many devices the request needs; for a request of all
    devices these are ``every``."""

    __slots__ = (
        "_alternative",
        "_cursor",
        "_devices",
        "_found",
        "_judge",
        "_leaves_traces",
        "_unsuitable",
        "_unweighed",
        "every",
        "size",
    )

    def __init__(self, alternative: Alternative, devices: Sequence[Device], judge: Judge) -> None:
        self._alternative = alternative
        self._devices = devices
        self._judge = judge
        self._cursor = 0
        self._found: list[Device] = []
        self._unweighed: set[Device] = set()
        self._unsuitable: set[Device] = set()
        self.every: list[Device] = []
        self.size = alternative.count
        self._leaves_traces = any(judge.remembers(alternative, place) for place in alternative.constraints)

    def list_all(self) -> None:
        """Fix the devices of a request that wants all of them."""
        judge, alternative = self._judge, self._alternative
        self.every = [
            device
            for device in self._devices
            if judge.suits(alternative, device) and judge.has_room(alternative, device)
        ]
        self.size = len(self.every)

    def next(self, position: int) -> tuple[Device, int] | None:
        """The first device at ``position`` or behind it that could be taken now, and the position behind it."""
        found, judge, alternative = self._found, self._judge, self._alternative
        while position < len(found) or self._extend():
            device = found[position]
            position += 1
            if device in self._unsuitable or judge.occupied(alternative, device):
                continue
            if device in self._unweighed:
                self._unweighed.discard(device)
                if not judge.suits(alternative, device):
                    self._unsuitable.add(device)
                    continue
            if judge.has_room(alternative, device):
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
        judge, alternative, devices = self._judge, self._alternative, self._devices
        while self._cursor < len(devices):
            device = devices[self._cursor]
            self._cursor += 1
            if judge.held(alternative, device):
                continue
            if judge.occupied(alternative, device):
                self._unweighed.add(device)
            elif not judge.suits(alternative, device):
                continue
            self._found.append(device)
            wire = device.wire
            if wire.get("consumesCounters") or wire.get("allowMultipleAllocations"):
                self._leaves_traces = True
            return True
        return False
