"""Ends waits inside NVML early, so that they may be long.

nvmlEventSetWait_v2 cannot be cancelled, and returns NVML_ERROR_TIMEOUT when an interrupt arrives (nvml.h). A signal to
the thread that waits is one; its handler does nothing. Not tried with NVIDIA's library yet: where it goes on waiting,
a thread that needs the end of the wait has it after `SLICE_S`.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNAL = signal.SIGUSR1
SLICE_S = 1.0
"""One wait in NVML, where it can be interrupted."""
SHORT_SLICE_S = 0.25
"""One wait in NVML, where it cannot: the longest delay of a change of MIG mode by a thread that waits."""
REPEAT_S = 0.02
"""When to interrupt again: the thread may have been about to wait."""


class Waits:
    """The threads that wait in NVML now. Thread-safe."""

    def __init__(self) -> None:
        """Handlers can be installed in the main thread only; from any other, interrupting does nothing."""
        self._can_interrupt = _listen()
        self._lock = threading.Lock()  # held while a signal is sent, so that it meets no later call of the thread
        self._inside: set[int] = set()

    @property
    def slice_s(self) -> float:
        """How long one wait may be."""
        return SLICE_S if self._can_interrupt else SHORT_SLICE_S

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread waits in NVML inside the block."""
        thread = threading.get_ident()
        with self._lock:
            self._inside.add(thread)
        try:
            yield
        finally:
            with self._lock:
                self._inside.discard(thread)

    def interrupt(self) -> None:
        """End all present waits. To be repeated every `REPEAT_S` until they have ended."""
        if not self._can_interrupt:
            return
        with self._lock:
            for thread in self._inside:
                signal.pthread_kill(thread, SIGNAL)


def _listen() -> bool:
    """Install the handler; whether it is there. Another one that is there already is left alone."""
    if signal.getsignal(SIGNAL) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(SIGNAL, _nothing)
    return signal.getsignal(SIGNAL) is _nothing


def _nothing(_number: int, _frame: object) -> None:
    pass
