"""Repeats a hardware call while the GPU is busy, with growing pauses, until a time limit."""

from collections.abc import Callable
from typing import TypeVar

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import GpuBusyError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Result = TypeVar("Result")


class BusyRetry:
    """One time limit for all steps of an operation. For one thread.

    A monitor such as dcgm opens a GPU for moments at a time, so several short pauses succeed where one long one fails.
    """

    def __init__(self, within_s: float, *, sleep: Sleep, clock: Clock) -> None:
        self._sleep = sleep
        self._clock = clock
        self._began = clock()
        self._until = self._began + max(within_s, 0.0)

    @property
    def waited_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the limit, never negative."""
        return max(self._until - self._clock(), 0.0)

    def attempt(self, step: Callable[[], Result]) -> Result:
        """Return what ``step`` returns, repeating it after GpuBusyError while time is left.

        ``step`` runs at least once. Raises the last GpuBusyError when time is over, and other errors at once.
        """
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        while True:
            try:
                return step()
            except GpuBusyError:
                if self.left_s <= 0:
                    raise
            self._sleep(min(backoff.next_s(), self.left_s))
