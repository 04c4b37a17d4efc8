"""The driver's own tools, as shell scripts in a driver root that they do not enter, which needs root; loading
nvidia-uvm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.device_nodes.tools import RETRY_S, UNLOADED_S, DriverTools, Outcome, UvmModule
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Ended
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.harness.raising import fails


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

    def gone() -> DriverRoot:
        raise DriverUnavailableError("no libnvidia-ml.so.1 below /")

    outcome = DriverTools(gone).make_uvm()
    assert outcome is not None
    assert outcome.said == "nvidia-modprobe cannot be found: no libnvidia-ml.so.1 below /"
    assert not DriverTools(gone).shares("/dev")


def test_the_tools_share_the_hosts_dev_or_have_one_of_their_own(driver: Driver, tmp_path: Path) -> None:
    assert driver.tools().shares(str(tmp_path / "dev"))
    assert not driver.tools().shares("/dev")


WITHOUT, WITH, NONE = Majors(nvidia=195), Majors(nvidia=195, uvm=510), Majors()


class Kernel(DriverTools):
    """A kernel in which a tool loads the module, if it can, and a clock."""

    def __init__(self, majors: Majors, *, can_load: bool = True) -> None:
        self.majors = majors
        self.can_load = can_load
        self.calls = 0
        self.now = 100.0
        self.may_load = True
        self.uvm = UvmModule(lambda: self.majors, self, may_load=lambda: self.may_load, clock=lambda: self.now)

    def load_uvm(self) -> Outcome:
        self.calls += 1
        if self.can_load:
            self.majors = WITH
        return Outcome(worked=self.can_load, said="nvidia-modprobe ended with status 1")


@pytest.mark.parametrize(("majors", "after", "calls"), [(WITHOUT, WITH, 1), (WITH, WITH, 0), (NONE, NONE, 0)])
def test_it_is_loaded_only_where_the_driver_is_there_without_it(majors: Majors, after: Majors, calls: int) -> None:
    kernel = Kernel(majors)
    assert kernel.uvm.majors() == after
    assert (kernel.calls, kernel.uvm.problem) == (calls, None)


def test_failed_tries_are_half_a_minute_apart() -> None:
    kernel = Kernel(WITHOUT, can_load=False)
    for _ in range(3):
        with pytest.raises(DriverUnavailableError, match="ended with status 1; run `nvidia-modprobe -u -c0`"):
            kernel.uvm.majors()
    assert kernel.calls == 1
    assert kernel.uvm.problem is not None
    kernel.now += RETRY_S
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    assert kernel.calls == 2


def test_a_module_that_another_program_loads_is_seen_at_once() -> None:
    kernel = Kernel(WITHOUT, can_load=False)
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    kernel.majors = WITH
    assert kernel.uvm.majors() == WITH
    assert kernel.uvm.problem is None


def test_a_module_that_was_unloaded_is_left_alone_for_a_minute() -> None:
    """An administrator unloads it before the driver; loading it again would keep the driver in use."""
    kernel = Kernel(WITH)
    kernel.uvm.majors()
    kernel.majors = WITHOUT
    for _ in range(2):
        with pytest.raises(DriverUnavailableError, match="unloaded a moment ago"):
            kernel.uvm.majors()
    assert kernel.calls == 0
    kernel.now += UNLOADED_S
    assert kernel.uvm.majors() == WITH


def test_a_new_driver_gets_it_at_once() -> None:
    kernel = Kernel(WITH)
    for majors in (WITH, WITHOUT, NONE, WITHOUT):
        kernel.majors = majors
        try:
            kernel.uvm.majors()
        except DriverUnavailableError:
            assert majors is WITHOUT
    assert kernel.uvm.last == WITH


def test_nothing_is_loaded_while_the_driver_is_being_replaced() -> None:
    kernel = Kernel(WITHOUT)
    kernel.may_load = False
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    assert kernel.calls == 0
    kernel.may_load = True
    assert kernel.uvm.majors() == WITH


def test_where_nothing_may_be_loaded_the_sentence_says_what_to_do() -> None:
    with fails(DriverUnavailableError, "UvmMissing", match="/dev/nvidia-uvm"):
        UvmModule(lambda: WITHOUT, None).majors()
