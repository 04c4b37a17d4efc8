"""Limits of one search, so that every input ends.

The scheduler limits an attempt to ten seconds per node (FilterTimeout of its plugin dynamicresources).
"""

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import AllocationError

TIMEOUT_S: Final = 10.0
MAX_STEPS: Final = 2_000_000
_LOOK_EVERY: Final = 256


class Limits(Struct, frozen=True, kw_only=True):
    """Limits for one node: ``steps`` (devices checked) and seconds. ``clock`` returns seconds since any moment.

    After checking every device ``reuse_after`` times, a search looks for the cached answer of an equivalent node.
    Before that, computing the key of the node would take longer than the search.
    """

    reuse_after: int = 3
    steps: int = MAX_STEPS
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.monotonic


class SearchBudget:
    """What is left of the limits for one search."""

    __slots__ = ("_clock", "_end", "_limits", "_next_look", "steps")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._clock = limits.clock
        self._end = limits.clock() + limits.timeout_s
        self._next_look = _LOOK_EVERY
        self.steps = 0

    def step(self, where: str) -> None:
        """Counts one device check. Raises AllocationError, naming the request, when the budget is spent."""
        self.steps += 1
        if self.steps >= self._next_look:
            self._look(where)

    def _look(self, where: str) -> None:
        self._next_look = min(self.steps + _LOOK_EVERY, self._limits.steps)
        if self.steps >= self._limits.steps:
            raise AllocationError(
                f"{where}: no answer after {self.steps} checks of devices; fewer devices, requests or constraints, or "
                "narrower selectors make the search shorter"
            )
        if self._clock() > self._end:
            raise AllocationError(
                f"{where}: no answer after {self._limits.timeout_s:g} s (filter operation aborted); fewer devices, "
                "requests or constraints, or narrower selectors make the search shorter"
            )
