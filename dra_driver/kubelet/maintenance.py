"""Small regular work of the node process, on a thread of its own.

Owns the thread and the rhythm. Refuses to know what the chores do. Chores on one thread wait for each other, so those
that talk to the API server have another than those that look after sockets. A chore that fails is logged and counted,
and tried again when it is next due: it never ends the thread nor keeps the other chores from running.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver.errors import DraError
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """``work`` is called every ``every_s`` seconds, counted from the end of the last time."""

    name: str
    every_s: float
    work: Callable[[], object]


class Maintenance:
    """``start`` and ``stop`` once, by one owner. The first round comes one interval after the start."""

    def __init__(self, name: str, chores: Sequence[Chore], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chores = chores
        self._due = {chore.name: clock() + chore.every_s for chore in chores}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Ends the thread; a chore at work may end after that. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def step(self) -> float:
        """Does what is due and returns the seconds until the next chore is. The thread's step; tests call it."""
        for chore in self._chores:
            if self._due[chore.name] <= self._clock():
                self._do(chore)
                self._due[chore.name] = self._clock() + chore.every_s
        return max(0.0, min(self._due.values()) - self._clock())

    def _run(self) -> None:
        wait_s = self.step()
        while not self._stopping.wait(wait_s):
            wait_s = self.step()

    def _do(self, chore: Chore) -> None:
        try:
            chore.work()
        except DraError as error:
            log.warning("chore failed, it will be tried again", extra={"chore": chore.name, "reason": error})
        except Exception:  # thread boundary: the thread has to live
            log.exception("chore failed unexpectedly", extra={"chore": chore.name})
            metrics.internal_error("maintenance")
