"""Waits for SIGTERM and SIGINT, interrupted at every moment."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dra_driver.core.stop_signal import StopSignal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield StopSignal()
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_wait_without_a_signal(stop: StopSignal) -> None:
    assert not stop.wait(0.0)
    assert not stop.wait(0.01)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_seen_by_every_later_wait(stop: StopSignal, number: signal.Signals) -> None:
    signal.raise_signal(number)
    assert [stop.wait(0.0), stop.wait(0.0), stop.wait()] == [True, True, True]


def test_a_signal_ends_a_wait(stop: StopSignal) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert stop.wait(30.0)
    timer.join()


def test_a_signal_in_any_moment_of_a_wait_ends_it() -> None:
    """An Event would hold its own lock in some of these moments, and the handler would wait for it forever."""
    program = """
import signal, sys
from dra_driver.core.stop_signal import StopSignal
for line in range(1, 400):
    stop = StopSignal()
    left = line
    def step(frame, event, argument):
        global left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGTERM)
        return step
    sys.settrace(step)
    while not stop.wait(0.0) and left > 0:
        pass
    sys.settrace(None)
    assert stop.wait(0.0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
