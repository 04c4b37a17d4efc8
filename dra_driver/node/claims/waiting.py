"""Wait inside a call, for a limited time: retries, the locks of claims and GPUs, and the gate that pauses prepares.

A prepare that fails costs its pod 60 to 90 s until the kubelet's pod resync. So a call waits for temporary conditions
until shortly before the kubelet's deadline of 45 s. Waiting calls occupy the few workers that unprepares need too, so
only some calls wait at the same time; further calls get the error immediately.
"""

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from dra_driver.core import errors
from dra_driver.core.files import lock_file
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid


class PreparesPausedError(errors.RetryableError):
    """New prepares are paused; the message says at whose request and how the pause ends."""


class PrepareGate:
    """Pauses new prepares while this process detaches from the NVIDIA driver, or an operation changes a GPU. Open at
    first. Thread-safe.

    A claim that is already prepared is still answered, and an unprepare still runs. An attempt of a call counts as
    work, the pauses between its attempts do not.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._reasons: dict[str, str] = {}
        self._working = 0

    @property
    def closed(self) -> str | None:
        """A reason why new prepares are paused; None while they are not."""
        with self._changed:
            return next(iter(self._reasons.values()), None)

    def close(self, reason: str, *, by: str = "detach") -> None:
        """Refuse new prepares with ``reason``, which replaces an earlier one of the same component ``by``."""
        with self._changed:
            self._reasons[by] = reason

    def open(self, *, by: str = "detach") -> None:
        """Withdraw the reason of ``by``. Without another one, new prepares are accepted again. Idempotent."""
        with self._changed:
            self._reasons.pop(by, None)

    def check(self, ref: ClaimRef) -> None:
        """Raise `PreparesPausedError` for a claim that would be prepared now. Called inside `work`."""
        reason = self.closed
        if reason is not None:
            raise PreparesPausedError(f"claim {ref} is not prepared: {reason}; the kubelet tries again")

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        with self._changed:
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until no call works on claims, and return whether none does. On a closed gate, calls
        that passed `check` earlier have then ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._working == 0, timeout_s)


FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
# Reserved for sending the answer to the kubelet.
ANSWER_S = 2.0


class ClaimBusyError(errors.RetryableError):
    """Another call or process is working on the same claim."""


class GpuLockedError(errors.RetryableError):
    """Another call or process is working on a GPU of the claim."""


class CallBudget(Struct, frozen=True, kw_only=True):
    """Start and deadline of a call, in seconds of the `WakeableClock`."""

    started: float
    deadline: float


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Seconds from the start of a call during which each kind of error is retried.

    - ``call_s`` bounds all claims of the call together; the kubelet's deadline is 45 s.
    - ``read_s``: with less time left, no claim is read from the API server.
    - ``in_use_s``: the device belongs to a claim whose pod has just ended, or a process has the GPU open.
    - ``driver_s``: the NVIDIA driver is being loaded.
    - ``fabric_s``: the NVLink fabric is being probed, after the last partition or when the node starts.
    - ``waiting``: number of calls that may wait at the same time; less than the number of workers.
    """

    call_s: float = 40.0
    read_s: float = 3.0
    in_use_s: float = 20.0
    driver_s: float = 10.0
    fabric_s: float = 30.0
    waiting: int = 4

    def budget(self, now: float, within_s: float | None = None) -> CallBudget:
        """The budget of a call that begins ``now`` and whose caller waits ``within_s`` more seconds."""
        left_s = self.call_s if within_s is None else min(self.call_s, max(0.0, within_s - ANSWER_S))
        return CallBudget(started=now, deadline=now + left_s)

    def pause_left_s(self, error: errors.DraError, budget: CallBudget, now: float) -> float:
        """The longest pause before another attempt that still ends in time; 0 or less for none."""
        return min(budget.started + self.limit_s(error), budget.deadline - self.read_s) - now

    def limit_s(self, error: errors.DraError) -> float:
        """Seconds to wait for ``error`` to pass; 0 when it does not pass automatically."""
        match error:
            case (
                errors.ApiUnreachableError()
                | errors.ServerBusyError()
                | ClaimBusyError()
                | GpuLockedError()
                | PreparesPausedError()
            ):
                return self.call_s
            case errors.DeviceInUseError() | errors.GpuBusyError():
                return min(self.in_use_s, self.call_s)
            case errors.FabricNotReadyError():
                return min(self.fabric_s, self.call_s)
            case errors.DriverUnavailableError():
                return min(self.driver_s, self.call_s)
            case _:
                return 0.0


