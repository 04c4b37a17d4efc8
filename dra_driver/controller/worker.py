"""The thread of a part of the controller: takes turns, is woken by changes, outlives errors, is watched by probes."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from dra_driver.core.telemetry import controller_metrics as metrics

log = logging.getLogger(__name__)

_LATE_S: Final = 120.0


class Worker:
    """``start`` and ``stop`` once, by one owner; everything else from any thread.

    ``turn`` does the work and returns the seconds until it is due again. ``name`` is the thread's, and that under which
    its internal errors are counted; ``what`` stands in sentences, such as "evictions".
    """

    def __init__(
        self,
        name: metrics.Place,
        what: str,
        turn: Callable[[], float],
        *,
        clock: Callable[[], float],
        after_error_s: float,
        settle_s: float,
        period_s: float = 0.0,
    ) -> None:
        """``settle_s`` is waited after each wake, because changes come in groups; ``period_s`` lies between turns."""
        self._name, self._what, self._turn, self._clock = name, what, turn, clock
        self._after_error_s, self._settle_s, self._period_s = after_error_s, settle_s, period_s
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards the next
        self._heartbeat = clock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the request in flight. Idempotent; allowed without a start."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Take a turn soon."""
        self._changed.set()

    def beat(self) -> None:
        """Say that the turn moves on."""
        with self._lock:
            self._heartbeat = self._clock()

    @property
    def is_stopping(self) -> bool:
        """Whether a turn should end early."""
        return self._stopping.is_set()

    @property
    def hung(self) -> str | None:
        """Why only a restart would help, None otherwise."""
        with self._lock:
            silent_s = self._clock() - self._heartbeat
        return f"the thread of {self._what} has not moved for {silent_s:.0f} s" if silent_s > _LATE_S else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            began = self._clock()
            try:
                wait_s = self._turn()
            except Exception:  # thread boundary: one odd object must not end the controller's work
                log.exception(f"{self._what} failed")
                metrics.internal_error(self._name)
                wait_s = self._after_error_s
            self._changed.wait(max(wait_s, self._settle_s))
            self._stopping.wait(max(self._settle_s, self._period_s - (self._clock() - began)))
