"""The two views of a driver root, and links that stay inside it."""

import os
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.hardware.driver_root.root import DriverRoot, resolve


def test_a_root_is_translated_between_both_views() -> None:
    root = DriverRoot(root="/driver-root/", host_root="/run/nvidia/driver", dev_root="/host", host_dev_root="/")
    assert root.here("/usr/lib/x") == "/driver-root/usr/lib/x"
    assert root.host("/usr/lib/x") == "/run/nvidia/driver/usr/lib/x"
    assert root.dev_here("/dev/nvidia0") == "/host/dev/nvidia0"
    assert root.dev_host("/dev/nvidia0") == "/dev/nvidia0"


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'opt/driver' is not an absolute path"):
        DriverRoot(root="opt/driver")


def test_the_device_root_is_the_drivers_own_when_it_has_a_dev_folder(tmp_path: Path) -> None:
    """Driver containers carry their own /dev; a package on the host uses the host's."""
    assert DriverRoot.locate(str(tmp_path), host_root="/d").dev_host("/dev/nvidia0") == "/dev/nvidia0"
    (tmp_path / "dev").mkdir()
    assert DriverRoot.locate(str(tmp_path), host_root="/d").dev_host("/dev/nvidia0") == "/d/dev/nvidia0"
    assert DriverRoot.locate(str(tmp_path), dev_root="/other").dev_here("/dev/x") == "/other/dev/x"


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    """Debian's alternatives are absolute links; outside the root they would lead to another driver."""
    (tmp_path / "usr/lib/nvidia").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia/libcuda.so.580").touch()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/libcuda").symlink_to("/usr/lib/nvidia/libcuda.so.580")
    (tmp_path / "usr/lib/libcuda.so.1").symlink_to("/etc/alternatives/libcuda")
    (tmp_path / "lib").symlink_to("usr/lib")
    assert resolve(str(tmp_path), "/lib/libcuda.so.1") == "/usr/lib/nvidia/libcuda.so.580"


@pytest.mark.parametrize("target", ["/../../../../etc/passwd", "../../../../../../../etc/passwd", "/etc/passwd"])
def test_a_link_cannot_leave_the_root(tmp_path: Path, target: str) -> None:
    """A hostile driver image must not make the node mount a file of the host into containers."""
    (tmp_path / "libx").symlink_to(target)
    assert resolve(str(tmp_path), "/libx") is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    assert resolve(str(tmp_path), "/libx") == "/etc/passwd"


def test_what_is_missing_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, target in {"dangling": "nowhere", "a": "b", "b": "a"}.items():
        (tmp_path / name).symlink_to(target)
    for path in ("/nope", "/nope/deeper", "/file/below", "/dangling", "/a", "/a/b/c"):
        assert resolve(str(tmp_path), path) is None


def test_for_the_hosts_own_root_it_agrees_with_the_system(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").touch()
    (tmp_path / "link").symlink_to("real")
    for path in (f"{tmp_path}/link/f", f"{tmp_path}/link/../link/./f", "/"):
        assert resolve("", path) == os.path.realpath(path)
