"""Keeps garbage collection from walking what the page has for long, while a request waits.

A state of a large cluster is millions of objects. They hardly have cycles, so they are freed when the next state
replaces them, but a full collection walks all of them: 223 ms with 8,000 GPUs. So nothing is collected while a state or
an answer is worked out, and what is alive then is exempt (``gc.freeze``). Cycles that end in what is exempt are found
by `sweep` alone: when no page is open, and after `BUILT_BEFORE_SWEEP` at the latest.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

BUILT_BEFORE_SWEEP: Final = 500
"""About an hour of a large cluster that changes all the time; a sweep delays the requests of that moment."""


class Collector(Protocol):
    """The part of the module ``gc`` that is needed here."""

    def disable(self) -> None: ...
    def enable(self) -> None: ...
    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def collect(self) -> int: ...


class Heap:
    """Of this process, which has one. Thread-safe."""

    def __init__(self, collector: Collector = gc) -> None:
        self._collector = collector
        self._lock = threading.Lock()  # guards the two below
        self._building = self._built = 0

    @contextmanager
    def building(self) -> Iterator[None]:
        """Something large is worked out inside the block, which is kept for long."""
        with self._lock:
            self._building += 1
            self._collector.disable()
        try:
            yield
        finally:
            with self._lock:
                self._building -= 1
                self._built += 1
                self._collector.freeze()
                if not self._building:
                    self._collector.enable()
                if self._built >= BUILT_BEFORE_SWEEP:
                    self._sweep()

    def sweep(self) -> None:
        """Free all cycles."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        self._built = 0
        self._collector.unfreeze()
        self._collector.collect()
        self._collector.freeze()


heap: Final = Heap()
