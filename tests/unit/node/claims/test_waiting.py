"""Locks per claim, and the clock that can be woken."""

import threading

import pytest

from dra_driver.node.claims.waiting import ClaimLocks, MonotonicClock
from tests.fakes.claims import uid


def test_a_claim_lock_has_one_holder() -> None:
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


def test_wake_all_ends_a_wait() -> None:
    """After an unprepare, a call that waits for the device continues at once."""
    clock = MonotonicClock()
    begin = clock.now()
    waiter = threading.Thread(target=clock.wait, args=(60.0,))
    waiter.start()
    while waiter.is_alive():
        clock.wake_all()
        waiter.join(0.001)
    assert clock.now() - begin < 30
