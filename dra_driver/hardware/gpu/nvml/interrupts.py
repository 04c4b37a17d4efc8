"""Ends waits inside NVML early, so that they may be long: each wait costs a node at rest some CPU.

nvmlEventSetWait_v2 cannot be cancelled, and returns NVML_ERROR_TIMEOUT when an interrupt arrives (nvml.h). A signal to
the thread that waits is one; its handler does nothing. Not tried with NVIDIA's library yet: where a wait goes on all
the same, all later ones are short.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

SIGNAL = signal.SIGUSR1
SLICE_S = 10.0
"""One wait in NVML, where it can be interrupted."""
SHORT_SLICE_S = 0.25
"""One wait in NVML, where it cannot: the longest delay of a change of MIG mode by a thread that waits."""
REPEAT_S = 0.02
"""When to interrupt again: the thread may have been about to wait."""
SERIES_S = 0.5
"""Interrupts further apart do not belong together: the first one may have come before the thread waited."""
PATIENCE_S = 1.0
"""A wait that goes on for so long after an interrupt is deaf to it."""


class Waits:
    """The threads that wait in NVML now. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Handlers can be installed in the main thread only; from any other, interrupting does nothing."""
        self._clock = clock
        self._can_interrupt = _listen()
        self._lock = threading.Lock()  # held while a signal is sent, so that it meets no later call of the thread
        # When a wait was interrupted, by thread: at first and at last, without a pause of SERIES_S between.
        self._inside: dict[int, tuple[float, float] | None] = {}

    @property
    def slice_s(self) -> float:
        """How long one wait may be."""
        return SLICE_S if self._can_interrupt else SHORT_SLICE_S

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread waits in NVML inside the block."""
        thread = threading.get_ident()
        with self._lock:
            self._inside[thread] = None
        try:
            yield
        finally:
            with self._lock:
                del self._inside[thread]

    def interrupt(self) -> None:
        """End all present waits. To be repeated every `REPEAT_S` until they have ended."""
        with self._lock:
            for thread, series in self._inside.items():
                if self._can_interrupt:
                    signal.pthread_kill(thread, SIGNAL)
                    now = self._clock()
                    first = now if series is None or now - series[1] > SERIES_S else series[0]
                    self._inside[thread] = first, now
                    self._can_interrupt = now - first < PATIENCE_S
                    if not self._can_interrupt:
                        log.info("waits for GPU events cannot be interrupted; they are short from now on")


def _listen() -> bool:
    """Install the handler; whether it is there. Another one that is there already is left alone."""
    if signal.getsignal(SIGNAL) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(SIGNAL, _nothing)
    return signal.getsignal(SIGNAL) is _nothing


def _nothing(_number: int, _frame: object) -> None:
    pass
