"""One daemon under supervision, calls of its control program, and processes that an earlier MPS host left behind."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import field

from dra_driver.core.errors import CommandError
from dra_driver.hardware.driver_root import search
from dra_driver.hardware.driver_root.process import Ended
from dra_driver.hardware.sharing import control, orphan_processes, supervise
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.memory import SharedMemory
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon, MpsFolders
from dra_driver.hardware.sharing.supervise import Supervised
from tests.fakes.driver_root import FakeDriverRoot

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


G1, G2 = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
FOLDER = DaemonFolder(Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps/daemons/one"))


def make(root: Path, *names: str) -> str:
    for name in names:
        FakeDriverRoot(root).put(name, b"#!/bin/sh\n", 0o755)
    return str(root)


def test_defaults_are_percentage_and_one_limit_for_each_device() -> None:
    daemon = MpsDaemon(id="one", devices=(G1, G2), default_percentage=0, memory_limits={G2: 2, G1: 1024})
    assert control.defaults(daemon) == (
        "set_default_active_thread_percentage 0",
        f"set_default_device_pinned_mem_limit {G1} 1024M",
        f"set_default_device_pinned_mem_limit {G2} 2M",
    )
    assert control.defaults(MpsDaemon(id="one", devices=(G1,))) == ()


@pytest.mark.parametrize(
    ("status", "output", "said"),
    [
        (1, "Cannot find MPS control daemon process", "failed with status 1: Cannot find MPS control daemon process"),
        (0, "Cannot find MPS control daemon process", "was refused: Cannot find MPS control daemon process"),
        (0, "Invalid memory limit: 0M", "was refused"),
        (0, "Failed to set limit", "was refused"),
        (0, "Unrecognized command", "was refused"),
        (None, "", "was not answered in time"),
        (-11, "", "failed with status -11: nothing"),
        *((0, answer, None) for answer in ("", "100.0\n", "1024M\n", "12345\n67890\n")),
    ],
)
def test_refusals_are_sentences_whatever_the_status(status: int | None, output: str, said: str | None) -> None:
    problem = control.refusal("ps", Ended(status=status, output=output))
    assert problem == said or (problem is not None and problem.startswith(f"`ps` {said}"))


def test_a_private_view_has_short_paths_and_enters_a_root_that_is_a_system(tmp_path: Path) -> None:
    """The kubelet's plugin directory and a claim's UID would not fit the 107 characters of a socket's path."""
    root = make(tmp_path, "usr/bin/nvidia-cuda-mps-control", "bin/sh")
    program = ControlProgram(root=root)
    assert program._command() == ["/usr/bin/nvidia-cuda-mps-control"]
    assert program._environment(FOLDER) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_LOG_DIRECTORY": "/tmp/nvidia-log",
        "LC_ALL": "C",
        "PATH": search.OWN_PATH,
        control.MARK: str(FOLDER.path),
    }


def test_a_root_with_nothing_but_the_drivers_files_is_used_from_outside(tmp_path: Path) -> None:
    root = make(tmp_path, "bin/nvidia-cuda-mps-control", "usr/lib64/libcuda.so.1")
    program = ControlProgram(root=root)
    assert program._command() == [f"{root}/bin/nvidia-cuda-mps-control"]
    environment = program._environment(FOLDER)
    assert environment["LD_LIBRARY_PATH"] == f"{root}/usr/lib64"
    assert environment["PATH"].startswith(f"{root}/opt/bin:{root}/usr/bin:")


def test_libraries_of_a_whole_system_are_never_mixed_with_ours(tmp_path: Path) -> None:
    """Its C library would be loaded by this container's loader, and every program would crash."""
    root = make(tmp_path, "bin/nvidia-cuda-mps-control", "bin/sh", "usr/lib64/libcuda.so.1")
    assert "LD_LIBRARY_PATH" not in ControlProgram(root=root, private=False)._environment(FOLDER)
    assert "LD_LIBRARY_PATH" not in ControlProgram(root="/")._environment(FOLDER)


@pytest.mark.parametrize(("users", "arguments"), [("one", ["-f"]), ("all", ["-f", "-multiuser-server"])])
def test_the_daemon_sees_its_devices_and_serves_whom_it_is_told_to(
    tmp_path: Path, users: control.Users, arguments: list[str]
) -> None:
    root = make(tmp_path / "root", "usr/bin/nvidia-cuda-mps-control")
    (tmp_path / "root/usr/bin/nvidia-cuda-mps-control").write_text('#!/bin/sh\necho "$* $CUDA_VISIBLE_DEVICES"\n')
    with (tmp_path / "output").open("w") as output:
        daemon = MpsDaemon(id="one", devices=(G1, G2))
        program = ControlProgram(root=root, private=False, users=users)
        started: subprocess.Popen[bytes] = program.start(daemon, FOLDER, tmp_path, output.fileno())
        assert started.wait(timeout=5) == 0
    assert (tmp_path / "output").read_text().split() == [*arguments, f"{G1},{G2}"]
