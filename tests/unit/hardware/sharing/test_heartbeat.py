"""What a readiness probe of the MPS host sees."""

import os
import time
from pathlib import Path

from dra_driver.core.files import lock_file
from dra_driver.hardware.sharing import mps_files
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.host import MpsHost
from dra_driver.hardware.sharing.memory import SharedMemory
from dra_driver.hardware.sharing.mps_files import MpsFolders


def test_a_host_that_goes_on_is_ready(tmp_path: Path) -> None:
    """It holds the lock, and the file's time is recent."""
    folders = MpsFolders(tmp_path / "mps")
    assert "no MPS host has run" in (mps_files.host_problem(folders) or "")
    folders.make()
    lock = lock_file(folders.lock)
    try:
        mps_files.beat(lock)
        assert mps_files.host_problem(folders) is None
        later = time.time() + mps_files.LATE_S + 1
        assert "has not gone on for 61 s" in (mps_files.host_problem(folders, now=lambda: later) or "")
        os.utime(folders.lock, (1.0, 1.0))
        mps_files.beat(lock)
        assert mps_files.host_problem(folders) is None
    finally:
        os.close(lock)
    assert "is not locked" in (mps_files.host_problem(folders) or "")


def test_a_host_says_every_ten_seconds_that_it_goes_on(tmp_path: Path) -> None:
    """Not at every step: each is a write to the disk."""
    now = [100.0]
    host = MpsHost(tmp_path / "mps", ControlProgram(), SharedMemory(tmp_path / "shm"), clock=lambda: now[0])
    lock = tmp_path / "mps/host.lock"

    def beats() -> bool:
        os.utime(lock, (1.0, 1.0))
        host.step()
        return lock.stat().st_mtime > 1.0

    host.start()
    found = []
    for second in (0.0, 0.25, 9.75, 10.0, 10.25):
        now[0] = 100.0 + second
        found.append(beats())
    assert found == [True, False, False, True, False]
    host.stop()
