"""Ends waits inside NVML early."""

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from dra_driver.hardware.gpu.nvml.session import PATIENCE_S, SHORT_SLICE_S, SIGNAL, SLICE_S, Waits

LONG_S = 20.0


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.usefixtures("restored")
def test_another_threads_handler_of_the_signal_is_left_alone_and_waits_are_short() -> None:
    """A library that is loaded into the process may use the signal."""
    signal.signal(SIGNAL, signal.SIG_IGN)
    waits = Waits()
    assert waits.slice_s == SHORT_SLICE_S
    with waits.inside():
        waits.interrupt()
    assert signal.getsignal(SIGNAL) is signal.SIG_IGN


@pytest.mark.usefixtures("restored")
def test_made_outside_of_the_main_thread_waits_are_short() -> None:
    """Python installs handlers in the main thread only."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(Waits().slice_s))
    thread.start()
    thread.join(LONG_S)
    assert found == [SHORT_SLICE_S]


def test_a_wait_that_does_not_end_when_it_is_interrupted_makes_later_ones_short() -> None:
    """A library that goes on waiting would hold up each change of MIG mode for `SLICE_S`."""
    clock = Clock()
    waits = Waits(clock)
    assert waits.slice_s == SLICE_S
    with waits.inside():
        waits.interrupt()
        for clock.now in (0.4, 0.8):
            waits.interrupt()
        assert waits.slice_s == SLICE_S
        clock.now = PATIENCE_S
        waits.interrupt()
    assert waits.slice_s == SHORT_SLICE_S


def test_an_interrupt_that_came_too_early_does_not_make_waits_short_for_ever() -> None:
    """It is sent once when GPUs are to be registered anew; the next one may be seconds later, in the same wait."""
    clock = Clock()
    waits = Waits(clock)
    with waits.inside():
        waits.interrupt()
        clock.now = PATIENCE_S + 1.0
        waits.interrupt()
    assert waits.slice_s == SLICE_S


def test_a_wait_that_was_interrupted_does_not_count_against_the_next_one() -> None:
    """Only one that goes on."""
    clock = Clock()
    waits = Waits(clock)
    with waits.inside():
        waits.interrupt()
    clock.now = 10 * PATIENCE_S
    with waits.inside():
        waits.interrupt()
    assert waits.slice_s == SLICE_S


def test_a_thread_that_waits_gets_a_signal_and_none_when_it_waits_no_more() -> None:
    """It would end a system call of something else."""
    near, far = socket.socketpair()
    with near, far:
        for end in (near, far):
            end.setblocking(False)
        before = signal.set_wakeup_fd(far.fileno())
        try:
            waits = Waits()
            with waits.inside():
                waits.interrupt()
            waits.interrupt()
        finally:
            signal.set_wakeup_fd(before)
        assert near.recv(16) == bytes([SIGNAL])