class WakeableClock(Protocol):
    """A clock in seconds, and a wait that `wake_all` ends early."""

    def now(self) -> float: ...
    def wake_all(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class MonotonicClock:
    """The system's monotonic clock. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # only for waiting; guards no field
        self._wakes = 0

    def now(self) -> float:
        return time.monotonic()

    def wake_all(self) -> None:
        """Wake the waiting calls: a device was released."""
        with self._condition:
            self._wakes += 1
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds`` or at the next `wake_all`."""
        with self._condition:
            before = self._wakes
            self._condition.wait_for(lambda: self._wakes != before, timeout=seconds)


class ClaimLocks:
    """One lock per claim in progress. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # guards the table; never held while waiting for a claim
        self._table: dict[ClaimUid, _Slot] = {}

    @contextlib.contextmanager
    def acquire(self, uid: ClaimUid, timeout_s: float) -> Iterator[bool]:
        """Lock the claim. Yields False, without the lock, when another thread has it for ``timeout_s``."""
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
        with self._guard:
            return len(self._table)


class _Slot(Struct):
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class Deadline:
    """A moment on the clock. Steps after it still run once, with the least time that they usually take."""

    def __init__(self, clock: WakeableClock, at: float) -> None:
        self._clock = clock
        self._at = at

    def left_s(self, *, least_s: float = 0.0, most_s: float = math.inf) -> float:
        return max(least_s, min(most_s, self._at - self._clock.now()))


_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z-]")


class GpuLocks:
    """One lock per GPU of the node, required to change the GPU or to decide based on its state. Thread-safe; not
    re-entrant.

    A lock is a file in ``folder`` (created on demand, 0700) with a ``flock``, for processes that overlap during a
    rolling update, and a lock in memory, for threads. Files are never removed: a process waiting for a removed file
    would hold a lock that no other process sees. Do not wait for the API server while you hold one.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._guard = threading.Lock()  # guards the table; never held while waiting for a GPU
        self._table: dict[GpuUuid, threading.Lock] = {}  # at most the GPUs that this node ever had

    @contextlib.contextmanager
    def acquire(self, gpus: Iterable[GpuUuid], timeout_s: float) -> Iterator[bool]:
        """Lock all ``gpus``. Yields False, with no lock held, when that takes longer than ``timeout_s``.

        Locks in the order of UUIDs, so that no two callers wait for each other. Acquires a free lock whatever the
        timeout. Raises `StorageError` when a lock file cannot be created.
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as acquired:
            for gpu in sorted(set(gpus)):
                if not self._lock(gpu, deadline, acquired):
                    acquired.close()
                    yield False
                    return
            yield True

    def _lock(self, gpu: GpuUuid, deadline: float, acquired: contextlib.ExitStack) -> bool:
        with self._guard:
            lock = self._table.setdefault(gpu, threading.Lock())
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        acquired.callback(lock.release)
        descriptor = self._lock_file(gpu, deadline - time.monotonic())
        if descriptor is None:
            return False
        acquired.callback(os.close, descriptor)
        return True

    def _lock_file(self, gpu: GpuUuid, timeout_s: float) -> int | None:
        path = self._folder / f"{_NOT_IN_NAMES.sub('_', gpu)[:100]}.lock"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return lock_file(path, timeout_s=timeout_s)
        except BlockingIOError:
            return None
        except OSError as error:
            raise errors.StorageError(
                f"cannot lock GPU {gpu} with {path}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space"
            ) from error
