"""One NVML event set: registered anew for each session, waited for in slices, and freed while a GPU is changed.

A wait in NVML is split into slices. Between two of them the set can be renewed or freed: an open event set counts as a
client and keeps a GPU from changing its MIG mode. NVML does not repeat events of the time without a set.

A lost GPU ends every wait at once. The set is then made anew without the GPUs that do not answer; they are tried again
every `AGAIN_S`.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

import pynvml

from dra_driver.core.errors import DetachedError, DeviceLostError
from dra_driver.hardware.gpu.nvml.errors import DRIVER_TROUBLE, describe, driver_call, unavailable
from dra_driver.hardware.gpu.nvml.interrupts import REPEAT_S
from dra_driver.hardware.gpu.nvml.session import Session, SessionEndedError
from dra_driver.hardware.gpu.nvml.turns import GiveWay

log = logging.getLogger(__name__)

PAUSE_TIMEOUT_S = 10.0  # many slices
AGAIN_S = 30.0  # until GPUs that could not be registered, because they were changed or did not answer, are tried again
AFTER_ERROR_S = 1.0  # the pause after a failed wait, which would otherwise spin
ENDS_EARLY_S = 0.005  # a wait may: NVML waits whole milliseconds, and a slice for the rest would double the calls
SUCCESS = 0  # NVML_SUCCESS, which pynvml does not name
MORE_MS = 1  # the wait for a further event after one


class NotNow(Exception):  # noqa: N818 - no error: the GPU is registered later
    """The GPU is to be registered at that time of the monotonic clock. Never leaves the backend."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until


Add = Callable[[int, int, pynvml.c_nvmlEventSet_t], bool]
"""Registers the GPU of that session and NVML index; whether it has such events. May raise GiveWay, DeviceLostError and
NotNow: it is tried again later."""
Take = Callable[[pynvml.c_nvmlEventData_t], bool]
"""Takes an event in; whether to look for another one at once."""


