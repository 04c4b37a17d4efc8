"""Wiring the device nodes, and reporting what cannot be done."""

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings, load_node_settings
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers
from dra_driver.hardware.device_nodes.reconciler import DeviceNodeReconciler
from dra_driver.hardware.device_nodes.tools import DriverTools, Outcome, UvmModule
from dra_driver.node.process import hardware
from dra_driver.node.process.device_nodes import DeviceNodeReport, HostDeviceNodes, SimulatedDev
from tests.fakes.dev_folder import MemoryDev
from tests.fakes.stand_in import present

WITH, WITHOUT = Majors(nvidia=195, uvm=510), Majors(nvidia=195)


class Node:
    """Device nodes in memory, and the events that were recorded."""

    def __init__(self) -> None:
        self.majors = WITH
        self.dev = MemoryDev()
        self.events: list[tuple[str, str]] = []
        self.can_warn = True
        uvm = UvmModule(lambda: self.majors, None)
        self.nodes = HostDeviceNodes(uvm, DeviceNodeReconciler(self.dev, lambda: uvm.last, proc_driver="/nonexistent"))
        self.report = DeviceNodeReport(self.nodes, lambda: [0, 1], self.warn)

    def warn(self, reason: str, text: str) -> bool:
        if self.can_warn:
            self.events.append((reason, text))
        return self.can_warn


@pytest.fixture
def node() -> Node:
    return Node()


def count(kind: str) -> float:
    return present(metrics.REGISTRY.get_sample_value("dra_driver_device_node_problems", {"kind": kind}))


def test_nodes_of_all_gpus_are_there_before_a_claim(node: Node) -> None:
    node.report.check()
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm"} <= node.dev.nodes.keys()
    assert (node.events, node.report.remarks(), count("node")) == ([], [], 0)


def test_a_problem_is_an_event_a_metric_and_a_note_until_it_is_gone(node: Node) -> None:
    """Each change once."""
    node.dev.files.add("/dev/nvidia1")
    node.report.check()
    node.report.check()
    assert [reason for reason, _ in node.events] == ["DeviceNodeProblem"]
    assert "hostUsers: false" in node.report.remarks()[0]
    assert count("node") == 1
    node.dev.files.clear()
    node.report.check()
    assert (len(node.events), node.report.remarks(), count("node")) == (1, [], 0)


def test_an_event_that_could_not_be_recorded_is_recorded_later(node: Node) -> None:
    """The Node's UID is known only after the API server answered."""
    node.dev.fail = 30
    node.can_warn = False
    node.report.check()
    node.can_warn = True
    node.report.check()
    assert len(node.events) == 1


def test_many_problems_are_counted_and_the_first_are_shown(node: Node) -> None:
    """An event has at most 1024 characters."""
    node.dev.fail = 30
    node.report.check()
    assert len(node.report.remarks()) == 4
    assert node.report.remarks()[-1] == "2 more device nodes have such problems."
    assert count("node") == 5


def test_a_missing_nvidia_uvm_is_an_event_of_its_own(node: Node) -> None:
    node.majors = WITHOUT
    node.report.check()
    ((reason, text),) = node.events
    assert reason == "CudaUnavailable"
    assert "modprobe nvidia-uvm" in text
    node.majors = WITH
    node.report.check()
    assert "/dev/nvidia-uvm" in node.dev.nodes


def settings(**flags: str) -> NodeSettings:
    return load_node_settings({"node_name": "node-a", **flags}, {})


def test_the_hosts_dev_is_the_own_one_unless_the_hosts_root_shows_another(tmp_path: Path) -> None:
    """A pod without the mount has a /dev of its own, in which nodes help no container."""
    assert hardware.host_dev(settings()) == "/dev"
    assert hardware.host_dev(settings(host_root=str(tmp_path))) == "/dev"
    (tmp_path / "dev").mkdir()
    assert hardware.host_dev(settings(host_root=str(tmp_path))) == f"{tmp_path}/dev"
    assert hardware.host_dev(settings(host_root=str(tmp_path)), own=f"{tmp_path}/dev") == f"{tmp_path}/dev"
    assert hardware.host_dev(settings(host_root=str(tmp_path), host_dev="/host-dev")) == "/host-dev"


def test_numbers_that_are_not_the_kernels_are_not_made_into_nodes() -> None:
    """A test with a list of its own must not change the machine."""
    elsewhere = settings(proc_devices="/tmp/devices", driver_root="/tmp/root")
    found = hardware.choose(elsewhere, Path("/nonexistent"))
    assert (found.host_dev, found.has_tools) == (None, False)
    real = hardware.choose(settings(driver_root="/tmp/root"), Path("/nonexistent"))
    assert (real.host_dev, real.has_tools) == ("/dev", True)


def test_simulated_gpus_touch_the_hosts_dev_only_where_it_is_named(tmp_path: Path) -> None:
    simulated = settings(simulate="1xh100-sxm5-80gb")
    assert hardware.choose(simulated, tmp_path).host_dev is None
    named = hardware.choose(dataclasses.replace(simulated, host_dev="/host-dev"), tmp_path)
    assert (named.host_dev, named.has_tools) == ("/host-dev", False)


def test_simulated_gpus_without_a_dev_still_have_numbers(tmp_path: Path) -> None:
    nodes = HostDeviceNodes.of(hardware.choose(settings(simulate="1xh100-sxm5-80gb"), tmp_path))
    assert nodes.uvm.majors().uvm == 510
    assert nodes.check([0]) == ()


def test_nothing_is_loaded_while_the_gpus_are_detached(tmp_path: Path) -> None:
    """The driver is being replaced: nvidia-modprobe would load the old one again."""
    found = hardware.choose(settings(simulate="1xh100-sxm5-80gb"), tmp_path)
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n")
    calls: list[str] = []

    class Tools(DriverTools):
        def load_uvm(self) -> Outcome:
            calls.append("load")
            return Outcome(worked=False, said="nvidia-modprobe ended with status 1")

    found.backend.detach("upgrade")
    nodes = HostDeviceNodes.of(replace(found, has_tools=True, proc_devices=str(tmp_path / "devices")), tools=Tools)
    assert nodes.check([]) is None
    assert calls == []
    found.backend.reattach()
    assert nodes.check([]) == ()
    assert calls == ["load"]


def test_a_detached_node_reports_nothing(node: Node) -> None:
    """An administrator has unloaded the modules on purpose."""
    node.nodes = HostDeviceNodes(node.nodes.uvm, None, may_touch=lambda: False)
    node.majors = WITHOUT
    DeviceNodeReport(node.nodes, lambda: [0], node.warn).check()
    assert node.events == []


def test_a_simulated_node_never_gets_a_real_devices_number(tmp_path: Path) -> None:
    """1 is the major of /dev/mem on every machine."""
    with pytest.raises(OSError, match="major 1 belongs to the driver mem of this machine"):
        SimulatedDev(str(tmp_path)).make_node(
            "/dev/nvidia0", NodeNumbers(major=1, minor=3), mode=0o666, uid=0, gid=0, replace=False
        )
    assert list(tmp_path.iterdir()) == []
