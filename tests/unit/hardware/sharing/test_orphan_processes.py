"""Which processes count as left behind by an MPS host."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.sharing import orphan_processes

MARK = "DRA_DRIVER_TEST_MARK"


@pytest.fixture
def started() -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    folders = ("/mps/daemons/one", "/mps/daemons/one/pipe", "/mps/daemons/one-more", "/mps")
    found = {folder: subprocess.Popen(["/bin/sleep", "1000"], env={MARK: folder}) for folder in folders}
    yield found
    for process in found.values():
        process.kill()
        process.wait(10)


def test_only_processes_of_the_folder_and_below_are_killed(started: "dict[str, subprocess.Popen[bytes]]") -> None:
    """A daemon whose id begins with the same letters serves other claims."""
    under = Path("/mps/daemons/one")
    assert set(orphan_processes.find(MARK, under)) == {started[str(under)].pid, started[f"{under}/pipe"].pid}
    assert orphan_processes.kill(MARK, under, within_s=10.0) == ()
    assert [started[folder].wait(10) for folder in (str(under), f"{under}/pipe")] == [-9, -9]
    assert [started[folder].poll() for folder in ("/mps/daemons/one-more", "/mps")] == [None, None]


def test_processes_that_do_not_end_are_returned_at_the_deadline() -> None:
    """One that is stuck in the kernel must not hold up the host."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with subprocess.Popen(["/bin/sleep", "1000"], env={MARK: "/mps/stuck"}) as process:
        left = orphan_processes.kill(MARK, Path("/mps/stuck"), within_s=-1.0, sleep=sleep, clock=lambda: now[0])
        assert left == (process.pid,)
        process.wait(10)


def fake_process(proc: Path, pid: int, cgroup: str, environment: str | None) -> None:
    """None for an environment whose read never returns."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup)
    (folder / "stat").write_text(f"{pid} (a) b) S " + " ".join(str(n) for n in range(30)))
    if environment is None:
        os.mkfifo(folder / "environ")
    else:
        (folder / "environ").write_text(environment)


def test_no_environment_outside_of_the_own_cgroup_is_read(tmp_path: Path) -> None:
    """The MPS host sees all processes of the machine, and their environments have secrets."""
    fake_process(tmp_path, os.getpid(), "0::/own\n", "")
    fake_process(tmp_path, 2, "0::/own\n", f"{MARK}=/mps\0")
    fake_process(tmp_path, 3, "0::/own/more\n", f"{MARK}=/mps\0")
    fake_process(tmp_path, 4, "0::/\n", None)  # would hang
    (tmp_path / "5").mkdir()  # has just ended
    assert orphan_processes.find(MARK, Path("/mps"), proc=tmp_path) == (2,)


def test_a_process_that_is_stuck_in_the_kernel_holds_up_nothing(tmp_path: Path) -> None:
    """Its environment cannot be read; one thread waits for it, and the others are found."""
    for pid, environment in ((os.getpid(), ""), (2_000_002, None), (2_000_003, f"A=1\0{MARK}=/mps/x\0")):
        fake_process(tmp_path, pid, "0::/\n", environment)
    before = set(threading.enumerate())
    for _ in range(3):
        assert orphan_processes.find(MARK, Path("/mps"), proc=tmp_path, read_s=0.2) == (2_000_003,)
    assert len(set(threading.enumerate()) - before) == 1
    (tmp_path / "2000002/environ").write_text("ends the read")
