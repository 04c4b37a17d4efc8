"""Which hardware is chosen, and which MIG instances of a snapshot are marked as this driver's own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings, load_node_settings
from dra_driver.core.errors import CommandError, ConfigurationError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.core.model.terms import Interval
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers
from dra_driver.hardware.device_nodes.reconciler import DeviceNodeReconciler
from dra_driver.hardware.device_nodes.tools import DriverTools, Outcome, UvmModule
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.node.process import hardware
from dra_driver.node.process.hardware import DeviceNodeReport, HostDeviceNodes, OwnedBackend, SimulatedDev
from tests.fakes.dev_folder import MemoryDev
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.stand_in import present, stand_in
from tests.harness.raising import fails

SETTINGS = load_node_settings({"node_name": "node-a", "simulate": "2xh100-sxm5-80gb"}, {})


def test_simulated_gpus_bring_their_own_driver_root(tmp_path: Path) -> None:
    found = hardware.choose(SETTINGS, tmp_path)
    assert found.root().here("/").startswith(str(tmp_path / hardware.SIMULATED_ROOT))
    assert len(found.backend.snapshot().gpus) == 2
    assert Path(found.proc_devices).is_file()
    assert list(found.procs()) == [], "no real process has them open"


def real(**flags: str) -> hardware.Hardware:
    return hardware.choose(load_node_settings({"node_name": "node-a", **flags}, {}), Path("/nonexistent"))


def test_a_driver_root_on_the_host_alone_is_refused() -> None:
    """It would be ignored, and containers would get the files of another folder or none."""
    with pytest.raises(ConfigurationError, match=r"set without --driver-root \(DRIVER_ROOT\)"):
        real(host_root="/driver-root", driver_root_on_host="/opt/nvidia")


@pytest.mark.parametrize(
    ("flags", "on_host"),
    [
        ({"host_root": "/driver-root", "driver_root": "/driver-root/opt/nvidia"}, "/opt/nvidia/usr/bin/nvidia-smi"),
        ({"host_root": "/driver-root", "driver_root": "/driver-root"}, "/usr/bin/nvidia-smi"),
        ({"driver_root": "/opt/nvidia"}, "/opt/nvidia/usr/bin/nvidia-smi"),
        ({"host_root": "/driver-root", "driver_root": "/elsewhere"}, "/elsewhere/usr/bin/nvidia-smi"),
        (
            {"host_root": "/driver-root", "driver_root": "/driver-root/a", "driver_root_on_host": "/b"},
            "/b/usr/bin/nvidia-smi",
        ),
    ],
)
def test_a_driver_root_below_the_hosts_root_is_mounted_from_the_host(flags: dict[str, str], on_host: str) -> None:
    """Containers are given paths of the host; a path of this process' container is none."""
    assert str(real(**flags).root().host("/usr/bin/nvidia-smi")) == on_host


def test_the_nodes_processes_are_looked_for_below_the_hosts_root_and_the_drivers(tmp_path: Path) -> None:
    """A container sees its own processes in /proc; a driver container runs in the node's PID namespace."""
    both = real(host_root="/driver-root", driver_root="/driver-root/run/nvidia/driver").procs()
    assert [str(each) for each in both] == ["/driver-root/proc", "/driver-root/run/nvidia/driver/proc", "/proc"]
    assert list(real(driver_root="/run/nvidia/driver").procs()) == [Path("/run/nvidia/driver/proc"), Path("/proc")]
    assert list(real(host_root=str(tmp_path)).procs()) == [tmp_path / "proc", Path("/proc")], "without a driver"


def test_programs_of_the_driver_are_not_run_while_it_is_given_up(tmp_path: Path) -> None:
    found = hardware.choose(SETTINGS, tmp_path)
    notes = FakeGpuNotes()
    slicer = found.tools(notes, tmp_path / "mps", lambda: None, found.backend.snapshot).slicer
    gpu = found.backend.snapshot().gpus[0].uuid
    slicer.set(gpu, Interval.SHORT, within_s=5.0)
    found.backend.detach("driver 580")
    with pytest.raises(CommandError, match="driver 580"):
        slicer.reset(gpu, within_s=5.0)
    found.backend.reattach()
    slicer.reset(gpu, within_s=5.0)


@pytest.mark.parametrize("flags", [{}, {"driver_root": "/driver-root"}], ids=["searched", "given"])
def test_of_two_node_processes_the_newer_one_keeps_reading_mig_instances(tmp_path: Path, flags: dict[str, str]) -> None:
    old, new = (hardware.choose(load_node_settings({"node_name": "n", **flags}, {}), tmp_path) for _ in range(2))
    assert isinstance(old.backend, NvmlBackend)
    assert isinstance(new.backend, NvmlBackend)
    looks = [(old.backend.listings.may_read(), new.backend.listings.may_read()) for _ in range(3)]
    assert looks == [(True, False), (False, True), (False, True)]


