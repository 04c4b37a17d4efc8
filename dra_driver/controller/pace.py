"""The pace of evictions, which all parts of the controller that evict pods keep together."""

import threading
from collections.abc import Callable
from typing import Protocol

from dra_driver.controller.brake import pace_s


class LeadingFor(Protocol):
    """For how long this replica has led (s), None while it does not."""

    def led_for_s(self) -> float | None: ...


class Pace:
    """At most ``per_minute`` evictions, spread evenly, over all threads. From any thread."""

    def __init__(self, per_minute: int, leadership: LeadingFor, clock: Callable[[], float]) -> None:
        self._every_s, self._leadership, self._clock = pace_s(per_minute), leadership, clock
        self._lock = threading.Lock()  # guards the next
        self._last_s: float | None = None

    def left_s(self) -> float:
        """How long no pod may be evicted yet, 0 or less if one may.

        The evictions of a former leader are not known, so a new one waits once.
        """
        with self._lock:
            return self._every_s - self._since_s()

    def take(self) -> bool:
        """Whether one pod may be evicted now; if so, that counts."""
        with self._lock:
            if self._since_s() < self._every_s:
                return False
            self._last_s = self._clock()
            return True

    def note(self) -> None:
        """A pod was evicted."""
        with self._lock:
            self._last_s = self._clock()

    def forget(self) -> None:
        """This replica does not lead any more."""
        with self._lock:
            self._last_s = None

    def _since_s(self) -> float:
        since_s = self._leadership.led_for_s() if self._last_s is None else self._clock() - self._last_s
        return since_s or 0.0