class EventSet:
    """Thread-safe; one thread waits at a time."""

    def __init__(
        self, session: Session, add: Add, take: Take, renewed: Callable[[], None], *, again_s: float = AGAIN_S
    ) -> None:
        """``renewed`` is called when GPUs have been registered: their events before that are lost."""
        self._session, self._again_s = session, again_s
        self._add, self._take, self._renewed = add, take, renewed
        session.before_end(self._give_back)
        self._lock = threading.Lock()  # guards the set; held during one slice; acquired before the session
        self._set: pynvml.c_nvmlEventSet_t | None = None
        self._covered: frozenset[int] = frozenset()  # NVML indexes of the GPUs in the set
        self._missing: frozenset[int] = frozenset()  # of those to be tried again
        self._generation = 0  # the session that the set belongs to
        self._gate = threading.Lock()  # guards the number below
        self._paused = 0
        self._again_at = math.inf  # when the missing ones are tried
        self._go = threading.Event()  # set while no caller has paused the waiting
        self._go.set()
        self._stale = threading.Event()  # the set misses GPUs, or has GPUs that were bound again
        self.refusal: str | None = None  # why the driver gave no set the last time

    def wait(self, timeout_s: float) -> bool:
        """Whether an event came, or a GPU was lost. Waits at most ``timeout_s`` plus one slice; sleeps when no GPU has
        events.

        Also False when the session ends meanwhile, and while the GPUs are detached. Raises DriverUnavailableError.
        """
        deadline = time.monotonic() + timeout_s
        generation: int | None = None  # the first wait may open a session, a later one must not reopen a closed one
        left_s = timeout_s
        while left_s > 0:
            if not self._go.wait(left_s):
                return False
            if generation is None and not self._session.wait_attached(left_s):
                return False
            try:
                generation, answer = self._wait_slice(generation, min(left_s, self._session.waits.slice_s))
            except (SessionEndedError, DetachedError):
                return False
            if answer is not None:
                return answer
            left_s = deadline - time.monotonic() - ENDS_EARLY_S
        return False

    def covered(self, generation: int) -> frozenset[int]:
        """NVML indexes of the GPUs whose events are reported in that session."""
        return self._covered if generation == self._generation and not self._stale.is_set() else frozenset()

    def renew(self) -> None:
        """Register again before the next slice: the GPUs or a MIG mode changed."""
        self._stale.set()
        self._session.waits.interrupt()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No event set is open inside the block. Must not be entered while the session is in use.

        Raises DeviceLostError when a wait for events has not returned.
        """
        with self._gate:
            self._paused += 1
            self._go.clear()
        try:
            if not self._acquire():
                raise DeviceLostError(
                    f"a wait for GPU events has not returned for {PAUSE_TIMEOUT_S:.0f} s: a GPU does not answer; see "
                    "XID messages in the node's kernel log"
                )
            try:
                self._free()
            finally:
                self._lock.release()
            yield
        finally:
            with self._gate:
                self._paused -= 1
                if self._paused == 0:
                    self._go.set()

    def _acquire(self) -> bool:
        """The lock, from a thread that waits."""
        deadline = time.monotonic() + PAUSE_TIMEOUT_S
        while not self._lock.acquire(timeout=REPEAT_S):
            if time.monotonic() > deadline:
                return False
            self._session.waits.interrupt()
        return True

    def _wait_slice(self, only: int | None, slice_s: float) -> tuple[int, bool | None]:
        """The session's number, and whether an event came; None when nothing happened in this slice."""
        with self._lock:
            if self._stale.is_set():
                self._free()
            with self._session.use(only, waits=True) as generation:
                self._register(generation)
                if self._set is None or not self._go.is_set():
                    code = pynvml.NVML_ERROR_NOT_SUPPORTED
                else:
                    code = self._receive(self._set, slice_s)
        if code == SUCCESS:
            return generation, True
        if code == pynvml.NVML_ERROR_TIMEOUT:
            return generation, None
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            self._stale.wait(slice_s)
            return generation, None
        self._stale.set()
        time.sleep(AFTER_ERROR_S)
        return generation, code == pynvml.NVML_ERROR_GPU_IS_LOST

    def _receive(self, events: pynvml.c_nvmlEventSet_t, slice_s: float) -> int:
        """The code of a wait in which nothing came, or SUCCESS when what came was taken in.

        Raises DriverUnavailableError when the driver as a whole fails.
        """
        took, goes_on, timeout_ms = False, True, max(1, int(slice_s * 1000))
        while goes_on:
            try:
                with self._session.waits.inside():
                    event = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
            except pynvml.NVMLError as error:
                if error.value in DRIVER_TROUBLE:
                    raise unavailable("nvmlEventSetWait_v2", error) from error
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    log.debug("waiting for GPU events failed", extra={"reason": describe(error)})
                return SUCCESS if took else int(error.value)
            took, timeout_ms = True, MORE_MS
            goes_on = self._take(event)
        return SUCCESS

    def _register(self, generation: int) -> None:
        """Create the set for this session and its GPUs, or none when no GPU has events. The caller holds the lock."""
        if generation != self._generation or self._stale.is_set():
            self._give_back()
            self._stale.clear()
            self._covered, self._generation = frozenset(), generation
            self._missing = frozenset(range(driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)))
        elif time.monotonic() < self._again_at:
            return
        self._again_at = math.inf
        self._set = self._set or self._new_set()
        if self._set is not None:
            self._add_missing(generation, self._set)
        if not self._covered:
            self._give_back()
        self._renewed()

    def _add_missing(self, generation: int, events: pynvml.c_nvmlEventSet_t) -> None:
        missing, self._missing = self._missing, frozenset()
        for index in sorted(missing):
            try:
                if self._add(generation, index, events):
                    self._covered |= {index}
            except (GiveWay, DeviceLostError) as error:
                log.debug("GPU has no events yet", extra={"index": index, "reason": str(error)})
                self._try_again(index, time.monotonic() + self._again_s)
            except NotNow as later:
                self._try_again(index, later.until)

    def _try_again(self, index: int, at: float) -> None:
        self._missing |= {index}
        self._again_at = min(self._again_at, at)

    def _free(self) -> None:
        """Free the set, so that the next wait creates one; with its session it is freed anyway. The caller holds the
        lock and does not use the session."""
        self._stale.set()
        with contextlib.suppress(SessionEndedError), self._session.use(self._generation):
            self._give_back()

    def _give_back(self) -> None:
        """Free the set while its session is open. The caller uses the session, or ends it."""
        events, self._set = self._set, None
        if events is None:
            return
        try:
            pynvml.nvmlEventSetFree(events)
        except pynvml.NVMLError as error:
            log.debug("nvmlEventSetFree failed", extra={"reason": describe(error)})

    def _new_set(self) -> pynvml.c_nvmlEventSet_t | None:
        """An empty set; None for a driver without events. Raises DriverUnavailableError."""
        self.refusal = None
        try:
            return pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            if error.value in DRIVER_TROUBLE:
                raise unavailable("nvmlEventSetCreate", error) from error
            self.refusal = f"nvmlEventSetCreate says {describe(error)}"
            log.info("driver has no events; changes are found by polling", extra={"reason": self.refusal})
            return None
