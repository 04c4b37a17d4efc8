"""Runs small periodic work of the node process on a thread of its own.

Chores of one thread wait for each other, so chores that talk to the API server have another thread than those that
check sockets. A failed chore is logged and counted, and repeated when it is next due; it ends neither the thread nor
the other chores.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from dra_driver.errors import DraError
from dra_driver.lean_dataclasses import dataclass
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

EARLY_S: Final = 0.001  # a wait may end this much too soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """``work`` runs every ``every_s`` seconds, counted from its last end, to half of the thread's shortest interval."""

    name: str
    every_s: float
    work: Callable[[], object]


class Maintenance:
    """``start`` and ``stop`` once, by one owner. The first round comes one interval after the start."""

    def __init__(self, name: str, chores: Sequence[Chore], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._chores = chores
        # Chores are due together, at multiples of the shortest interval: each wake-up costs more than most of them.
        self._tick_s = min(chore.every_s for chore in chores)
        self._due = {chore.name: self._next(chore) for chore in chores}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Ends the thread; a running chore may end later. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def step(self) -> float:
        """Runs the due chores and returns the seconds until the next one. One step of the thread; tests call it."""
        for chore in self._chores:
            if self._due[chore.name] <= self._clock() + EARLY_S:
                self._do(chore)
                self._due[chore.name] = self._next(chore)
        return max(0.0, min(self._due.values()) - self._clock())

    def _next(self, chore: Chore) -> float:
        passed = (self._clock() + EARLY_S - self._began) / self._tick_s
        ticks = max(int(passed) + 1, round(passed + chore.every_s / self._tick_s))
        return self._began + ticks * self._tick_s

    def _run(self) -> None:
        wait_s = self.step()
        while not self._stopping.wait(wait_s):
            wait_s = self.step()

    def _do(self, chore: Chore) -> None:
        try:
            chore.work()
        except DraError as error:
            log.warning("chore failed; will retry", extra={"chore": chore.name, "reason": error})
        except Exception:  # thread boundary: the other chores go on
            log.exception("chore failed unexpectedly", extra={"chore": chore.name})
            metrics.internal_error("maintenance")
