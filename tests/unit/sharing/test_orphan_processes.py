"""Which processes count as left behind by an MPS host."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.sharing import orphan_processes

MARK = "DRA_DRIVER_TEST_MARK"


@pytest.fixture
def started() -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    """Processes by the folder in their environment."""
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
