"""Reads that do not return are left behind, one thread each."""

import threading
from collections.abc import Callable

from dra_driver.hardware.gpu.nvml.call_locks import THREAD_NAME, NoAnswerError, Reads

LONG_S, SHORT_S = 20.0, 0.005


def threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def fails() -> str:
    raise KeyError("no such thing")


def test_answers_and_errors_come_by_index() -> None:
    """An error of one read is that read's answer."""
    reads: Reads[str] = Reads()
    found = reads.run([(3, lambda: "three", LONG_S), (1, fails, LONG_S), (2, lambda: "two", LONG_S)])
    assert (found[3], found[2]) == ("three", "two")
    assert isinstance(found[1], KeyError)
    assert reads.run([]) == {}


def test_a_read_that_does_not_return_holds_up_no_other_and_is_not_repeated_meanwhile() -> None:
    """Two hang: two threads, however often it is asked."""
    reads: Reads[str] = Reads()
    go = threading.Event()
    asked: list[int] = []

    def hang(index: int) -> Callable[[], str]:
        def call() -> str:
            asked.append(index)
            go.wait(LONG_S)
            return "late"

        return call

    jobs = [(0, lambda: "zero", LONG_S), (1, hang(1), SHORT_S), (2, hang(2), SHORT_S), (3, lambda: "three", LONG_S)]
    for _ in range(3):
        found = reads.run(jobs)
        assert (found[0], found[3]) == ("zero", "three")
        assert isinstance(found[1], NoAnswerError)
        assert isinstance(found[2], NoAnswerError)
        assert (reads.is_stuck(0), reads.is_stuck(1), reads.is_stuck(2)) == (False, True, True)
    assert asked == [1, 2]
    assert threads() == 2
    go.set()
    while threads():
        pass
    assert not reads.is_stuck(1)
    assert reads.run([(1, lambda: "back", LONG_S)]) == {1: "back"}


def test_the_thread_that_was_left_behind_does_no_further_read() -> None:
    """The GPUs after it are read by the next thread; two at once would be one too many."""
    reads: Reads[str] = Reads()
    go, counted = threading.Event(), []

    def slow() -> str:
        go.wait(LONG_S)
        return "late"

    def count() -> str:
        counted.append(threading.current_thread().name)
        return "counted"

    assert reads.run([(0, slow, SHORT_S), (1, count, LONG_S)])[1] == "counted"
    go.set()
    while threads():
        pass
    assert len(counted) == 1
