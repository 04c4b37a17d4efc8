"""How long one attempt may take, so that no input makes an endless run.

The scheduler gives an attempt ten seconds for each node (FilterTimeout of its plugin dynamicresources).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dra_driver.errors import AllocationError

TIMEOUT_S: Final = 10.0
MAX_STEPS: Final = 2_000_000
_LOOK_EVERY: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For one node: devices looked at, and seconds. ``clock`` gives seconds since any moment.

    A search that has looked at every device more than ``reuse_after`` times asks whether a node that is alike has been
    searched before; earlier, asking would take longer than searching.
    """

    reuse_after: int = 3
    steps: int = MAX_STEPS
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.monotonic


class SearchBudget:
    """What is left of the limits for one attempt."""

    __slots__ = ("_clock", "_end", "_limits", "_next_look", "steps")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._clock = limits.clock
        self._end = limits.clock() + limits.timeout_s
        self._next_look = _LOOK_EVERY
        self.steps = 0

    def step(self, where: str) -> None:
        """Count one device looked at. Raises AllocationError, naming the request, when the budget is spent."""
        self.steps += 1
        if self.steps >= self._next_look:
            self._look(where)

    def _look(self, where: str) -> None:
        self._next_look = min(self.steps + _LOOK_EVERY, self._limits.steps)
        if self.steps >= self._limits.steps:
            raise AllocationError(
                f"{where}: no answer after looking at devices {self.steps} times; fewer devices, requests or "
                "constraints, or narrower selectors make the search shorter"
            )
        if self._clock() > self._end:
            raise AllocationError(
                f"{where}: no answer after {self._limits.timeout_s:g} s (filter operation aborted); fewer devices, "
                "requests or constraints, or narrower selectors make the search shorter"
            )