GPU = GpuUuid("GPU-0")
AT_0 = MigInstance(gi_id=1, profile_id=19, profile_name="1g.10gb", start=0, size=1)
AT_4 = replace(AT_0, gi_id=2, start=4)


class FakeJournal:
    def __init__(self, *made: MigInstance, modes: tuple[GpuUuid, ...] = ()) -> None:
        self.made, self.modes = list(made), modes
        self.error: StorageError | None = None

    def created_partitions(self) -> frozenset[PartitionId]:
        if self.error:
            raise self.error
        return frozenset(PartitionId(GPU, one.profile_id, one.start) for one in self.made)

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        assert key == "mig-mode"
        return self.modes


class Hardware:
    """One GPU; ``during`` happens between the two readings of the journal."""

    def __init__(self, *instances: MigInstance) -> None:
        self.instances = instances
        self.during: Callable[[], None] = lambda: None

    def open(self) -> None: ...
    def close(self) -> None: ...
    def wait_for_event(self, timeout_s: float) -> bool:
        return timeout_s < 0

    def snapshot(self) -> Snapshot:
        found = Snapshot(gpus=(Gpu(uuid=GPU, minor=0, mig_capable=True, mig_instances=self.instances),))
        self.during()
        return found


def owned(hardware: Hardware, journal: FakeJournal | None) -> list[bool]:
    backend = OwnedBackend(hardware)
    if journal:
        backend.use_journal(stand_in(journal))
    return [instance.owned for instance in backend.snapshot().gpus[0].mig_instances]


def test_an_instance_or_mig_mode_is_owned_only_if_the_journal_has_it() -> None:
    assert owned(Hardware(AT_0, AT_4), FakeJournal(AT_0)) == [True, False]
    assert owned(Hardware(AT_0), FakeJournal(AT_4)) == [False]
    assert owned(Hardware(AT_0), None) == [False]
    backend = OwnedBackend(Hardware())
    backend.use_journal(stand_in(FakeJournal(modes=(GPU,))))
    assert backend.snapshot().gpus[0].mig_mode_owned


def test_an_instance_changed_during_the_read_is_not_marked_as_foreign() -> None:
    """It was read, then destroyed and removed from the journal: as a foreign one it would be published again."""
    hardware, journal = Hardware(AT_0), FakeJournal(AT_0)
    hardware.during = journal.made.clear
    assert owned(hardware, journal) == [True]
    hardware.during = lambda: journal.made.append(AT_0)  # created during the read
    assert owned(hardware, journal) == [True]


def test_an_unreadable_journal_fails_the_snapshot() -> None:
    journal = FakeJournal()
    journal.error = StorageError("disk full")
    with fails(DriverUnavailableError, "PartitionsUnknown", match="disk full"):
        owned(Hardware(AT_0), journal)


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


def test_a_problem_is_an_event_a_metric_and_a_note_until_it_is_gone(node: Node) -> None:
    node.report.check()
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm"} <= node.dev.nodes.keys()
    assert (node.events, node.report.remarks(), count("node")) == ([], [], 0)
    del node.dev.nodes["/dev/nvidia1"]
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
    assert len(node.report.remarks()) == 4, "an event has at most 1024 characters"
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
    elsewhere = settings(proc_devices="/tmp/devices", driver_root="/tmp/root")
    found = hardware.choose(elsewhere, Path("/nonexistent"))
    assert (found.host_dev, found.has_tools) == (None, False)
    real = hardware.choose(settings(driver_root="/tmp/root"), Path("/nonexistent"))
    assert (real.host_dev, real.has_tools) == ("/dev", True)


def test_simulated_gpus_touch_the_hosts_dev_only_where_it_is_named(tmp_path: Path) -> None:
    simulated = settings(simulate="1xh100-sxm5-80gb")
    found = hardware.choose(simulated, tmp_path)
    assert found.host_dev is None
    nodes = HostDeviceNodes.of(found)
    assert (nodes.uvm.majors().uvm, nodes.check([0])) == (510, ())
    named = hardware.choose(dataclasses.replace(simulated, host_dev="/host-dev"), tmp_path)
    assert (named.host_dev, named.has_tools) == ("/host-dev", False)


def test_nothing_is_loaded_while_the_gpus_are_detached(tmp_path: Path) -> None:
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
