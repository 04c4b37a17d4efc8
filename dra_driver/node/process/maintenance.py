"""Runs small periodic work of the node process on a thread of its own.

Chores of one thread wait for each other, so chores that talk to the API server have another thread than those that
check sockets. A failed chore is logged and counted, and repeated when it is next due; it ends neither the thread nor
the other chores.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.telemetry import metrics

log = logging.getLogger(__name__)

EARLY_S: Final = 0.001  # a wait may end this much too soon
PAUSE_S: Final = 0.1  # after a ring, so that a folder in which something happens all the time costs little


class Chore(Struct, frozen=True, kw_only=True):
    """``work`` runs every ``every_s`` seconds, counted from its last end, to half of the thread's shortest interval."""

    name: str
    every_s: float
    work: Callable[[], object]
    heard_s: float | None = None
    """The interval instead while a bell says when there is work; the chore also runs whenever it rings."""
    hurries: Callable[[], bool] = lambda: False
    """Whether the shorter interval is needed all the same: time alone will change something."""


class Ringing(Protocol):
    """The part of ``bell.Bell`` that is needed here."""

    @property
    def hears_folders(self) -> bool: ...
    def ring(self) -> None: ...
    def wait(self, timeout_s: float) -> bool: ...


class Maintenance:
    """``start`` and ``stop`` once, by one owner. The first round comes one interval after the start."""

    def __init__(
        self,
        name: str,
        chores: Sequence[Chore],
        clock: Callable[[], float] = time.monotonic,
        *,
        bell: Ringing | None = None,
    ) -> None:
        """Without ``bell`` each chore runs at its own interval alone."""
        self._clock, self._began = clock, clock()
        self._bell, self._rung = bell, False
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
        if self._bell is not None:
            self._bell.ring()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def step(self, *, rung: bool = False) -> float:
        """Runs the due chores, and after a ring those that wait for one; returns the seconds until the next one.

        One step of the thread; tests call it.
        """
        for chore in self._chores:
            if self._due[chore.name] <= self._clock() + EARLY_S or (rung and chore.heard_s is not None):
                self._do(chore)
                self._due[chore.name] = self._next(chore)
        return max(0.0, min(self._due.values()) - self._clock())

    def _next(self, chore: Chore) -> float:
        passed = (self._clock() + EARLY_S - self._began) / self._tick_s
        ticks = max(int(passed) + 1, round(passed + self._interval_s(chore) / self._tick_s))
        return self._began + ticks * self._tick_s

    def _interval_s(self, chore: Chore) -> float:
        if chore.heard_s is None or self._bell is None or not self._bell.hears_folders or chore.hurries():
            return chore.every_s
        return chore.heard_s

    def _run(self) -> None:
        wait_s = self.step()
        while not self._wait(wait_s):
            wait_s = self.step(rung=self._rung)

    def _wait(self, timeout_s: float) -> bool:
        """Whether to stop. Notes whether the bell rang."""
        if self._bell is None:
            return self._stopping.wait(timeout_s)
        if self._rung and self._stopping.wait(PAUSE_S):
            return True
        self._rung = self._bell.wait(max(0.0, timeout_s - PAUSE_S * self._rung))
        return self._stopping.is_set()

    def _do(self, chore: Chore) -> None:
        try:
            chore.work()
        except DraError as error:
            log.warning("chore failed; will retry", extra={"chore": chore.name, "reason": error})
        except Exception:  # thread boundary: the other chores go on
            log.exception("chore failed unexpectedly", extra={"chore": chore.name})
            metrics.internal_error("maintenance")
