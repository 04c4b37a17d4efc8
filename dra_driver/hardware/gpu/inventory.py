"""Poll the backend for the node's GPUs, keep the last good snapshot and notify subscribers of changes.

It polls because events report neither a removed GPU nor one that came back, and because reading eight GPUs takes a few
milliseconds. An event only makes the next poll come immediately. While the backend is detached, the last snapshot stays
current; call ``refresh`` after ``detach`` and ``reattach``.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import DetachedError, DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import Backend

log = logging.getLogger(__name__)

THREAD_NAME = "gpu-inventory"
EVENTS_THREAD_NAME = "gpu-events"
EVENT_WAIT_S = 10.0
AFTER_FAILURE_S = 5.0
STOP_TIMEOUT_S = 5.0

Callback = Callable[[Snapshot], None]


class Inventory:
    """Keeps the newest snapshot of ``backend``. Methods may be called from any thread. Callbacks run on the inventory's
    thread, in order, and must not block; their exceptions are logged and counted."""

    def __init__(
        self,
        backend: Backend,
        poll_interval_s: float,
        *,
        retry_min_s: float = 1.0,
        retry_max_s: float = 30.0,
    ) -> None:
        """``retry_*``: first and longest pause while the driver cannot be used; pauses double in between."""
        self._backend = backend
        self._poll_interval_s = poll_interval_s
        self._lock = threading.Lock()  # guards the four fields below and `_backoff`
        self._snapshot: Snapshot | None = None
        self._problem: str | None = "the GPUs have not been read yet"
        self._subscribers: list[tuple[Callback, list[Snapshot]]] = []
        self._is_started = False
        self._backoff = Backoff(first_s=retry_min_s, longest_s=retry_max_s)
        self._event_backoff = Backoff(first_s=retry_min_s, longest_s=retry_max_s)  # of the thread alone
        self._first = threading.Event()
        self._poller = Worker(THREAD_NAME, self._turn, at_end=backend.close)
        self._listener = Worker(
            EVENTS_THREAD_NAME,
            self._listen,
            on_error=partial(metrics.internal_error, "gpu-events"),
            after_error_s=self._event_backoff.next_s,
            first_s=None,
        )

    def start(self) -> None:
        """Start polling, the first time at once. Idempotent; raises RuntimeError after ``stop``."""
        with self._lock:
            if self._poller.is_stopping:
                raise RuntimeError("an inventory cannot be started again after stop()")
            if self._is_started:
                return
            self._is_started = True
        self._poller.start()
        self._listener.start()

    def stop(self) -> None:
        """Stop polling and close the backend. Idempotent; waits at most 5 s, from a callback not at all."""
        self._first.set()
        self._listener.stop(0)
        has_ended = self._poller.stop(STOP_TIMEOUT_S)
        with self._lock:
            was_started = self._is_started
        if not was_started:
            self._backend.close()
        elif not has_ended:
            log.warning("a hardware call did not return in time; abandoning the GPU inventory")

    def current(self) -> Snapshot:
        """The last good snapshot, an empty one before the first. Never waits."""
        with self._lock:
            return self._snapshot or Snapshot()

    @property
    def problem(self) -> str | None:
        """Return why the snapshot is missing or outdated, also while detached; None after a successful poll."""
        with self._lock:
            return self._problem

    @property
    def failing(self) -> bool:
        """Return whether the last poll failed. False before the first poll has returned, and while detached."""
        with self._lock:
            return self._backoff.failures > 0

    def wait_first(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the first good snapshot; whether it exists."""
        return self._first.wait(timeout_s) and self._snapshot is not None

    def refresh(self) -> None:
        """Poll now instead of at the next interval. Returns at once."""
        self._poller.wake()

    def subscribe(self, callback: Callback) -> None:
        """Call ``callback`` with the first snapshot (soon, when it exists already) and with every changed one."""
        with self._lock:
            self._subscribers.append((callback, []))
        self._poller.wake()

    def _turn(self) -> float:
        pause_s = self._poll()
        self._notify()
        return pause_s

    def _listen(self) -> float:
        """Poll at once after an event. Begins after the first poll; a wait inside the driver cannot be cancelled."""
        try:
            happened = self._backend.wait_for_event(EVENT_WAIT_S)
        except DriverUnavailableError:
            return AFTER_FAILURE_S
        self._event_backoff.reset()
        if happened:
            self._poller.wake()
        return 0.0

    def _poll(self) -> float:
        """Read the GPUs once; returns the pause until the next poll in seconds."""
        try:
            snapshot = self._backend.snapshot()
        except DetachedError as error:
            return self._detached(str(error))
        except DriverUnavailableError as error:
            return self._failed(str(error))
        except Exception as error:  # thread boundary: the next poll may succeed
            log.exception("unexpected error while reading the GPUs")
            metrics.internal_error("gpu-inventory")
            return self._failed(f"reading the GPUs failed: {type(error).__name__}: {error}")
        self._succeeded(snapshot)
        return self._poll_interval_s

    def _failed(self, problem: str) -> float:
        with self._lock:
            is_new = problem != self._problem
            self._problem = problem
            pause_s = self._backoff.next_s()
        metrics.gpu_read_errors_total.labels("driver").inc()
        if is_new:
            log.warning("GPU driver unavailable", extra={"reason": problem})
        return pause_s

    def _detached(self, problem: str) -> float:
        """Nothing is tried until the next interval or ``refresh``."""
        with self._lock:
            is_new = problem != self._problem
            self._problem = problem
            self._backoff.reset()
        if is_new:
            log.info("GPUs are not read", extra={"reason": problem})
        return self._poll_interval_s

    def _succeeded(self, snapshot: Snapshot) -> None:
        with self._lock:
            changed = snapshot != self._snapshot
            before = self._snapshot.left_out if self._snapshot is not None else ()
            if changed:  # an equal one stays the same object: who has seen it need not compare
                self._snapshot = snapshot
            self._problem = None
            self._backoff.reset()
        if not self._first.is_set():
            self._first.set()
            self._listener.wake()
        if changed:
            log.info("GPU inventory changed", extra={"gpus": len(snapshot.gpus), "left_out": len(snapshot.left_out)})
        for gpu in snapshot.left_out:
            if gpu not in before:
                log.warning("GPU left out of the inventory", extra={"gpu": gpu.label, "reason": gpu.reason})

    def _notify(self) -> None:
        with self._lock:
            snapshot = self._snapshot
            due = [
                (callback, seen) for callback, seen in self._subscribers if snapshot is not None and seen != [snapshot]
            ]
        for callback, seen in due:
            if snapshot is None or self._poller.is_stopping:
                return
            seen[:] = [snapshot]  # only this thread uses the list
            try:
                callback(snapshot)
            except Exception:  # thread boundary: further subscribers and the polling continue
                log.exception("GPU inventory subscriber failed", extra={"subscriber": repr(callback)})
                metrics.internal_error("gpu-subscriber")
