"""Wait for NVML events that report a change of MIG instances by any process.

Keeps one NVML event set with nvmlEventMigConfigChange (0x100, nvml.h) of every GPU with MIG. An event does not say what
changed; the next poll finds out. A wait in NVML cannot be cancelled, so it is split into short ones. Between two of
them the set can be renewed or freed: an open event set counts as a client and keeps a GPU from changing its MIG mode.
NVML does not repeat events of the time without a set; polling finds those changes.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pynvml

from dra_driver.errors import DetachedError, DeviceLostError
from dra_driver.gpu.nvml.errors import DRIVER_TROUBLE, describe, driver_call, optional, unavailable
from dra_driver.gpu.nvml.session import Session, SessionEndedError
from dra_driver.gpu.nvml.turns import GiveWay

log = logging.getLogger(__name__)

SLICE_S = 0.25  # one wait in NVML: the longest delay of a change of MIG mode by this thread
PAUSE_TIMEOUT_S = 10.0  # many short waits
AGAIN_S = 30.0  # until GPUs that could not be registered, because they were changed or did not answer, are tried again
AFTER_ERROR_S = 1.0  # the pause after a failed wait, which would otherwise spin


class MigEvents:
    """Thread-safe; one thread waits at a time."""

    def __init__(
        self,
        session: Session,
        reading: Callable[[int, int], AbstractContextManager[None]],
        renewed: Callable[[], None],
    ) -> None:
        """``reading`` takes the turn of a GPU, by session and index, and raises GiveWay when it is taken. ``renewed``
        is called when a new set is complete: events before it are lost."""
        self._session = session
        self._reading = reading
        self._renewed = renewed
        session.before_end(self._give_back)
        self._lock = threading.Lock()  # guards the set; held during one short wait; acquired before the session
        self._set: pynvml.c_nvmlEventSet_t | None = None
        self._covered: frozenset[int] = frozenset()  # NVML indexes of the GPUs in the set
        self._generation = 0  # the session that the set belongs to
        self._gate = threading.Lock()  # guards the number below
        self._paused = 0
        self._again_at = math.inf  # when the set is created again
        self._go = threading.Event()  # set while no caller has paused the waiting
        self._go.set()
        self._stale = threading.Event()  # the set misses GPUs, or has GPUs that were bound again

    def wait(self, timeout_s: float) -> bool:
        """Whether an event came. Waits at most ``timeout_s`` plus one short wait; sleeps when no GPU has events.

        Also False when the session ends meanwhile, and while the GPUs are detached. Raises DriverUnavailableError.
        """
        deadline = time.monotonic() + timeout_s
        generation: int | None = None  # the first wait may open a session, a later one must not reopen a closed one
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._go.wait(left_s):
                return False
            if generation is None and not self._session.wait_attached(left_s):
                return False
            try:
                generation, answer = self._wait_slice(generation, min(left_s, SLICE_S))
            except (SessionEndedError, DetachedError):
                return False
            if answer is not None:
                return answer
        return False

    def covered(self, generation: int) -> frozenset[int]:
        """NVML indexes of the GPUs whose MIG changes are reported in that session."""
        return self._covered if generation == self._generation and not self._stale.is_set() else frozenset()

    def renew(self) -> None:
        """Register again before the next wait: the GPUs or a MIG mode changed."""
        self._stale.set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No event set is open inside the block. Must not be entered while the session is in use.

        Raises DeviceLostError when a wait for events has not returned.
        """
        with self._gate:
            self._paused += 1
            self._go.clear()
        try:
            if not self._lock.acquire(timeout=PAUSE_TIMEOUT_S):
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

    def _wait_slice(self, only: int | None, slice_s: float) -> tuple[int, bool | None]:
        """The session's number, and whether an event came; None when nothing happened in this wait."""
        with self._lock:
            if self._stale.is_set():
                self._free()
            with self._session.use(only, waits=True) as generation:
                self._register(generation)
                if self._set is not None and self._go.is_set():
                    try:
                        pynvml.nvmlEventSetWait_v2(self._set, max(1, int(slice_s * 1000)))
                    except pynvml.NVMLError as error:
                        code = _wait_error_code(error)
                    else:
                        return generation, True
                else:
                    code = pynvml.NVML_ERROR_NOT_SUPPORTED
        if code == pynvml.NVML_ERROR_TIMEOUT:
            return generation, None
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            self._stale.wait(slice_s)
            return generation, None
        self._stale.set()
        time.sleep(AFTER_ERROR_S)  # a lost GPU ends every wait at once; registering again leaves it out
        return generation, code == pynvml.NVML_ERROR_GPU_IS_LOST

    def _register(self, generation: int) -> None:
        """Create the set for this session and its GPUs, or none when no GPU has events. The caller holds the lock."""
        if generation == self._generation and not self._stale.is_set() and time.monotonic() < self._again_at:
            return
        self._give_back()
        self._stale.clear()
        self._again_at = math.inf
        self._covered = frozenset()
        self._generation = generation
        self._set, self._covered = self._new_set(generation)
        self._renewed()

    def _new_set(self, generation: int) -> tuple[pynvml.c_nvmlEventSet_t | None, frozenset[int]]:
        """A set with the MIG events of all GPUs that have them, and their indexes; None when none does.

        Raises DriverUnavailableError.
        """
        count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            if error.value in DRIVER_TROUBLE:
                raise unavailable("nvmlEventSetCreate", error) from error
            log.info("driver has no events; changes are found by polling", extra={"reason": describe(error)})
            return None, frozenset()
        covered = frozenset(index for index in range(count) if self._add(generation, index, events))
        if covered:
            return events, covered
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)
        return None, covered

    def _add(self, generation: int, index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
        try:
            with self._reading(generation, index):
                return _add(index, events)
        except GiveWay:
            self._again_at = time.monotonic() + AGAIN_S
            return False

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


def _wait_error_code(error: pynvml.NVMLError) -> int:
    """The code of a failed wait. Raises DriverUnavailableError when the driver as a whole fails."""
    if error.value in DRIVER_TROUBLE:
        raise unavailable("nvmlEventSetWait_v2", error) from error
    if error.value != pynvml.NVML_ERROR_TIMEOUT:
        log.debug("waiting for GPU events failed", extra={"reason": describe(error)})
    return error.value


def _add(index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
    """Register the GPU at ``index`` for MIG changes; whether it has such events."""

    def add() -> bool:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if optional("nvmlDeviceGetMigMode", partial(pynvml.nvmlDeviceGetMigMode, handle)) is None:
            return False
        wanted = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventMigConfigChange
        if wanted:
            pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
        return bool(wanted)

    try:
        return optional("nvmlDeviceRegisterEvents", add) or False
    except DeviceLostError as error:
        log.debug("GPU has no events", extra={"index": index, "reason": str(error)})
        return False
