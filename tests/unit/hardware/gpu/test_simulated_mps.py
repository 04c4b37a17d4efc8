"""The stub of the MPS control daemon: what supervisors of the real one rely on."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated import root as simulated_root
from tests.fakes.simulated_gpus import SimulatedBackend

LIMIT_S = 20


class Mps:
    """One pipe directory and the stub in a driver root."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.root, self.pipe, self.logs = (folder / name for name in ("root", "pipe", "log"))
        simulated_root.write(self.root, SimulatedBackend.from_spec("2xh100-sxm5-80gb", "n").snapshot())
        self.pipe.mkdir()
        self.logs.mkdir()
        self.command = [*shell, str(self.root / "usr/bin/nvidia-cuda-mps-control")]
        self.environment = {
            "PATH": os.defpath,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        }

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [*self.command, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def ask(self, command: str) -> tuple[int, str]:
        return self.run(stdin=f"{command}\n")

    def foreground(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*self.command, "-f"], env=self.environment, stdin=subprocess.DEVNULL)

    def pid(self) -> int | None:
        file = self.pipe / "nvidia-cuda-mps-control.pid"
        text = file.read_text() if file.exists() else ""
        return int(text) if text else None

    def log(self) -> list[str]:
        return (self.logs / "control.log").read_text().splitlines()


def until(condition: bool) -> bool:
    if not condition:
        time.sleep(0.01)  # another process does it
    return condition


@pytest.fixture
def mps(shell: list[str], tmp_path: Path) -> Iterator[Mps]:
    stub = Mps(tmp_path, shell)
    yield stub
    pid = stub.pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


def test_a_background_daemon_answers_keeps_its_settings_and_quits(mps: Mps) -> None:
    """The whole life that NVIDIA's own driver gives it: start, two defaults, quit."""
    assert mps.ask("get_server_list") == (1, "Cannot find MPS control daemon process\n")
    assert mps.run("-d") == (0, "")
    pid = mps.pid()
    assert pid is not None
    assert (mps.pipe / "control").exists()
    assert mps.ask("get_default_active_thread_percentage") == (0, "100.0\n")
    assert mps.ask("set_default_active_thread_percentage 30") == (0, "30.0\n")
    assert mps.ask("get_default_active_thread_percentage") == (0, "30.0\n")
    assert mps.ask("set_default_device_pinned_mem_limit GPU-a 4096M") == (0, "")
    assert mps.ask("get_default_device_pinned_mem_limit GPU-a") == (0, "4096M\n")
    assert mps.ask("get_server_list") == (0, "")
    assert mps.ask("quit") == (0, "")
    assert list(mps.pipe.iterdir()) == []
    expected = [
        "start -f",
        "devices GPU-a,GPU-b",
        "command get_default_active_thread_percentage",
        "command set_default_active_thread_percentage 30",
        "command get_default_active_thread_percentage",
        "command set_default_device_pinned_mem_limit GPU-a 4096M",
        "command get_default_device_pinned_mem_limit GPU-a",
        "command get_server_list",
        "command quit",
        "exit",
    ]
    assert mps.log() == expected
    record = (mps.root / simulated_root.RECORDS / "mps-control.log").read_text().splitlines()
    assert record == [f"{mps.pipe} {line}" for line in expected]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_active_thread_percentage 101", "Invalid active thread percentage: 101"),
        ("set_default_active_thread_percentage half", "Invalid active thread percentage: half"),
        ("set_default_active_thread_percentage", "Invalid active thread percentage: "),
        ("set_default_device_pinned_mem_limit 0 1024", "Invalid memory limit: 1024"),
        ("set_default_device_pinned_mem_limit 0", "Invalid memory limit: "),
        ("make_coffee *", "Unknown command: make_coffee"),
    ],
)
def test_a_wrong_command_is_refused(mps: Mps, command: str, answer: str) -> None:
    """Silence would let a wrong limit pass for one that is enforced."""
    mps.run("-d")
    assert mps.ask(command) == (1, f"{answer}\n")


def test_one_daemon_per_pipe_directory(mps: Mps) -> None:
    """Two would share a GPU's compute mode and each other's limits."""
    mps.run("-d")
    pid = mps.pid()
    for how in ("-d", "-f"):
        assert mps.run(how) == (1, f"An instance of this daemon is already running (pid {pid}).\n")
    assert mps.pid() == pid


def test_a_foreground_daemon_ends_on_sigterm_and_leaves_nothing(mps: Mps) -> None:
    daemon = mps.foreground()
    deadline = time.monotonic() + LIMIT_S
    while not until((mps.pipe / "control").exists()):
        assert time.monotonic() < deadline
    assert mps.pid() == daemon.pid
    daemon.terminate()
    assert daemon.wait(LIMIT_S) == 0
    assert list(mps.pipe.iterdir()) == []
    assert mps.log()[-1] == "exit"


def test_a_daemon_that_ends_while_it_is_looked_for_is_not_running(mps: Mps) -> None:
    """Nothing else is printed: `quit` looks for its daemon until it has ended, and its output is its answer."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    victim = "sleep 1000 & echo $! >$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid; wait"
    with subprocess.Popen(["/bin/sh", "-c", victim], env=mps.environment, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + LIMIT_S
        while not until(mps.pid() is not None):
            assert time.monotonic() < deadline
        # The trap runs before each command, so the process ends between the test of its /proc folder and its reading.
        trap = "case $BASH_COMMAND in tr*) kill -9 $pid; while [ -e /proc/$pid ]; do :; done ;; esac"
        mps.command = [bash, "--posix", "-T", "-c", f"trap '{trap}' DEBUG; . $0", mps.command[-1]]
        assert mps.ask("get_server_list") == (1, "Cannot find MPS control daemon process\n")
        parent.wait(LIMIT_S)
    (mps.pipe / "nvidia-cuda-mps-control.pid").unlink()


def test_what_a_killed_daemon_leaves_does_not_stop_the_next(mps: Mps) -> None:
    """kill -9, an OOM kill or a reboot: the pid file names no process, or another one."""
    for left in (str(os.getpid()), "", "4194304"):
        mps.run("-d")
        pid = mps.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (mps.pipe / "nvidia-cuda-mps-control.pid").write_text(left and f"{left}\n")
        assert mps.ask("get_server_list")[0] == 1
        assert mps.run("-d") == (0, "")
        assert mps.ask("quit")[0] == 0
