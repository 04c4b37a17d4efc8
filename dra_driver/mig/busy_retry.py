"""Trying again while a GPU is busy, within a bound.

Owns pauses and deadlines. Refuses to know what is tried and what the person who waits should be told.
"""

from collections.abc import Callable
from typing import TypeVar

from dra_driver.backoff import Backoff
from dra_driver.errors import GpuBusyError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Result = TypeVar("Result")


class BusyRetry:
    """Time that one operation may take in all. For one thread.

    A monitor such as dcgm opens a GPU for moments at a time, so short pauses help where one long wait would not.
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
        """Seconds until the end, never negative."""
        return max(self._until - self._clock(), 0.0)

    def attempt(self, step: Callable[[], Result]) -> Result:
        """What ``step`` returns. It is tried at least once, and again after GpuBusyError while there is time; the last
        GpuBusyError is raised. Other errors are raised at once."""
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        while True:
            try:
                return step()
            except GpuBusyError:
                if self.left_s <= 0:
                    raise
            self._sleep(min(backoff.next_s(), self.left_s))
