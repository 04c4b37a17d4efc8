"""One daemon under supervision, with a program that is only counted."""

import subprocess
from pathlib import Path

from msgspec import field

from dra_driver.core.errors import CommandError
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
    """Its status says why; a program that fails at once must not keep a core busy."""
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
