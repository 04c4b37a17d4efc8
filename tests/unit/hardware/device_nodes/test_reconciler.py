"""Nodes and links on the host, in a ``/dev`` in memory; what has to happen at a node's path."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError, DeviceNodeError
from dra_driver.hardware.device_nodes.folder import Ensured, Found, NodeParams, Seen, present_node
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers
from dra_driver.hardware.device_nodes.reconciler import KEEP_S, TOOLS_PAUSE_S, DeviceNodeReconciler, ProblemKind
from dra_driver.hardware.device_nodes.tools import DriverTools, Outcome
from tests.fakes.dev_folder import MemoryDev
from tests.harness.raising import fails

MAJORS = Majors(nvidia=195, modeset=None, uvm=510, caps=237)
CONTROL = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)}


@dataclass(frozen=True)
class Node:
    path: str
    major: int | None
    minor: int | None


GPU0 = Node("/dev/nvidia0", 195, 0)
CAP = Node("/dev/nvidia-caps/nvidia-cap12", 237, 12)


class Tools(DriverTools):
    """The driver's tools: they make what they are asked for in the same ``/dev``, unless they fail."""

    def __init__(self, dev: MemoryDev, *, worked: bool = True, shared: bool = True) -> None:
        self.dev, self.worked, self.shared = dev, worked, shared
        self.calls: list[str] = []

    def shares(self, dev: str) -> bool:
        return self.shared

    def make_uvm(self) -> Outcome | None:
        self.calls.append("uvm")
        return self._done({"/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)})

    def make(self, minors: Sequence[int], access_files: Sequence[str], *, modeset: bool) -> Outcome | None:
        self.calls.append(f"{list(minors)} {[path.rpartition('/proc')[2] for path in access_files]} {modeset}")
        return self._done({f"/dev/nvidia{'ctl' if minor == 255 else minor}": (195, minor) for minor in minors})

    def _done(self, nodes: dict[str, tuple[int, int]]) -> Outcome:
        if self.worked:
            for path, numbers in nodes.items():
                self.dev.add(path, *numbers)
        return Outcome(worked=self.worked, said="nvidia-modprobe did not end within 5 s and was killed")


class Host:
    """A node: its ``/dev``, its ``/proc/driver`` and a clock."""

    def __init__(self, proc: Path) -> None:
        self.dev = MemoryDev()
        self.proc = proc
        self.majors: Majors | None = MAJORS
        self.now = 0.0
        self.tools: Tools | None = None
        (proc / "nvidia").mkdir()

    def keeper(self) -> DeviceNodeReconciler:
        return DeviceNodeReconciler(
            self.dev, lambda: self.majors, proc_driver=str(self.proc), tools=self.tools, clock=lambda: self.now
        )

    def params(self, text: str) -> None:
        (self.proc / "nvidia/params").write_text(text)

    def capability(self, minor: int, mode: int = 0o444) -> Path:
        access = self.proc / "nvidia/capabilities/gpu0/mig/gi1/access"
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
        (self.proc / "nvidia-caps").mkdir(exist_ok=True)
        (self.proc / "nvidia-caps/mig-minors").write_text(f"config 1\ngpu0/gi1/access {minor}\n")
        return access

    def numbers(self) -> dict[str, tuple[int, int]]:
        found = {path: seen.numbers for path, seen in self.dev.nodes.items()}
        return {path: (numbers.major, numbers.minor) for path, numbers in found.items() if numbers}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def kinds(keeper: DeviceNodeReconciler) -> set[ProblemKind]:
    return {problem.kind for problem in keeper.problems}


def test_a_claims_nodes_and_those_of_every_container_are_made_and_linked(host: Host) -> None:
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert host.numbers() == CONTROL | {"/dev/nvidia0": (195, 0)}
    assert host.dev.links == {
        "/dev/char/195:0": "../nvidia0",
        "/dev/char/195:255": "../nvidiactl",
        "/dev/char/510:0": "../nvidia-uvm",
        "/dev/char/510:1": "../nvidia-uvm-tools",
    }
    assert keeper.problems == ()


def test_owner_and_mode_are_the_modules(host: Host) -> None:
    host.params("ModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\n")
    keeper = host.keeper()
    keeper.ensure([GPU0])
    made, uvm = host.dev.nodes["/dev/nvidia0"], host.dev.nodes["/dev/nvidia-uvm"]
    assert (made.uid, made.gid, made.mode) == (7, 44, 0o660)
    assert (uvm.uid, uvm.gid, uvm.mode) == (0, 0, 0o666)
    (first, *_) = keeper.problems
    assert (first.kind, first.path) == (ProblemKind.PERMISSION, "/dev/nvidia0")
    assert "hostUsers: false" in first.text


def test_a_capability_has_the_mode_of_its_access_file(host: Host) -> None:
    host.capability(12, mode=0o440)
    host.keeper().ensure([CAP])
    assert host.dev.nodes[CAP.path].mode == 0o440
    assert host.dev.links["/dev/char/237:12"] == "../nvidia-caps/nvidia-cap12"
    assert "/dev/nvidia-caps" in host.dev.folders


def test_without_capability_files_the_modules_default_applies(host: Host) -> None:
    host.keeper().ensure([CAP])
    assert host.dev.nodes[CAP.path].mode == 0o444


def test_a_capability_that_vanished_between_is_a_lost_device(host: Host) -> None:
    host.capability(12).unlink()
    with fails(DeviceLostError, "CapabilityVanished", match="nvidia-cap12"):
        host.keeper().ensure([CAP])
    assert CAP.path not in host.dev.nodes


def test_nodes_that_are_right_cost_one_look_each_and_a_deleted_one_is_made_again(host: Host) -> None:
    keeper = host.keeper()
    keeper.ensure([GPU0])
    host.dev.stamps.clear()
    host.dev.looks.clear()
    keeper.ensure([GPU0])
    assert sorted(host.dev.stamps) == sorted([*CONTROL, "/dev/nvidia-modeset", "/dev/nvidia0"])
    assert host.dev.looks == []
    del host.dev.nodes["/dev/nvidia0"]
    keeper.ensure([GPU0])
    assert "/dev/nvidia0" in host.dev.nodes


def test_stale_nodes_of_a_module_that_was_loaded_again_are_replaced(host: Host) -> None:
    keeper = host.keeper()
    keeper.ensure([])
    host.majors = Majors(nvidia=195, uvm=509)
    keeper.ensure([])
    assert host.numbers()["/dev/nvidia-uvm"] == (509, 0)
    assert host.dev.links["/dev/char/509:0"] == "../nvidia-uvm"


@pytest.mark.parametrize(
    ("link", "kept"),
    [("/run/nvidia/driver/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"), ("../nvidia7", "../nvidia0")],
)
def test_links_and_nodes_of_others_are_left_alone(host: Host, link: str, kept: str) -> None:
    """The GPU operator's links, and nodes that are no NVIDIA's. A link to another node is replaced."""
    host.dev.links["/dev/char/195:0"] = link
    keeper = host.keeper()
    keeper.ensure([GPU0, Node("/dev/dri/card0", 226, 0), Node("/dev/nvidia-nvswitch0", 500, 0)])
    assert host.dev.links["/dev/char/195:0"] == kept
    assert set(host.numbers()) == {*CONTROL, "/dev/nvidia0"}


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_foreign_file_at_a_nodes_path_refuses_the_claim(host: Host, what: str) -> None:
    if what == "link":
        host.dev.links["/dev/nvidia0"] = "/dev/sda"
    else:
        host.dev.files.add("/dev/nvidia0")
    keeper = host.keeper()
    with fails(DeviceNodeError, match="/dev/nvidia0 .*195:0"):
        keeper.ensure([GPU0])
    assert kinds(keeper) == {ProblemKind.NODE}
    host.dev.links.clear()
    host.dev.files.clear()
    keeper.ensure([GPU0])
    assert keeper.problems == ()


def test_a_link_in_place_of_the_capability_folder_is_not_followed(host: Host) -> None:
    host.dev.links["/dev/nvidia-caps"] = "/etc"
    with fails(DeviceNodeError, match="/dev/nvidia-caps"):
        host.keeper().ensure([CAP])
    assert CAP.path not in host.dev.made


@pytest.mark.parametrize("forbidden", ["ModifyDeviceFiles: 0\n", "ModifyDeviceFiles: maybe\n"])
def test_a_stale_node_that_must_not_be_replaced_refuses_the_claim(host: Host, forbidden: str) -> None:
    host.params(forbidden)
    host.dev.add("/dev/nvidia0", 194, 0)
    with fails(DeviceNodeError, match="194:0.*ModifyDeviceFiles"):
        host.keeper().ensure([GPU0])
    assert host.numbers()["/dev/nvidia0"] == (194, 0)


def test_a_missing_node_that_must_not_be_made_is_a_warning(host: Host) -> None:
    host.params("ModifyDeviceFiles: 0\n")
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert "/dev/nvidia0" not in host.dev.nodes
    assert {(problem.kind, problem.path) for problem in keeper.problems} == {
        (ProblemKind.NODE, "/dev/nvidia0"),
        (ProblemKind.NODE, "/dev/nvidiactl"),
    }


def test_a_read_only_dev_is_a_warning_until_it_can_be_written(host: Host) -> None:
    keeper = host.keeper()
    host.dev.fail = errno.EROFS
    keeper.ensure([GPU0])
    assert {problem.path for problem in keeper.problems} == {*CONTROL, "/dev/nvidia0"}
    assert "cannot be made: Read-only file system" in keeper.problems[0].text
    host.now += KEEP_S
    assert keeper.problems == (), "those of old claims expire"
    keeper.ensure([GPU0])
    assert keeper.problems
    host.dev.fail = None
    keeper.ensure([GPU0])
    assert keeper.problems == ()


def test_a_stale_node_on_a_read_only_dev_refuses_the_claim(host: Host) -> None:
    host.dev.fail = errno.EROFS
    host.dev.add("/dev/nvidia0", 194, 0)
    with fails(DeviceNodeError, match="194:0.*Read-only"):
        host.keeper().ensure([GPU0])


def test_a_link_that_cannot_be_made_is_a_warning(host: Host) -> None:
    """Where systemd is old, a daemon-reload then takes the GPU from running containers."""
    host.dev.fail_links = errno.EACCES
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert kinds(keeper) == {ProblemKind.LINK}
    assert "systemctl daemon-reload" in keeper.problems[0].text


def test_a_file_in_place_of_a_link_is_left_alone(host: Host) -> None:
    host.dev.files.add("/dev/char/195:0")
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert [problem.path for problem in keeper.problems] == ["/dev/nvidia0"]
    assert "/dev/char/195:0" not in host.dev.links


def test_a_check_before_any_claim_makes_nodes_and_raises_nothing(host: Host) -> None:
    host.dev.files.add("/dev/nvidia1")
    keeper = host.keeper()
    keeper.check([0, 1])
    assert set(host.numbers()) == {*CONTROL, "/dev/nvidia0"}
    assert [problem.path for problem in keeper.problems] == ["/dev/nvidia1"]


@pytest.mark.parametrize("majors", [Majors(), None])
def test_nodes_of_modules_that_the_kernel_does_not_list_are_left_alone(host: Host, majors: Majors | None) -> None:
    """Or before its list was read. NVIDIA's mock has nodes and no module: the machine of a test must not get them."""
    host.majors = majors
    host.keeper().ensure([GPU0, CAP])
    assert host.numbers() == {}


def test_the_drivers_tool_makes_the_nodes_where_it_can(host: Host) -> None:
    """In one run for everything but nvidia-uvm."""
    host.tools = Tools(host.dev)
    host.capability(12)
    host.keeper().ensure([GPU0, CAP])
    access = f"{host.proc}/nvidia/capabilities/gpu0/mig/gi1/access"
    assert host.tools.calls == ["uvm", f"[255, 0] ['{access}'] False"]
    assert host.dev.made.count("/dev/nvidia0") == 0
    assert CAP.path in host.dev.made, "what the tool left undone is done afterwards"


def test_a_tool_that_failed_is_not_asked_again_for_a_minute(host: Host) -> None:
    host.tools = Tools(host.dev, worked=False)
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert "/dev/nvidia0" in host.dev.nodes
    asked = len(host.tools.calls)
    keeper.ensure([Node("/dev/nvidia1", 195, 1)])
    assert len(host.tools.calls) == asked
    host.now += TOOLS_PAUSE_S
    keeper.ensure([Node("/dev/nvidia2", 195, 2)])
    assert len(host.tools.calls) > asked


@pytest.mark.parametrize(("shared", "allowed"), [(False, True), (True, False)])
def test_a_tool_that_must_not_run_is_not_asked(host: Host, shared: bool, allowed: bool) -> None:
    """It makes nodes in the /dev of a driver container, or loads the driver that was just unloaded for a new one."""
    tools = Tools(host.dev, shared=shared)
    DeviceNodeReconciler(host.dev, lambda: host.majors, tools=tools, may_use_tools=lambda: allowed).ensure([GPU0])
    assert tools.calls == []
    assert "/dev/nvidia0" in host.dev.nodes


def test_a_node_that_appears_meanwhile_is_used(host: Host) -> None:
    host.dev.before_change = lambda path: host.dev.add("/dev/nvidia0", 195, 0)
    keeper = host.keeper()
    keeper.ensure([GPU0])
    assert host.dev.nodes["/dev/nvidia0"].numbers == NodeNumbers(major=195, minor=0)
    assert keeper.problems == ()


WANTED, OTHER = NodeNumbers(major=510, minor=0), NodeNumbers(major=509, minor=0)
FREE, FORBIDDEN, WRONG = NodeParams(), NodeParams(modify=False), NodeParams(modify=False, problem="has nonsense")
MISSING, LINK, FILE = (Seen(found=found) for found in (Found.MISSING, Found.LINK, Found.OTHER))
RIGHT, STALE = (Seen(found=Found.DEVICE, numbers=numbers, mode=0o600) for numbers in (WANTED, OTHER))
BY_OPTION = "the NVIDIA module was loaded with NVreg_ModifyDeviceFiles=0"


@pytest.mark.parametrize(
    ("seen", "params", "behind", "present"),
    [
        (RIGHT, FREE, None, Ensured(mode=0o600)),  # an administrator may have restricted it
        (RIGHT, FORBIDDEN, None, Ensured(mode=0o600)),
        (LINK, FREE, WANTED, Ensured(mode=FREE.mode)),
        (MISSING, FREE, None, None),
        (STALE, FREE, None, None),  # the major of nvidia-uvm changes when the module is loaded again
        (MISSING, FORBIDDEN, None, Ensured(missing=f"must not be made: {BY_OPTION}")),
        (
            STALE,
            FORBIDDEN,
            None,
            Ensured(refusal=f"it has the device numbers 509:0 and must not be replaced: {BY_OPTION}"),
        ),
        (MISSING, WRONG, None, Ensured(missing="must not be made: has nonsense")),
        (LINK, FREE, OTHER, Ensured(refusal="it is a symbolic link")),
        (FILE, FREE, OTHER, Ensured(refusal="it is a file of another kind")),
    ],
)
def test_what_is_at_a_nodes_path_decides(
    seen: Seen, params: NodeParams, behind: NodeNumbers | None, present: Ensured | None
) -> None:
    assert present_node(WANTED, seen, params, behind) == present
