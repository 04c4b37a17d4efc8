"""Ends waits inside NVML early; when an NVML session is outdated."""

import re
import signal
import socket
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.hardware.gpu.nvml.session import PATIENCE_S, SHORT_SLICE_S, SIGNAL, SLICE_S, DriverEnvironment, Waits

LONG_S = 20.0


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


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


@pytest.mark.parametrize(
    ("waits_at", "slice_s"),
    [
        ([[0.0, 0.4, 0.8]], SLICE_S),
        ([[0.0, 0.4, 0.8, PATIENCE_S]], SHORT_SLICE_S),  # a library that goes on waiting would hold up each change
        ([[0.0, PATIENCE_S + 1.0]], SLICE_S),  # one interrupt came too early, the next belongs to another series
        ([[0.0], [10 * PATIENCE_S]], SLICE_S),  # a wait that has ended does not count against the next one
    ],
)
def test_later_waits_are_short_only_after_a_wait_that_does_not_end(waits_at: list[list[float]], slice_s: float) -> None:
    clock = chain.from_iterable(waits_at)
    waits = Waits(lambda: next(clock))
    for times in waits_at:
        with waits.inside():
            for _ in times:
                waits.interrupt()
    assert waits.slice_s == slice_s


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


BOUND = frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 8)})
BEGAN = DriverEnvironment(bound=BOUND, library=(1, 2, 3, 4), release="580.65.06", module="580.65.06")


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (BEGAN, None),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7)})), r"bound \(none\) or unbound \(0000:02:00.0\)"),
        (replace(BEGAN, bound=BOUND | {("0000:03:00.0", 9)}), r"bound \(0000:03:00.0\) or unbound \(none\)"),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 9)})), "0000:02:00.0"),  # bound again
        (replace(BEGAN, bound=None), None),
        (replace(BEGAN, module="610.43.02"), "kernel module is now 610.43.02, it was 580.65.06"),
        (replace(BEGAN, module=None), None),
        (replace(BEGAN, library=(1, 9, 3, 4)), "library was replaced by 580.65.06"),  # of the same release
        (replace(BEGAN, library=(1, 9, 3, 4), release="610.43.02"), None),  # without its module
        (replace(BEGAN, library=(1, 9, 3, 4), release=None), None),
        (replace(BEGAN, library=None, release=None), None),
    ],
)
def test_a_session_is_outdated_when_a_new_one_shows_more_and_would_work(
    now: DriverEnvironment, reason: str | None
) -> None:
    """Otherwise it is kept: a session that works is worth more than a new one that fails."""
    assert re.search(reason or "^None$", str(BEGAN.outdated(now)))


def test_a_session_that_began_without_the_driver_folder_is_outdated_when_it_is_there() -> None:
    assert DriverEnvironment().outdated(BEGAN) is not None
    assert DriverEnvironment().outdated(DriverEnvironment()) is None


def test_it_reads_links_of_gpus_and_versions(tmp_path: Path) -> None:
    """The driver's folder also has files of the kernel, and a link to the module."""
    folder = tmp_path / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True)
    for name in ("0000:01:00.0", "10000:ff:1f.7", "module", "new_id", "uevent"):
        (folder / name).symlink_to("anywhere")
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.65.06\n")
    library = tmp_path / "libnvidia-ml.so.580.65.06"
    library.touch()
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(library.name)
    found = DriverEnvironment.read(str(tmp_path), str(link))
    assert {address for address, _ in found.bound or ()} == {"0000:01:00.0", "10000:ff:1f.7"}
    assert (found.release, found.module) == ("580.65.06", "580.65.06")
    assert found.library is not None
    assert found.library[1] == library.stat().st_ino


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_bytes(b"")
    assert DriverEnvironment.read(str(tmp_path), str(tmp_path / "none")) == DriverEnvironment()
    assert DriverEnvironment.read(str(tmp_path), None) == DriverEnvironment()
