"""Background threads with one start, wake, stop and error boundary for all of them.

A worker calls its turn repeatedly. The turn returns the seconds until the next call, None to wait for `Worker.wake`,
0.0 for an immediate call. A turn that blocks, such as a watch, returns 0.0, and ``interrupt`` ends the call. Threads
are daemons: a call into a stuck GPU cannot be cancelled and must not keep the process from exiting.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

HANG_AFTER_S: Final = 120.0


class Worker:
    """Call ``start`` and ``stop`` from one owner; everything else from any thread. An exception of the turn is logged
    with its traceback, counted by ``on_error``, and followed by the next turn after ``after_error_s`` or a wake."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        on_error: Callable[[], object] = lambda: None,
        after_error_s: float | Callable[[], float] = 1.0,
        first_s: float | None = 0.0,
        settle_s: float = 0.0,
        period_s: float = 0.0,
        interrupt: Callable[[], object] = lambda: None,
        at_end: Callable[[], object] = lambda: None,
        hang_after_s: float = HANG_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        """``name`` is the thread's name, in logs and in `hung`. ``after_error_s`` is a function for growing pauses
        (`Backoff`).

        ``first_s``: seconds from the start to the first turn; None waits for a wake.
        ``settle_s``: pause between a wake and its turn, because changes come in groups; not for a turn that is due.
        ``period_s``: shortest time between the starts of two turns.
        ``interrupt``: called by each ``stop``, in the caller's thread; ends a call that blocks the turn.
        ``at_end``: called in the thread after the last turn.
        ``event``: makes the two events; tests pass one that does not wait.
        """
        self.name = name
        self._turn, self._on_error, self._interrupt, self._at_end = turn, on_error, interrupt, at_end
        self._after_error_s, self._first_s, self._settle_s, self._period_s = after_error_s, first_s, settle_s, period_s
        self._hang_after_s, self._clock = hang_after_s, clock
        self._stopping = event()
        self._woken = event()
        self._lock = threading.Lock()  # guards the next two, and the event `_woken` with them
        self._next_beat = clock()  # when the thread has to give its next sign of life
        self._was_woken = False
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once: raises RuntimeError the second time."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End after the turn in progress; False if the thread still runs after ``timeout_s``. Idempotent; allowed
        without a start, and from the thread itself, where it does not wait and returns True."""
        self._stopping.set()
        self.wake()
        self._interrupt()
        if self._thread is threading.current_thread():
            return True
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Take a turn soon: after ``settle_s``, and after the turn in progress."""
        with self._lock:
            self._woken.set()
            self._next_beat = min(self._next_beat, self._clock())

    def beat(self) -> None:
        """Report that a long turn still makes progress."""
        with self._lock:
            self._next_beat = self._clock()

    def pause(self, seconds: float) -> bool:
        """Wait within a turn; ends early when the worker stops. Returns whether it is stopping."""
        with self._lock:
            self._next_beat = self._clock() + seconds
        return self._stopping.wait(seconds)

    @property
    def is_stopping(self) -> bool:
        """Return whether ``stop`` was called: an iteration should end early."""
        return self._stopping.is_set()

    @property
    def was_woken(self) -> bool:
        """Return whether a wake caused the current iteration; False when it was due."""
        return self._was_woken

    @property
    def hung(self) -> str | None:
        """The sentence to report when a turn takes longer than ``hang_after_s``, so that only a restart helps."""
        with self._lock:
            silent_s = self._clock() - self._next_beat
        return f"thread {self.name} has not moved for {silent_s:.0f} s" if silent_s > self._hang_after_s else None

    def run(self) -> None:
        """The body of the thread. Tests with a clock and events of their own call it instead of ``start``."""
        wait_s = self._first_s
        began = -math.inf
        while not self._wait(wait_s, began):
            began = self._clock()
            self.beat()
            try:
                wait_s = self._turn()
            except Exception:  # thread boundary: the next turn may succeed
                wait_s = self._after_error_s() if callable(self._after_error_s) else self._after_error_s
                log.exception(f"thread {self.name} failed with an internal error", extra={"retry_s": wait_s})
                self._on_error()
        try:
            self._at_end()
        except Exception:  # thread boundary: nothing comes after it
            log.exception(f"thread {self.name} failed while ending")
            self._on_error()

    def _wait(self, seconds: float | None, began: float) -> bool:
        with self._lock:
            woken = self._woken.is_set()
            self._next_beat = self._clock() + (0.0 if woken else math.inf if seconds is None else seconds)
        settle_s = self._settle_s if (seconds is None or seconds > 0) and self._woken.wait(seconds) else 0.0
        pause_s = max(settle_s, self._period_s - (self._clock() - began))
        if pause_s > 0:
            self._stopping.wait(pause_s)
        with self._lock:
            self._was_woken = self._woken.is_set()
            self._woken.clear()
        return self._stopping.is_set()
