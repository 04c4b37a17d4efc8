"""Locks per claim, and the bell."""

import threading

import pytest

from dra_driver.claims.waiting import ClaimLocks, MonotonicClock
from tests.fakes.claims import uid


def test_a_claim_is_held_by_one_thread() -> None:
    """A second thread is told instead of let in, and another claim is free."""
    locks, seen = ClaimLocks(), []

    def ask() -> None:
        for number in (1, 2):
            with locks.acquire(uid(number), 0.0) as acquired:
                seen.append(acquired)

    with locks.acquire(uid(1), 0.0) as acquired:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)
    assert acquired
    assert seen == [False, True]


def test_no_lock_stays_behind() -> None:
    """The table does not grow with the claims of a node's life."""
    locks = ClaimLocks()
    with locks.acquire(uid(1), 0.0), locks.acquire(uid(1), 0.0) as second:
        assert not second
        assert len(locks) == 1
    assert len(locks) == 0


def test_a_lock_is_released_when_the_work_fails() -> None:
    """An error of one call does not block the next."""
    locks = ClaimLocks()
    with pytest.raises(ZeroDivisionError), locks.acquire(uid(1), 0.0):
        _ = 1 / 0
    with locks.acquire(uid(1), 0.0) as acquired:
        assert acquired


def test_a_ring_wakes_who_waits() -> None:
    """An unprepare lets the call that waits for its device go on at once, not after its pause."""
    clock = MonotonicClock()
    begin = clock.now()
    waiter = threading.Thread(target=clock.wait, args=(60.0,))
    waiter.start()
    while waiter.is_alive():
        clock.wake_all()
        waiter.join(0.001)
    assert clock.now() - begin < 30


def test_a_wait_ends_by_itself() -> None:
    """Nobody has to ring."""
    clock = MonotonicClock()
    clock.wait(0.001)
    assert clock.now() > 0
