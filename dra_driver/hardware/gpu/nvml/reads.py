"""Reads of GPUs in a thread of their own, which is left behind when a call does not return.

One thread reads GPU after GPU. When one does not answer in time, the thread stays with it and ends when the call
returns; a new thread reads the rest. A GPU whose thread has not returned is not asked again, so that there is at most
one such thread per GPU.
"""

import threading
import time
from collections.abc import Callable, Sequence
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
            answers = reader.wait([limit_s for _, _, limit_s in left])
            found.update({index: answer for (index, _, _), answer in zip(left, answers, strict=False)})
            left = left[len(answers) :]
            if left:
                self._stuck[left[0][0]] = (reader.thread, reader.began)
                left = left[1:]
        return found


class _Reader(Generic[T]):
    """One thread for some calls, until one of them is not answered in time.

    The thread that waits is woken once, after the last call, and not by each answer: switching between threads would
    cost more than reading a GPU.
    """

    def __init__(self, calls: Sequence[Callable[[], T]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()  # guards the fields below; never held during a call
        self._answers: list[T | Exception] = []
        self._began = time.monotonic()  # when the call began that runs
        self._left_behind = False
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.thread.start()

    @property
    def began(self) -> float:
        """When the last call began, by the monotonic clock."""
        return self._began

    def wait(self, limits_s: Sequence[float]) -> list[T | Exception]:
        """The answers in order, fewer than there are calls when one took longer than its limit: then the thread does
        no further call."""
        shortest_s = left_s = min(limits_s)
        while not self._ended.wait(left_s):
            with self._lock:
                if len(self._answers) == len(limits_s):
                    break
                left_s = min(self._began + limits_s[len(self._answers)] - time.monotonic(), shortest_s)
                if left_s <= 0:
                    self._left_behind = True
                    break
        return self._answers

    def _run(self) -> None:
        for call in self._calls:
            try:
                answer: T | Exception = call()
            except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
                answer = error
            with self._lock:
                if self._left_behind:
                    return
                self._answers.append(answer)
                self._began = time.monotonic()
        self._ended.set()
