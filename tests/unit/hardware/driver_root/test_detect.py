"""Which driver root is taken when none is given, and which nodes are refused."""

import shutil
from pathlib import Path

import pytest

from dra_driver.config.settings import load_node_settings
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.driver_root.detect import CANDIDATES, Detector
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.nvml.session import Session
from dra_driver.node.process import hardware
from tests.fakes import elf
from tests.fakes.driver_root import FakeDriverRoot
from tests.fakes.driver_trees import driver_container, gke, ubuntu


def found(host: Path) -> str:
    return Detector(str(host)).current().host_root or "/"


def test_a_driver_of_the_host_comes_first(tmp_path: Path) -> None:
    """Then a driver container, then Google's folder, as in the GPU operator's validator."""
    root = FakeDriverRoot(tmp_path)
    gke(root)
    assert found(tmp_path) == "/home/kubernetes/bin/nvidia"
    driver_container(root)
    assert found(tmp_path) == "/run/nvidia/driver"
    ubuntu(root)
    assert found(tmp_path) == "/"


def test_a_root_that_was_found_is_kept_while_it_has_a_driver(tmp_path: Path) -> None:
    """Pods hold mounts from it; a second driver must not change the node's root under them."""
    root = FakeDriverRoot(tmp_path)
    driver_container(root)
    detector = Detector(str(tmp_path))
    assert detector.current().host_root == "/run/nvidia/driver"
    ubuntu(root)
    assert detector.current().host_root == "/run/nvidia/driver"
    shutil.rmtree(tmp_path / "run/nvidia/driver")
    assert detector.current().shows_host


def test_a_driver_that_comes_later_is_found(tmp_path: Path) -> None:
    """The driver container starts after this process; until then the sentence names what is awaited."""
    detector = Detector(str(tmp_path))
    with pytest.raises(DriverUnavailableError) as caught:
        detector.current()
    assert all(f"{tmp_path}{candidate}" in str(caught.value) for candidate in CANDIDATES)
    assert "wait for the driver container, or set --driver-root" in str(caught.value)
    driver_container(FakeDriverRoot(tmp_path))
    assert detector.current().root == f"{tmp_path}/run/nvidia/driver"


def test_device_nodes_are_the_drivers_own_or_the_hosts(tmp_path: Path) -> None:
    """A driver container has its own /dev; a folder with only the driver's files has none."""
    (tmp_path / "a/dev").mkdir(parents=True)
    driver_container(FakeDriverRoot(tmp_path / "a"))
    own = Detector(str(tmp_path / "a")).current()
    assert (own.dev_here("/dev/x"), own.dev_host("/dev/x")) == (f"{own.root}/dev/x", "/run/nvidia/driver/dev/x")
    (tmp_path / "b/dev").mkdir(parents=True)
    gke(FakeDriverRoot(tmp_path / "b"))
    hosts = Detector(str(tmp_path / "b")).current()
    assert (hosts.dev_here("/dev/x"), hosts.dev_host("/dev/x")) == (f"{tmp_path}/b/dev/x", "/dev/x")
    given = Detector(str(tmp_path / "b"), dev_root="/there", host_dev_root="/outside").current()
    assert (given.dev_here("/dev/x"), given.dev_host("/dev/x")) == ("/there/dev/x", "/outside/dev/x")


def test_the_setting_wins(tmp_path: Path) -> None:
    """Also over a driver of the host, and while its folder has no driver yet."""
    ubuntu(FakeDriverRoot(tmp_path))
    given = {"node_name": "n", "host_root": str(tmp_path), "driver_root": f"{tmp_path}/run/nvidia/driver"}
    chosen = hardware.choose(load_node_settings(given, {}), tmp_path)
    assert chosen.root().root == f"{tmp_path}/run/nvidia/driver"
    detected = hardware.choose(load_node_settings({**given, "driver_root": None}, {}), tmp_path)
    assert detected.root().root == str(tmp_path)


def wsl(root: FakeDriverRoot) -> None:
    """NVIDIA/nvidia-container-toolkit d34b3046, pkg/nvcdi/driver-wsl.go; ld.so.cache knows the folder."""
    root.put("/usr/lib/wsl/lib/libnvidia-ml.so.1", elf.library("libnvidia-ml.so.1"))
    root.put(
        "/etc/ld.so.cache", elf.linker_cache([(0x0303, "libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")])
    )


def jetson(root: FakeDriverRoot) -> None:
    """go-nvlib, pkg/nvlib/info/property-extractor.go: the release file of L4T."""
    root.put("/etc/nv_tegra_release", b"# R36 (release), REVISION: 4.0\n")


def thor(root: FakeDriverRoot) -> None:
    """The same source: the family of the system on a chip."""
    root.put("/sys/devices/soc0/family", b"Tegra\n")


@pytest.mark.parametrize(
    ("build", "advice"),
    [
        (wsl, "is a Windows Subsystem for Linux .*use NVIDIA's device plugin with the CDI mode wsl"),
        (jetson, "is a Tegra system .*use NVIDIA's device plugin with the CDI mode csv"),
        (thor, "is a Tegra system .*use NVIDIA's device plugin with the CDI mode csv"),
    ],
)
def test_a_node_that_no_driver_helps_is_not_told_to_install_one(tmp_path: Path, build: object, advice: str) -> None:
    """Whether the root is searched or given."""
    assert callable(build)
    build(FakeDriverRoot(tmp_path))
    with pytest.raises(DriverUnavailableError, match=advice) as searched:
        Detector(str(tmp_path)).current()
    with pytest.raises(DriverUnavailableError, match=advice) as given:
        Session(None, str(tmp_path)).open()
    assert "install" not in f"{searched.value}{given.value}"
    assert find_library(str(tmp_path)) is None, "Windows' library is not taken either"


def test_a_tegra_board_with_a_discrete_gpu_is_served(tmp_path: Path) -> None:
    """IGX boards take one; the kernel then lists it as on any machine."""
    root = FakeDriverRoot(tmp_path)
    jetson(root)
    ubuntu(root)
    with pytest.raises(DriverUnavailableError, match="Tegra"):
        Detector(str(tmp_path)).current()
    (tmp_path / "proc/driver/nvidia/gpus/0005:01:00.0").mkdir(parents=True)
    assert Detector(str(tmp_path)).current().shows_host
