"""Finding the NVML library below a driver root as if the root were /."""

from pathlib import Path

import pytest

from dra_driver.hardware.driver_root.root import resolve
from dra_driver.hardware.driver_root.search import find_library


def put(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "."])
def test_the_versioned_file_behind_the_link_is_found(tmp_path: Path, folder: str) -> None:
    """Its name changes with the driver, so an upgraded library is loaded."""
    file = put(tmp_path, f"{folder}/libnvidia-ml.so.580.65.06")
    link(tmp_path, f"{folder}/libnvidia-ml.so.1", "libnvidia-ml.so.580.65.06")
    assert find_library(str(tmp_path)) == str(file)


def test_absolute_links_point_into_the_root(tmp_path: Path) -> None:
    """Debian's alternatives chain, seen through a mount of the host's root."""
    file = put(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1")
    link(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1", "libnvidia-ml.so.535.1")
    link(tmp_path, "etc/alternatives/nvml", "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    link(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/etc/alternatives/nvml")
    assert find_library(str(tmp_path)) == str(file)


def test_a_linked_folder_is_followed_inside_the_root(tmp_path: Path) -> None:
    """/lib is a link to usr/lib on merged systems."""
    file = put(tmp_path, "opt/nv/libnvidia-ml.so.1")
    link(tmp_path, "usr/lib64", "/opt/nv")
    assert find_library(str(tmp_path)) == str(file)


@pytest.mark.parametrize("target", ["libnvidia-ml.so.1", "/nowhere/libnvidia-ml.so.2", "../../../../../../../.."])
def test_a_link_that_loops_breaks_or_ends_in_a_folder_is_no_library(tmp_path: Path, target: str) -> None:
    """It must neither hang nor leave the root."""
    link(tmp_path, "usr/lib64/libnvidia-ml.so.1", target)
    assert find_library(str(tmp_path)) is None


def test_dots_never_leave_the_root(tmp_path: Path) -> None:
    """As with chroot, the parent of the root is the root."""
    put(tmp_path, "root/secret")
    put(tmp_path, "secret")
    assert resolve(str(tmp_path / "root"), "../.././secret") == "/secret"


def test_an_empty_or_missing_root_has_no_library(tmp_path: Path) -> None:
    """The driver container has not started yet."""
    assert find_library(str(tmp_path)) is None
    assert find_library(str(tmp_path / "missing")) is None
