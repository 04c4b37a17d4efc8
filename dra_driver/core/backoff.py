"""How long to wait after the n-th failure in a row."""

from collections.abc import Callable

from msgspec import Struct


class Backoff(Struct, kw_only=True):
    """Pauses that double from ``first_s`` to ``longest_s`` seconds.

    With ``rand`` (numbers from 0 to 1), each pause is shortened at random by up to ``jitter`` of itself, so that the
    nodes of a cluster do not all come back at the same moment after the API server was away. Not thread-safe: each loop
    has its own. Imports no ``random``, which would load OpenSSL into the MPS host.
    """

    first_s: float
    longest_s: float
    jitter: float = 0.5
    rand: Callable[[], float] | None = None
    failures: int = 0

    def next_s(self) -> float:
        """Count one more failure and return the pause in seconds."""
        # The exponent is bounded: 2**n of a count that grew for a month would be a number of thousands of digits.
        pause_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return pause_s * (1 - self.jitter * self.rand()) if self.rand is not None else pause_s

    def reset(self) -> None:
        """Begin again with ``first_s``, after a success."""
        self.failures = 0
