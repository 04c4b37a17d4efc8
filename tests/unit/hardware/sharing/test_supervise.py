"""One daemon under supervision, with a program that is only counted."""

import os
import subprocess
from pathlib import Path

from msgspec import field

from dra_driver.core.errors import CommandError
from dra_driver.hardware.sharing import supervise
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.memory import SharedMemory
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon, MpsFolders
from dra_driver.hardware.sharing.supervise import Supervised

DAEMON = MpsDaemon(id="one", devices=("GPU-00000000-0000-0000-0000-000000000001",))


class FailingProgram(ControlProgram, frozen=True):
    """Counts starts and never comes up."""

    starts: list[str] = field(default_factory=list)

    def start(self, daemon: MpsDaemon, folder: DaemonFolder, shm: Path, output: int) -> "subprocess.Popen[bytes]":
        self.starts.append(daemon.id)
        raise CommandError("it does not start")


def test_a_daemon_that_is_released_before_its_start_is_not_started(tmp_path: Path) -> None:
    """`release` found no status and reported success: a daemon that came up then would keep the GPU for itself."""
    folder, program = MpsFolders(tmp_path / "mps").of("one"), FailingProgram()
    folder.make()
    folder.write_desired(DAEMON)
    supervised = Supervised(DAEMON, folder, program, SharedMemory(tmp_path / "shm"))
    folder.release()
    supervised.step()
    assert (supervised.is_gone, program.starts, folder.read_status()) == (True, [], None)


def test_a_daemon_that_does_not_start_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    now = [0.0]
    folder, program = MpsFolders(tmp_path / "mps").of("one"), FailingProgram()
    folder.make()
    folder.write_desired(DAEMON)
    supervised = Supervised(DAEMON, folder, program, SharedMemory(tmp_path / "shm"), clock=lambda: now[0])
    starts: list[float] = []
    for _ in range(400):
        supervised.step()
        if len(program.starts) > len(starts):
            starts.append(now[0])
        now[0] += 0.25
    assert starts[:7] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert starts[7] - starts[6] == 30.0
    status = folder.read_status()
    assert status is not None
    assert (status.state, status.reason, status.restarts) == ("failed", "it does not start", len(starts) - 1)


def test_long_files_are_cut_and_their_end_is_kept(tmp_path: Path) -> None:
    """A chatty daemon must not fill the disk that the kubelet lives on."""
    line = b"0123456789abcde\n"
    descriptor = supervise.open_output(tmp_path)
    try:
        os.write(descriptor, line * (supervise.MAX_FILE // len(line) + 1000))
        os.write(descriptor, b"the last words\n")
        supervise.shorten_logs(tmp_path)
        os.write(descriptor, b"and on it goes\n")
    finally:
        os.close(descriptor)
    assert (tmp_path / "output.log").read_bytes() == b"and on it goes\n"
    kept = (tmp_path / "output.log.1").read_bytes()
    assert len(kept) == supervise.KEPT
    assert kept.endswith(b"the last words\n")


def test_short_files_links_and_folders_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * (supervise.MAX_FILE + 4096))
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "control.log").write_text("short\n")
    (folder / "link.log").symlink_to(outside)
    (folder / "folder").mkdir()
    supervise.shorten_logs(folder)
    supervise.shorten_logs(tmp_path / "missing")
    assert (folder / "control.log").read_text() == "short\n"
    assert outside.stat().st_size > supervise.MAX_FILE
    assert sorted(path.name for path in folder.iterdir()) == ["control.log", "folder", "link.log"]


def test_last_lines_are_the_end_of_what_was_printed_or_else_of_the_control_log(tmp_path: Path) -> None:
    """A line that every restart repeats is shown once: Kubernetes counts events with the same text as one."""
    assert supervise.last_lines(tmp_path) == ""
    (tmp_path / "control.log").write_text("started\nstopped\n")
    assert supervise.last_lines(tmp_path) == "started stopped"
    (tmp_path / "output.log").write_text("".join(f"line {number}\n" for number in range(1000)))
    assert supervise.last_lines(tmp_path) == "line 997 line 998 line 999"
    (tmp_path / "output.log").write_text("no such folder\n" * 3)
    assert supervise.last_lines(tmp_path) == "no such folder"
