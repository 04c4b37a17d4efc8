"""Waiting inside a call, bounded and few at a time.

A prepare that fails costs its pod 60 to 90 seconds until the kubelet tries again (its pod resync), so what passes by
itself is waited for here: at most until shortly before the kubelet's own deadline of 45 s. Waiting occupies one of the
few workers that serve the kubelet, and the unprepare that frees a device needs one as well, so only some calls may wait
at once; the others get the error immediately.

Owns patience, the per-claim locks and the bell that wakes waiting calls when something was unprepared. Refuses to know
what is waited for.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dra_driver.errors import (
    ApiUnreachableError,
    DeviceInUseError,
    DraError,
    DriverUnavailableError,
    GpuBusyError,
    RetryableError,
    ServerBusyError,
)
from dra_driver.model.ids import ClaimUid

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
# An answer that is ready still has to reach the kubelet.
ANSWER_S = 2.0


class ClaimBusyError(RetryableError):
    """Another call or another process is at work on the same claim."""


class GpuLockedError(RetryableError):
    """Another call or another process is at work on a GPU of the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBudget:
    """When a call began and by when all its claims are answered, on the bell's clock."""

    started: float
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Seconds from the start of a call during which an error of a kind is waited out.

    ``call_s`` bounds everything, for all claims of the call together; the kubelet gives up after 45 s. ``read_s``: with
    less left, no claim is read from the API server any more. ``in_use_s``: a device is still held by a claim whose pod
    has just ended, or a GPU is held open by a process (a monitor, a container that is ending). ``driver_s``: the driver
    is being loaded. ``waiting``: calls that may wait at the same time; keep it below the number of workers.
    """

    call_s: float = 40.0
    read_s: float = 3.0
    in_use_s: float = 20.0
    driver_s: float = 10.0
    waiting: int = 4

    def budget(self, now: float, within_s: float | None = None) -> CallBudget:
        """For a call that begins ``now`` and whose caller waits for ``within_s`` more, None when that is unknown."""
        left_s = self.call_s if within_s is None else min(self.call_s, max(0.0, within_s - ANSWER_S))
        return CallBudget(started=now, deadline=now + left_s)

    def pause_left_s(self, error: DraError, budget: CallBudget, now: float) -> float:
        """For how long to pause at most before another try that still ends in time; 0 or less for none."""
        return min(budget.started + self.limit_s(error), budget.deadline - self.read_s) - now

    def limit_s(self, error: DraError) -> float:
        """For how long ``error`` is worth waiting; 0 for one that does not pass by itself."""
        match error:
            case ApiUnreachableError() | ServerBusyError() | ClaimBusyError() | GpuLockedError():
                return self.call_s
            case DeviceInUseError() | GpuBusyError():
                return min(self.in_use_s, self.call_s)
            case DriverUnavailableError():
                return min(self.driver_s, self.call_s)
            case _:
                return 0.0


class WakeableClock(Protocol):
    """A clock in seconds, and a wait that a ring ends early."""

    def now(self) -> float: ...
    def wake_all(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class MonotonicClock:
    """The real one. Thread-safe; a ring wakes everybody who waits at that moment."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # guards nothing but itself
        self._rings = 0

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wake_all(self) -> None:
        """Something changed that a waiting call may be waiting for."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds`` or at the next ring."""
        with self._condition:
            before = self._rings
            self._condition.wait_for(lambda: self._rings != before, timeout=seconds)


class ClaimLocks:
    """One lock per claim that somebody works on, and none for the others."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # guards the table; never held while waiting for a claim
        self._table: dict[ClaimUid, _Slot] = {}

    @contextlib.contextmanager
    def acquire(self, uid: ClaimUid, timeout_s: float) -> Iterator[bool]:
        """Be alone with the claim. Yields False, without the lock, when another thread kept it for ``timeout_s``."""
        with self._guard:
            slot = self._table.setdefault(uid, _Slot())
            slot.users += 1
        acquired = slot.lock.acquire(timeout=max(0.0, timeout_s))
        try:
            yield acquired
        finally:
            with self._guard:
                if acquired:
                    slot.lock.release()
                slot.users -= 1
                if not slot.users:
                    del self._table[uid]

    def __len__(self) -> int:
        """Claims in work."""
        with self._guard:
            return len(self._table)


class _Slot:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
