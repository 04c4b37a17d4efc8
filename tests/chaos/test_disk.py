"""The disk is full, read-only, out of inodes, or fails to sync: new claims wait, prepared ones stay. A filter lets the
node process' calls fail, without privilege; where the user may mount a file system, a small one is filled as well."""

import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.stage import FaultRecord, Stage
from tests.fakes.live_node import until
from tests.fakes.syscalls import PASS, Step, Supervisor, supported

needs_filter = pytest.mark.skipif(not supported(), reason="the filter of system calls does not know this architecture")
FAULT_S = 7.0  # longer than the time between two looks at the folders (5 s)


def of_node(step: Step) -> bool:
    """Whether it is a file of the node; the simulated hardware is spared."""
    return ("/plugins/" in step.path or "/cdi/" in step.path) and "simulated" not in step.path


RENAMES, FOLDERS = ("rename", "renameat", "renameat2"), ("mkdir", "mkdirat")


def no_sync(step: Step) -> int:
    return errno.EIO if of_node(step) and step.call in ("fsync", "fdatasync") else PASS


def read_only(step: Step) -> int:
    """As a file system that the kernel has mounted read-only after an error: open files cannot be written either."""
    changes = step.writes or step.call in ("pwrite64", "ftruncate", "unlink", "unlinkat", *RENAMES)
    changes = changes or (step.call in FOLDERS and not Path(step.path).exists())
    return errno.EROFS if of_node(step) and changes else PASS


def no_inodes(step: Step) -> int:
    is_new = step.call in ("openat", *FOLDERS) and not Path(step.path).exists()
    return errno.ENOSPC if of_node(step) and is_new else PASS


def full(step: Step) -> int:
    return errno.ENOSPC if of_node(step) and step.call in ("pwrite64", "ftruncate") else no_inodes(step)


@needs_filter
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(no_sync, marks=pytest.mark.fault("disk-fsync-error")),
        pytest.param(read_only, marks=pytest.mark.fault("disk-read-only")),
        pytest.param(full, marks=pytest.mark.fault("disk-full")),
        pytest.param(no_inodes, marks=pytest.mark.fault("disk-no-inodes")),
    ],
)
def test_failing_calls_delay_new_claims_alone(
    rule: Callable[[Step], int], supervisor: Supervisor, fault: FaultRecord
) -> None:
    with Stage(wrap=supervisor.wrap()) as stage:
        claim = stage.spare_claim()
        supervisor.rule = rule
        seen = stage.prepare(claim)
        assert seen, "a prepare that left no trace was answered"
        assert stage.node.root.name in seen, f"it names no file: {seen}"
        stage.assert_intact()
        time.sleep(FAULT_S)
        stage.assert_intact()
        supervisor.rule = lambda step: PASS
        stage.finish(fault, time.monotonic(), seen=seen, waited=claim)


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own at ``folder``. Skips the test for users who may not mount."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)  # noqa: S607
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True, check=False)  # noqa: S607


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue  # full, as far as pieces of this size go
    assert os.statvfs(folder).f_bfree == 0
    return ballast


def crowd(folder: Path) -> Path:
    ballast = folder / "crowd"
    ballast.mkdir()
    for number in range(1_000_000):
        try:
            (ballast / str(number)).touch()
        except OSError:
            assert os.statvfs(folder).f_ffree == 0
            return ballast
    raise AssertionError("inodes without end")


def clear(ballast: Path) -> None:
    if ballast.is_dir():
        for path in ballast.iterdir():
            path.unlink()
        ballast.rmdir()
    else:
        ballast.unlink()


@pytest.mark.parametrize(
    ("options", "exhaust"),
    [
        pytest.param("size=32m", fill, id="full", marks=pytest.mark.fault("disk-full")),
        pytest.param("size=32m,nr_inodes=600", crowd, id="no inodes", marks=pytest.mark.fault("disk-no-inodes")),
    ],
)
def test_a_small_file_system_that_fills_up(
    options: str, exhaust: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: FaultRecord
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="dra-", dir="/tmp"))  # the paths of sockets are limited
    with small_disk(folder, options):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        stage = Stage(on_disk=True)
        with stage:
            claim = stage.spare_claim()
            ballast = exhaust(folder)
            until(lambda: "free" in stage.readyz()[1], f"/readyz: {stage.readyz()}", 30.0)
            seen = stage.readyz()[1]
            stage.prepare(claim)
            stage.assert_intact()
            clear(ballast)
            stage.finish(fault, time.monotonic(), seen=seen, waited=claim)
    folder.rmdir()
