"""Reads of GPUs in a thread of their own, which is left behind when a call does not return.

One thread reads GPU after GPU. When one does not answer in time, the thread stays with it and ends when the call
returns; a new thread reads the rest. A GPU whose thread has not returned is not asked again, so that there is at most
one such thread per GPU.
"""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
THREAD_NAME = "gpu-read"

Job = tuple[int, Callable[[], T], float]
"""NVML index, what to call, and how long it may take in seconds."""


class NoAnswerError(Exception):
    """The call has not returned, now or from an earlier look. Never leaves the backend."""


class Reads(Generic[T]):
    """For one caller at a time."""

    def __init__(self) -> None:
        self._stuck: dict[int, tuple[threading.Thread, float]] = {}  # since when, by index

    def is_stuck(self, index: int) -> bool:
        """Whether the read of the GPU at ``index`` has not returned in time, and not since."""
        return self.stuck_s(index) > 0

    def stuck_s(self, index: int) -> float:
        """For how long that read has not returned, 0 when it has."""
        thread, since = self._stuck.get(index, (None, 0.0))
        return time.monotonic() - since if thread is not None and thread.is_alive() else 0.0

    def run(self, jobs: Sequence[Job[T]]) -> dict[int, T | Exception]:
        """The answer of each job by index, or what it raised; NoAnswerError for one that has not returned."""
        found: dict[int, T | Exception] = {index: NoAnswerError() for index, _, _ in jobs}
        left = [job for job in jobs if not self.is_stuck(job[0])]
        while left:
            reader = _Reader([call for _, call, _ in left])
            for index, _, limit_s in left:
                begin = time.monotonic()
                answer = reader.next_answer(limit_s)
                if isinstance(answer, NoAnswerError):
                    self._stuck[index] = (reader.thread, begin)
                    break
                found[index] = answer
            left = left[reader.answered + 1 :]
        return found


class _Reader(Generic[T]):
    """One thread for some jobs, until one of them is not answered in time."""

    def __init__(self, calls: Sequence[Callable[[], T]]) -> None:
        self.answered = 0
        self._calls = calls
        self._answers: SimpleQueue[T | Exception] = SimpleQueue()
        self._lock = threading.Lock()  # guards the field below, and that an answer comes before or after it is set
        self._left_behind = False
        self.thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.thread.start()

    def next_answer(self, limit_s: float) -> T | Exception:
        """Or NoAnswerError; then the thread does no further job."""
        try:
            answer = self._answers.get(timeout=limit_s)
        except Empty:
            with self._lock:
                if self._answers.empty():
                    self._left_behind = True
                    return NoAnswerError()
            answer = self._answers.get()
        self.answered += 1
        return answer

    def _run(self) -> None:
        for call in self._calls:
            try:
                answer: T | Exception = call()
            except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
                answer = error
            with self._lock:
                self._answers.put(answer)
                if self._left_behind:
                    return
