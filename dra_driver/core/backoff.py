"""Pauses between attempts that double after each failure."""

from collections.abc import Callable

from msgspec import Struct


class Backoff(Struct, kw_only=True):
    """Pauses that double from ``first_s`` to ``longest_s`` seconds; not thread-safe. ``rand`` (0 to 1) shortens each
    pause by up to ``jitter`` of itself, so that nodes do not return together after an outage. ``random`` is not
    imported: it would load OpenSSL into the MPS host."""

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
        self.failures = 0
