"""Call locks of GPUs (changes go before reads), and when MIG instances are listed."""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.call_locks import THREAD_NAME, CallLock, NoAnswerError, Patience, Reads, YieldToWriter
from dra_driver.hardware.gpu.nvml.listings import InstanceReader, Listings

QUICK = Patience(stuck_s=60.0, change_s=10.0, read_s=0.005)
HANGS = Patience(stuck_s=0.0, change_s=10.0, read_s=0.005)


def give_way_soon(turn: CallLock) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        turn.give_way()
        time.sleep(0)


def test_a_read_ends_soon_when_a_change_has_the_gpu() -> None:
    turn = CallLock("GPU-a", QUICK)
    with turn.change(), pytest.raises(YieldToWriter), turn.read():
        pass
    with turn.read():
        pass


def test_a_read_gives_way_to_a_change_that_waits_and_no_read_overtakes_it() -> None:
    """A prepare waits for one NVML call at most."""
    turn = CallLock("GPU-a", QUICK)
    order: list[str] = []

    def change() -> None:
        with turn.change():
            order.append("change")

    with turn.read():
        thread = threading.Thread(target=change)
        thread.start()
        with pytest.raises(YieldToWriter):
            give_way_soon(turn)
        order.append("read")
    thread.join(10)
    assert order == ["read", "change"]


def test_a_change_fails_at_once_when_the_call_before_hangs() -> None:
    """It would wait in vain, and the kubelet's call would end without a reason."""
    turn = CallLock("GPU-a", HANGS)
    begin = time.monotonic()
    with turn.read(), pytest.raises(DeviceLostError, match="GPU-a does not answer"), turn.change():
        pass
    assert time.monotonic() - begin < HANGS.change_s / 2
    with turn.change():
        pass


def test_a_change_waits_a_bounded_time_for_a_slow_one() -> None:
    """Less than a call of the kubelet takes."""
    turn = CallLock("GPU-a", Patience(stuck_s=60.0, change_s=0.005))
    with turn.change(), pytest.raises(DeviceLostError, match="has not returned"), turn.change():
        pass
    assert Patience().change_s < 45


def test_a_turn_is_given_back_after_an_error() -> None:
    turn = CallLock("GPU-a", QUICK)
    for kind in (turn.change, turn.read):
        with pytest.raises(ZeroDivisionError), kind():
            raise ZeroDivisionError
    with turn.read():
        pass
    assert not turn.is_stuck()


LONG_S, SHORT_S = 20.0, 0.005


def threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def fails() -> str:
    raise KeyError("no such thing")


def test_answers_and_errors_come_by_index() -> None:
    reads: Reads[str] = Reads()
    found = reads.run([(3, lambda: "three", LONG_S), (1, fails, LONG_S), (2, lambda: "two", LONG_S)])
    assert (found[3], found[2]) == ("three", "two")
    assert isinstance(found[1], KeyError)
    assert reads.run([]) == {}


def test_a_read_that_does_not_return_holds_up_no_other_and_is_not_repeated_meanwhile() -> None:
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


GPU, OTHER = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def read(listings: Listings, gpu: GpuUuid = GPU, *, generation: int = 1, has_events: bool = True) -> bool:
    token = listings.token(gpu, generation)
    due = listings.is_due(gpu, token, has_events=has_events)
    if due:
        listings.listed(gpu, token)
    return due


@pytest.fixture
def listings() -> Listings:
    found = Listings(lambda: True)
    assert read(found)
    assert read(found, OTHER)
    return found


def test_an_event_counts_for_all_gpus_and_an_own_change_for_one(listings: Listings) -> None:
    listings.happened()
    assert (read(listings), read(listings, OTHER)) == (True, True)
    listings.changed(GPU)
    assert (read(listings), read(listings, OTHER)) == (True, False)


def test_what_happens_during_a_listing_leads_to_another(listings: Listings) -> None:
    listings.happened()
    token = listings.token(GPU, 1)
    assert listings.is_due(GPU, token, has_events=True)
    listings.happened()
    listings.listed(GPU, token)
    assert read(listings)
    assert not read(listings)


def test_a_process_that_is_not_to_read_lists_what_is_unknown_and_what_it_changed() -> None:
    listings = Listings(lambda: False)
    assert read(listings)
    assert listings.must_give_back(1)
    assert not listings.must_give_back(2)
    listings.happened()
    assert not read(listings, generation=2, has_events=False)
    assert not listings.must_give_back(2)
    listings.asked(2)
    listings.changed(GPU)
    assert listings.must_give_back(2)
    assert read(listings, generation=3)
    assert listings.must_give_back(3)


def end(reader: InstanceReader) -> None:
    for descriptor in (reader._held, reader._waiting):
        if descriptor is not None:
            os.close(descriptor)
    reader._held = reader._waiting = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "instances.lock"


def test_a_newer_process_takes_over_at_the_next_read_of_the_older_one(file: Path) -> None:
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new(), "the older one has not let go"
    assert not old()
    assert new()
    assert [(old(), new()) for _ in range(3)] == [(False, True)] * 3
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_older_process_reads_again_when_the_newer_one_has_ended(file: Path) -> None:
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new()
    end(new)
    assert old(), "the newer one ended while it waited"
    newer = InstanceReader(file)
    assert not newer()
    assert not old()
    assert newer()
    end(newer)
    assert old()


def test_the_newest_of_three_reads_in_the_end(file: Path) -> None:
    readers = [InstanceReader(file) for _ in range(3)]
    for _ in range(6):
        answers = [reader() for reader in readers]
        assert sum(answers) <= 1
    assert answers == [False, False, True]


def test_without_its_files_a_process_reads_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    reader = InstanceReader(tmp_path / "none/instances.lock")
    assert [reader(), reader()] == [True, True]
    assert len(caplog.records) == 1
