"""The background thread. Its body runs in the test's thread, on events that advance the clock instead of waiting."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dra_driver.core.worker import HANG_AFTER_S, Worker

STARTED = 1000.0
_END: Any = object()


class Bench:
    """A worker, its clock and what happens while it waits.

    ``turns`` are the answers of its turns, one after another: seconds, None, an error, or a function to call for one.
    It stops at the first wait or turn for which nothing is planned. ``log`` has the time of each turn, and "ended".
    """

    def __init__(self, *turns: Any, during: Iterable[Callable[["Bench"], object]] = (), **options: Any) -> None:
        self.now = STARTED
        self.log: list[float | str] = []
        self._turns, self._during = iter(turns), iter(during)
        self.worker = Worker(
            "bench",
            self._turn,
            clock=lambda: self.now,
            event=lambda: _SkippingEvent(self),
            at_end=lambda: self.log.append("ended"),
            **options,
        )

    def run(self) -> list[float | str]:
        self.worker.run()
        return self.log

    def passed(self, seconds: float | None) -> None:
        happens = next(self._during, None)
        if happens is not None:
            self.now += 1
            happens(self)
        elif seconds is None:
            self.worker.stop(0)
        else:
            self.now += seconds

    def wake(self) -> None:
        self.worker.wake()

    def _turn(self) -> float | None:
        answer: Any = next(self._turns, _END)
        self.log.append(self.now - STARTED)
        if answer is _END:
            self.worker.stop(0)
            return 0.0
        if isinstance(answer, Exception):
            raise answer
        wait_s: float | None = answer(self) if callable(answer) else answer
        return wait_s


class _SkippingEvent(threading.Event):
    """Does not wait: the clock of the bench moves on instead."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._bench.passed(timeout)
        return self.is_set()


def _stop(_bench: object) -> None:
    """Placeholder of the last turn."""


def test_turn_is_taken_when_it_is_due() -> None:
    assert Bench(5.0, 0.0, 2.0).run() == [0, 5, 5, 7, "ended"]


def test_first_turn_waits_when_asked_to() -> None:
    assert Bench(first_s=3.0).run() == [3, "ended"]
    assert Bench(first_s=None).run() == ["ended"]


def test_wake_takes_a_turn_before_it_is_due() -> None:
    woken: list[bool] = []

    def turn(answer: float | None) -> Callable[[Bench], float | None]:
        def take(bench: Bench) -> float | None:
            woken.append(bench.worker.was_woken)
            return answer

        return take

    bench = Bench(turn(None), turn(60.0), turn(4.0), during=[Bench.wake, Bench.wake])
    assert bench.run() == [0, 1, 2, 6, "ended"]
    assert woken == [False, True, True]


def test_wake_during_a_turn_takes_another_turn() -> None:
    bench = Bench(Bench.wake)
    assert bench.run() == [0, 0, "ended"]


def test_wakes_in_a_group_take_one_turn() -> None:
    """``settle_s`` passes between a wake and its turn; a turn that is merely due does not wait for it."""
    bench = Bench(60.0, 5.0, during=[Bench.wake, Bench.wake], settle_s=1.0)
    assert bench.run() == [0, 2, 7, "ended"]


def test_turns_keep_their_distance() -> None:
    bench = Bench(0.0, Bench.wake, 20.0, period_s=10.0)
    assert bench.run() == [0, 10, 20, 40, "ended"]


def test_error_is_logged_counted_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    pauses = iter([7.0])
    bench = Bench(ValueError("odd"), 1.0, on_error=lambda: counted.append("bench"), after_error_s=lambda: next(pauses))
    assert bench.run() == [0, 7, 8, "ended"]
    assert counted == ["bench"]
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "thread bench failed" in record.message


def blocking(entered: threading.Event, release: threading.Event) -> float:
    entered.set()
    release.wait(60)
    return 0.0


def test_stop_ends_a_blocking_call_and_the_thread() -> None:
    """``interrupt`` ends the call in which a turn blocks; ``stop`` then sees the thread end, and may be repeated."""
    entered, interrupted, ended = threading.Event(), threading.Event(), threading.Event()
    worker = Worker("blocking", lambda: blocking(entered, interrupted), interrupt=interrupted.set, at_end=ended.set)
    worker.start()
    assert entered.wait(10)
    assert worker.stop(10)
    assert ended.is_set()
    assert worker.stop(0)


def test_stop_reports_a_thread_that_does_not_end() -> None:
    entered, release = threading.Event(), threading.Event()
    worker = Worker("stuck", lambda: blocking(entered, release))
    worker.start()
    assert entered.wait(10)
    assert not worker.stop(0.001)
    release.set()
    assert worker.stop(10)


def test_stop_from_the_thread_itself_and_without_start_does_not_wait() -> None:
    stopped: list[bool] = []
    worker = Worker("own", lambda: stopped.append(worker.stop(10)))
    worker.start()
    worker._thread.join(10)
    assert stopped == [True]
    assert worker.stop(0)
    assert Worker("idle", lambda: None).stop(10)


def test_pause_in_a_turn_ends_with_the_worker() -> None:
    """A turn that waits between two tries is told that there is no second one."""
    pauses: list[bool] = []

    def turn(bench: Bench) -> float:
        pauses.append(bench.worker.pause(3.0))
        return 0.0

    bench = Bench(turn, turn, during=[lambda _: None, lambda bench: bench.worker.stop(0)])
    assert bench.run() == [0, 1, "ended"]
    assert pauses == [False, True]


def test_turn_that_does_not_move_is_hung() -> None:
    seen: list[str | None] = []

    def look_after(bench: Bench, seconds: float) -> None:
        bench.now += seconds
        seen.append(bench.worker.hung)

    def slow(bench: Bench) -> None:
        look_after(bench, HANG_AFTER_S)
        look_after(bench, 1.0)
        bench.worker.beat()
        look_after(bench, 1.0)

    def waiting(bench: Bench) -> None:
        look_after(bench, 10 * HANG_AFTER_S)
        bench.wake()
        look_after(bench, HANG_AFTER_S + 1)

    Bench(slow, during=[waiting]).run()
    late = "thread bench has not moved for 121 s"
    assert seen == [None, late, None, None, late]
