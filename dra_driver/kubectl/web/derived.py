"""Answers that take longer than a page may: computed in one thread of their own, kept until the state has changed.

A page asks, gets the last answer at once (of an earlier state, or none yet), and is sent again when the next is there.
Only what was asked for within the last minute is computed anew.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.worker import Worker
from dra_driver.kubectl.web.heap import heap

log = logging.getLogger(__name__)

MAX_KEPT: Final = 500
_STOP_S: Final = 2.0


class WorkedOut(Struct, frozen=True, kw_only=True):
    """``value`` of the state with this number; ``problem`` is why there is none."""

    number: int
    value: Any = None
    problem: str = ""


class Derived:
    """Computes answers by key, one after the other. ``ask`` from any thread; ``start`` and ``stop`` by one owner."""

    def __init__(self, building: Callable[[], AbstractContextManager[None]] = heap.building) -> None:
        self._building = building
        self._lock = threading.Lock()  # guards the two below
        self._answers: dict[Hashable, WorkedOut] = {}
        self._wanted: dict[Hashable, tuple[int, Callable[[], Any]]] = {}
        self._changes = 0
        self._worker = Worker("page-answers", self._turn)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop(_STOP_S)

    @property
    def changes(self) -> int:
        return self._changes

    def ask(self, key: Hashable, number: int, compute: Callable[[], Any]) -> WorkedOut | None:
        """The last answer for ``key``. If it is not of state ``number``, it is computed soon."""
        with self._lock:
            known = self._answers.get(key)
            if known is None or known.number != number:
                self._wanted[key] = (number, compute)
                self._worker.wake()
            return known

    def compute_one(self) -> bool:
        """Computes what waits longest; False when nothing waits."""
        with self._lock:
            if not self._wanted:
                return False
            key = next(iter(self._wanted))
            number, compute = self._wanted.pop(key)
        with self._building():
            answer = _answer(number, compute)
        with self._lock:
            self._answers.pop(key, None)
            self._answers[key] = answer
            while len(self._answers) > MAX_KEPT:
                self._answers.pop(next(iter(self._answers)))
            self._changes += 1
        return True

    def _turn(self) -> float | None:
        return 0.0 if self.compute_one() else None


def _answer(number: int, compute: Callable[[], Any]) -> WorkedOut:
    try:
        return WorkedOut(number=number, value=compute())
    except DraError as error:
        return WorkedOut(number=number, problem=str(error))
    except Exception as error:
        log.exception("an answer for the page failed")
        return WorkedOut(number=number, problem=f"{type(error).__name__}: {error}")
