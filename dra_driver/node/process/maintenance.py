"""Run small periodic tasks of the node process, in one thread for each group of tasks.

Tasks of one thread wait for each other, so tasks that call the API server have a separate thread. A failed task is
logged, counted and repeated when it is next due. A `Wakeup` runs tasks early: another thread notifies it, or inotify
reports a change in a directory. inotify does not report a mount; the tasks detect it at longer intervals.
"""

import logging
import os
import select
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.cdi import FolderWatch

log = logging.getLogger(__name__)

EARLY_S: Final = 0.001  # a wait may end this much too soon
PAUSE_S: Final = 0.1  # after a notification, so that a directory that changes all the time costs little


class Wakeup:
    """``notify`` from any thread; ``wait`` and ``watches_directories`` for one thread."""

    def __init__(self, directories: Sequence[str] = ()) -> None:
        """Raises OSError if the process has no file descriptor left."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._watch = FolderWatch(directories, directories)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        if self._watch.descriptor >= 0:
            self._poll.register(self._watch.descriptor, select.POLLIN)
        self._watch.arm()

    @property
    def watches_directories(self) -> bool:
        """Return whether a change in each directory ends a wait; False where the kernel refuses to watch."""
        return self._watch.is_complete

    def notify(self) -> None:
        """End the present wait, or the next one."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; return whether it was notified or a directory changed."""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1000)]
        if self._descriptor in ready:
            os.eventfd_read(self._descriptor)
        if self._watch.descriptor in ready:
            self._watch.arm()
        return bool(ready)


class PeriodicTask(Struct, frozen=True, kw_only=True):
    """``work`` runs every ``every_s`` seconds after its last end, to half of the thread's shortest interval."""

    name: str
    every_s: float
    work: Callable[[], object]
    resync_s: float | None = None
    """The interval instead while a `Wakeup` reports changes; the task also runs at each notification."""
    needs_poll: Callable[[], bool] = lambda: False


"""Return whether the shorter interval is needed anyway: time alone will change something."""


class Maintenance:
    """``worker`` runs the tasks, without ``wakeup`` each only at its interval. The first round waits one interval."""

    def __init__(
        self,
        name: str,
        tasks: Sequence[PeriodicTask],
        clock: Callable[[], float] = time.monotonic,
        *,
        wakeup: Wakeup | None = None,
    ) -> None:
        self._clock, self._began = clock, clock()
        self._wakeup, self._wait_s = wakeup, 0.0
        self._tasks = tasks
        # Tasks are due together, at multiples of the shortest interval: each wake-up costs more than most of them.
        self._tick_s = min(task.every_s for task in tasks)
        self._due = {task.name: self._next(task) for task in tasks}
        self.worker = Worker(
            name,
            self.step if wakeup is None else partial(self._wait_and_step, wakeup),
            on_error=partial(metrics.internal_error, "maintenance"),
            interrupt=wakeup.notify if wakeup is not None else lambda: None,
        )

    def step(self, *, notified: bool = False) -> float:
        """Run the due tasks, once notified also those with ``resync_s``; return the seconds until the next one."""
        for task in self._tasks:
            if self._due[task.name] <= self._clock() + EARLY_S or (notified and task.resync_s is not None):
                self._do(task)
                self._due[task.name] = self._next(task)
        return max(0.0, min(self._due.values()) - self._clock())

    def _next(self, task: PeriodicTask) -> float:
        passed = (self._clock() + EARLY_S - self._began) / self._tick_s
        ticks = max(int(passed) + 1, round(passed + self._interval_s(task) / self._tick_s))
        return self._began + ticks * self._tick_s

    def _interval_s(self, task: PeriodicTask) -> float:
        if task.resync_s is None or self._wakeup is None or not self._wakeup.watches_directories or task.needs_poll():
            return task.every_s
        return task.resync_s

    def _wait_and_step(self, wakeup: Wakeup) -> float:
        notified = wakeup.wait(self._wait_s)
        if not self.worker.is_stopping:
            self._wait_s = self.step(notified=notified)
            if notified and not self.worker.pause(PAUSE_S):
                self._wait_s = max(0.0, self._wait_s - PAUSE_S)
        return 0.0

    def _do(self, task: PeriodicTask) -> None:
        try:
            task.work()
        except DraError as error:
            log.warning("periodic task failed; will retry", extra={"task": task.name, "reason": error})
        except Exception:  # thread boundary: further tasks run
            log.exception("periodic task failed unexpectedly", extra={"task": task.name})
            metrics.internal_error("maintenance")
