"""Wait for SIGTERM or SIGINT."""

import signal
from queue import Empty, SimpleQueue


class StopSignal:
    """Handles SIGTERM and SIGINT of this process. Create it in the main thread.

    Not an Event: its lock is not reentrant, and a handler that interrupts the main thread inside ``wait`` would
    deadlock. ``SimpleQueue.put`` is safe in signal handlers.
    """

    def __init__(self) -> None:
        self._received: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self._received.put(received))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether a signal has arrived, at the latest after ``timeout_s``; None waits without limit."""
        try:
            self._received.put(self._received.get(timeout=timeout_s))  # for the next call
        except Empty:
            return False
        return True
