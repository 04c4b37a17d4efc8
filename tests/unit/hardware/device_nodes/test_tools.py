"""The driver's own tools, as shell scripts in a driver root. They run without entering it, which needs root."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.tools import DriverTools
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Ended
from dra_driver.hardware.driver_root.root import DriverRoot


class Driver:
    """A driver root with tools whose text a test gives. ``commands`` are the command lines inside the root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commands: list[list[str]] = []
        self.within_s = 5.0
        (path / "proc").mkdir()
        (path / "proc/devices").touch()
        (path / "dev").mkdir()

    def script(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def run(self, arguments: Sequence[str], *, environment: Mapping[str, str], within_s: float) -> Ended:
        at = list(arguments).index(str(self.path)) + 1
        self.commands.append(list(arguments[at:]))
        here = str(self.path) + arguments[at]
        return process.run([here, *arguments[at + 1 :]], environment=environment, within_s=within_s)

    def tools(self) -> DriverTools:
        root = DriverRoot(root=str(self.path))
        return DriverTools(lambda: root, run=self.run, within_s=self.within_s)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_uvm_is_loaded_by_nvidias_tool(driver: Driver) -> None:
    driver.script("usr/bin/nvidia-modprobe", "exit 0")
    assert driver.tools().load_uvm().worked
    assert driver.commands == [["/usr/bin/nvidia-modprobe", "-u", "-c0"]]


def test_without_nvidias_tool_modprobe_loads_it_under_its_own_name(driver: Driver) -> None:
    """/sbin/modprobe is a link to kmod, which reads the name that it is called by."""
    driver.script("usr/bin/kmod", '[ "${0##*/}" = modprobe ]')
    (driver.path / "usr/sbin").mkdir()
    (driver.path / "usr/sbin/modprobe").symlink_to("../bin/kmod")
    assert driver.tools().load_uvm().worked
    assert driver.commands == [["/usr/sbin/modprobe", "nvidia-uvm"]]


def test_both_tools_are_named_when_both_fail(driver: Driver) -> None:
    driver.script("usr/bin/nvidia-modprobe", "exit 1")
    driver.script("usr/sbin/modprobe", "echo FATAL: Module nvidia-uvm not found; exit 1")
    outcome = driver.tools().load_uvm()
    assert not outcome.worked
    assert outcome.said == (
        "nvidia-modprobe ended with status 1, and modprobe ended with status 1 and printed: FATAL: Module nvidia-uvm"
        " not found"
    )


def test_without_any_tool_that_is_said(driver: Driver) -> None:
    outcome = driver.tools().load_uvm()
    assert (outcome.worked, outcome.said) == (False, "neither nvidia-modprobe nor modprobe is in the driver root")
    assert driver.tools().make([0], [], modeset=False) is None


def test_a_tool_that_hangs_is_killed_and_no_other_is_tried(driver: Driver) -> None:
    """The module loader hangs in the kernel: a second one would too."""
    driver.within_s = 0.05
    driver.script("usr/bin/nvidia-modprobe", "exec sleep 60")
    driver.script("usr/sbin/modprobe", "exit 0")
    outcome = driver.tools().load_uvm()
    assert (outcome.worked, outcome.late) == (False, True)
    assert outcome.said == "nvidia-modprobe did not end within 0.05 s and was killed"
    assert len(driver.commands) == 1


def test_megabytes_of_output_are_cut(driver: Driver) -> None:
    driver.script("usr/bin/nvidia-modprobe", "head -c 4000000 /dev/zero | tr '\\0' x; exit 3")
    outcome = driver.tools().make([0], [], modeset=False)
    assert outcome is not None
    assert outcome.said.startswith("nvidia-modprobe ended with status 3 and printed: xxx")
    assert len(outcome.said) < 400


def test_nodes_are_asked_for_in_one_run(driver: Driver) -> None:
    driver.script("usr/bin/nvidia-modprobe", "exit 0")
    access = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
    driver.tools().make([255, 0], [access], modeset=True)
    driver.tools().make_uvm()
    assert driver.commands == [
        ["/usr/bin/nvidia-modprobe", "-c255", "-c0", "-m", "-f", access],
        ["/usr/bin/nvidia-modprobe", "-u", "-c0"],
    ]


def test_a_folder_of_files_is_no_system(driver: Driver) -> None:
    """Google's Container-Optimized OS: the driver's folder has no /proc, so its tool would see nothing."""
    driver.script("bin/nvidia-modprobe", "exit 0")
    (driver.path / "proc/devices").unlink()
    assert driver.tools().make_uvm() is None


def test_a_tool_that_cannot_be_started_is_a_failure(driver: Driver) -> None:
    driver.script("usr/bin/nvidia-modprobe", "")
    (driver.path / "usr/bin/nvidia-modprobe").write_bytes(b"\x7fELF nonsense")
    outcome = driver.tools().make_uvm()
    assert outcome is not None
    assert outcome.said == "nvidia-modprobe cannot be started: Exec format error"


def test_without_a_driver_root_nothing_is_started() -> None:
    """The driver was just removed."""

    def gone() -> DriverRoot:
        raise DriverUnavailableError("no libnvidia-ml.so.1 below /")

    outcome = DriverTools(gone).make_uvm()
    assert outcome is not None
    assert outcome.said == "nvidia-modprobe cannot be found: no libnvidia-ml.so.1 below /"
    assert not DriverTools(gone).shares("/dev")


def test_the_tools_share_the_hosts_dev_or_have_one_of_their_own(driver: Driver, tmp_path: Path) -> None:
    """In a driver container they have their own."""
    assert driver.tools().shares(str(tmp_path / "dev"))
    assert not driver.tools().shares("/dev")
