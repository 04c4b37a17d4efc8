"""Limit evictions, so that a false alarm cannot empty the cluster.

*The pace.* At most N evictions a minute, one each 60/N s, the first 60/N s after a leader began to lead. So the limit
holds across a restart or a takeover without memory of earlier evictions.

*The brake.* No eviction while more than a part of the fleet's GPUs became tainted within a window: hardware breaks one
by one, a wrong rule, policy or driver version everywhere at the same time. The times are those of the taints
(``timeAdded``), which outlast a restart. A taint counts for at least twice its grace period, else all pods could become
due just after the window. One broken GPU of a small fleet is normal, so at least `LEAST_GPUS` must be tainted. Taints
that an administrator requested (a drain) do not count.
"""

import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dra_driver.controller.pending_evictions import Fleet, TaintedDevice
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.terms import DETACHED_TAINT

LEAST_GPUS: Final = 2
ASKED_FOR: Final = frozenset({DRAINED_TAINT, DETACHED_TAINT})
"""Keys of taints that an administrator requested."""


class BrakeRules(Struct, frozen=True, kw_only=True):
    """``percent`` of the fleet's GPUs within ``window_s`` seconds; 100 disables the brake. ``grace_s`` is the default
    of policies."""

    percent: int
    window_s: float
    grace_s: float = 0.0


class BrakeState(Struct, frozen=True, kw_only=True):
    """``recent`` of ``fleet`` GPUs became tainted within the window; ``until`` is when the oldest leaves it."""

    on: bool
    recent: int
    fleet: int
    until: datetime | None = None


def brake_state(fleet: Fleet, rules: BrakeRules, now: datetime) -> BrakeState:
    """Times ahead of ``now`` (a node's clock) count as recent."""
    ends = [end for end in _ends_by_gpu(fleet.tainted.values(), rules).values() if end > now]
    too_many = len(ends) * 100 > rules.percent * len(fleet.gpus) and len(ends) >= LEAST_GPUS
    return BrakeState(on=too_many, recent=len(ends), fleet=len(fleet.gpus), until=min(ends) if too_many else None)


def _ends_by_gpu(devices: Iterable[TaintedDevice], rules: BrakeRules) -> dict[str, datetime]:
    """When each GPU stops to count; a partition's taint counts for its GPU."""
    ends: dict[str, datetime] = {}
    for device in devices:
        grace_s = rules.grace_s if device.grace_s is None else device.grace_s
        window = timedelta(seconds=max(rules.window_s, 2 * grace_s))
        for taint in device.taints:
            if taint.key not in ASKED_FOR:
                ends[device.gpu] = max(taint.added + window, ends.get(device.gpu, taint.added))
    return ends


class Pace:
    """At most ``per_minute`` evictions, spread evenly, over all threads. Thread-safe."""

    def __init__(self, per_minute: int, led_for_s: Callable[[], float | None], clock: Callable[[], float]) -> None:
        """``led_for_s``: how long this replica has led, None while it does not."""
        self._every_s, self._led_for_s, self._clock = 60.0 / per_minute, led_for_s, clock
        self._lock = threading.Lock()  # guards the next
        self._last_s: float | None = None

    def left_s(self) -> float:
        """Seconds until the next eviction, 0 or less if one may run. A new leader waits once."""
        with self._lock:
            return self._every_s - self._since_s()

    def take(self) -> bool:
        """Return whether one pod may be evicted now, and count it."""
        with self._lock:
            if self._since_s() < self._every_s:
                return False
            self._last_s = self._clock()
            return True

    def note(self) -> None:
        with self._lock:
            self._last_s = self._clock()

    def forget(self) -> None:
        """This replica no longer leads."""
        with self._lock:
            self._last_s = None

    def _since_s(self) -> float:
        since_s = self._led_for_s() if self._last_s is None else self._clock() - self._last_s
        return since_s or 0.0
