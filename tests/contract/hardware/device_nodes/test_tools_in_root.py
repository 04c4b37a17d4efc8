"""The driver's tools with the driver root as their ``/``, which needs root: a small system with a shell."""

from pathlib import Path

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.device_nodes.reconciler import DeviceNodeReconciler
from dra_driver.hardware.device_nodes.tools import DriverTools, UvmModule
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.fakes.dev_folder import MemoryDev
from tests.fakes.driver_root import make_small_root
from tests.harness.raising import fails


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver container's root: /bin/sh with its libraries, and what the kernel shows."""
    make_small_root(tmp_path)
    for folder in ("proc", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    return tmp_path


def script(root: Path, text: str) -> None:
    file = root / "usr/bin/nvidia-modprobe"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def tools(root: Path, within_s: float = 5.0) -> DriverTools:
    found = DriverRoot(root=str(root))
    return DriverTools(lambda: found, within_s=within_s)


def test_the_module_is_loaded_in_the_driver_root(root: Path) -> None:
    script(root, 'echo "$0 $* $(pwd)" >/ran; echo "510 nvidia-uvm" >>/proc/devices')
    module = UvmModule(lambda: Majors.read(root / "proc/devices"), tools(root))
    assert module.majors() == Majors(nvidia=195, uvm=510)
    assert (root / "ran").read_text() == "/usr/bin/nvidia-modprobe -u -c0 /\n"


def test_a_tool_that_hangs_costs_its_limit_once(root: Path) -> None:
    script(root, "echo >>/ran; while :; do :; done")
    module = UvmModule(lambda: Majors.read(root / "proc/devices"), tools(root, within_s=0.3))
    for _ in range(3):
        with fails(DriverUnavailableError, "UvmMissing", match=r"0\.3 s"):
            module.majors()
    assert (root / "ran").read_text() == "\n"


def test_a_tool_that_cannot_run_there_is_a_failure_and_nodes_are_made_without_it(root: Path) -> None:
    """A driver root without the C library of its tools."""
    script(root, "exit 0")
    (root / "bin/sh").unlink()
    dev = MemoryDev()
    keeper = DeviceNodeReconciler(dev, lambda: Majors(nvidia=195, uvm=510), folder=str(root / "dev"), tools=tools(root))
    keeper.check([0])
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= dev.nodes.keys()
    assert keeper.problems == ()


def test_the_tool_has_no_variables_of_the_node_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a program of the host, and variables may have secrets."""
    monkeypatch.setenv("TOKEN_OF_TEST", "secret")
    script(root, "set >/ran")
    tools(root).make_uvm()
    assert "TOKEN_OF_TEST" not in (root / "ran").read_text()
