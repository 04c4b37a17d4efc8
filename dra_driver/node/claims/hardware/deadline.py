"""One moment until which all steps of an operation may wait together."""

import math

from dra_driver.node.claims.waiting import WakeableClock


class Deadline:
    """A moment on the clock. Steps that come after it still run once, with the least time that they take as a rule."""

    def __init__(self, clock: WakeableClock, at: float) -> None:
        self._clock = clock
        self._at = at

    def left_s(self, *, least_s: float = 0.0, most_s: float = math.inf) -> float:
        """Seconds until the deadline, at most ``most_s`` and at least ``least_s``."""
        return max(least_s, min(most_s, self._at - self._clock.now()))
