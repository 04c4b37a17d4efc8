"""How the control program is called, and which of its answers are refusals."""

import subprocess
from pathlib import Path

import pytest

from dra_driver.hardware.driver_root import search
from dra_driver.hardware.driver_root.process import Ended
from dra_driver.hardware.sharing import control
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon
from tests.fakes.driver_root import FakeDriverRoot

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
