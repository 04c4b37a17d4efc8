"""How long to wait after the n-th failure in a row. Pure but for the random number it is handed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Doubles from ``first_s`` to ``longest_s``, each wait shortened at random by up to ``jitter`` of itself.

    Jitter keeps all nodes of a cluster from coming back in the same moment after the API server was away. Not
    thread-safe: each loop has its own.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    jitter: float = 0.5
    rand: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)

    def next_s(self) -> float:
        """Counts one more failure and says how long to wait now."""
        # The exponent is bounded: 2**n of a count that grew for a month would be a number of thousands of digits.
        wait_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return wait_s * (1 - self.jitter * self.rand())

    def reset(self) -> None:
        """After a success."""
        self.failures = 0
