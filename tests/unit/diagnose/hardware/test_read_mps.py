"""The CUDA program beside a private MPS daemon."""

from pathlib import Path

from dra_driver.diagnose.hardware.cuda import client_environment
from dra_driver.hardware.sharing.mps_files import DaemonFolder


def test_a_whole_systems_libraries_are_not_searched(tmp_path: Path) -> None:
    """A program with two versions of the C library in turn does not even start."""
    folder, library = DaemonFolder(tmp_path / "daemon"), str(tmp_path / "root/lib/libcuda.so.1")
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    assert client_environment(folder, str(root), library)["LD_LIBRARY_PATH"] == str(root / "lib")
    (root / "bin/sh").touch(mode=0o755)
    assert client_environment(folder, str(root), library).get("LD_LIBRARY_PATH") != str(root / "lib")
