"""Serialize NVML calls per GPU and bound their cost: a call inside the driver cannot be cancelled."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from dra_driver.core.errors import DeviceLostError


class Patience(Struct, frozen=True, kw_only=True):
    """Time limits of NVML calls. ``look_s``: one read of a GPU; ``first_look_s``: its first read, which may initialise
    it. ``stuck_s``: an older call hangs. ``change_s``: the wait of a change for the lock, below the kubelet's 45 s;
    ``read_s``: the wait of a read. ``end_s``: the wait for the end of a session."""

    look_s: float = 5.0
    first_look_s: float = 15.0
    stuck_s: float = 15.0
    change_s: float = 30.0
    read_s: float = 1.0
    end_s: float = 10.0


class YieldToWriter(Exception):  # noqa: N818 - no error: the read is repeated
    """A change waits for this GPU, or has it. Never leaves the backend."""


class CallLock:
    """The lock of one GPU. Changes take precedence over reads, all waits are bounded. Thread-safe, not re-entrant."""

    def __init__(self, name: str, patience: Patience) -> None:
        self._name = name
        self._patience = patience
        self._turn = threading.Condition()  # guards the fields below; never held during an NVML call
        self._since: float | None = None  # when the thread that has it got it
        self._wanted = 0  # how many changes wait for it

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Raises DeviceLostError when the call before hangs, or does not return in time."""
        with self._turn:
            self._wanted += 1
            try:
                deadline = time.monotonic() + self._patience.change_s
                while self._since is not None:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or self.is_stuck():
                        raise DeviceLostError(self.why_stuck())
                    self._turn.wait(min(left_s, self._patience.stuck_s / 4))
            finally:
                self._wanted -= 1
            self._since = time.monotonic()
        try:
            yield
        finally:
            self._give_back()

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Raises YieldToWriter when a change has the GPU or waits for it."""
        with self._turn:
            if not self._turn.wait_for(lambda: self._since is None and not self._wanted, self._patience.read_s):
                raise YieldToWriter
            self._since = time.monotonic()
        try:
            yield
        finally:
            self._give_back()

    def give_way(self) -> None:
        """To be called between the calls of a long read. Raises YieldToWriter when a change waits."""
        if self._wanted:
            raise YieldToWriter

    def is_stuck(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since >= self._patience.stuck_s

    def why_stuck(self) -> str:
        """A sentence that stays the same while it is stuck, because it is published."""
        return (
            f"GPU {self._name} does not answer: an NVML call has not returned for {self._patience.stuck_s:.0f} s; "
            "see XID messages in the node's kernel log; reset the GPU or reboot the node if this persists"
        )

    def _give_back(self) -> None:
        with self._turn:
            self._since = None
            self._turn.notify_all()


T = TypeVar("T")
THREAD_NAME = "gpu-read"

Job = tuple[int, Callable[[], T], float]
"""NVML index, what to call, and how long it may take in seconds."""


class NoAnswerError(Exception):
    """The call has not returned, now or from an earlier look. Never leaves the backend."""


class Reads(Generic[T]):
    """Reads GPU after GPU in one thread. A thread whose call does not return in time is left behind, and a new thread
    reads the rest; the GPU is not read again until the call returns."""

    def __init__(self) -> None:
        self._stuck: dict[int, tuple[threading.Thread, float]] = {}  # since when, by index

    def is_stuck(self, index: int) -> bool:
        return self.stuck_s(index) > 0

    def stuck_s(self, index: int) -> float:
        thread, since = self._stuck.get(index, (None, 0.0))
        return time.monotonic() - since if thread is not None and thread.is_alive() else 0.0

    def run(self, jobs: Sequence[Job[T]]) -> dict[int, T | Exception]:
        """Return the result or exception of each job by index; NoAnswerError for a job that has not returned."""
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
    """One thread for some calls, until one of them is not answered in time. The waiting thread is woken once, after the
    last call: switching threads costs more than reading a GPU."""

    def __init__(self, calls: Sequence[Callable[[], T]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()  # guards the fields below; never held during a call
        self._answers: list[T | Exception] = []
        self.began = time.monotonic()  # start of the present or last call
        self._left_behind = False
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.thread.start()

    def wait(self, limits_s: Sequence[float]) -> list[T | Exception]:
        """The answers in order. After a call that takes longer than its limit, the thread does no further call."""
        shortest_s = left_s = min(limits_s)
        while not self._ended.wait(left_s):
            with self._lock:
                if len(self._answers) == len(limits_s):
                    break
                left_s = min(self.began + limits_s[len(self._answers)] - time.monotonic(), shortest_s)
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
                self.began = time.monotonic()
        self._ended.set()
