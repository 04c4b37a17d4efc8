"""Read NVIDIA's device nodes in the host's ``/dev`` and the settings for their permissions. Changes nothing."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor.node_view import HostView, names, text
from dra_driver.hardware.device_nodes import numbers as device_names
from dra_driver.hardware.device_nodes.folder import (
    DevFolder,
    Found,
    NodeParams,
    Seen,
    link_end,
    params_path,
    present_node,
    read_params,
)
from dra_driver.hardware.device_nodes.numbers import CAPABILITIES, Majors, NodeNumbers, expected_numbers

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.node import LocalFacts


_MOST_CAPABILITIES: Final = 4096


class SeenNode(Struct, frozen=True, kw_only=True):
    """A device node that is expected or present: the content of its path, and the numbers that the kernel assigns.

    ``behind`` are the numbers at the end of a symbolic link; ``expected`` is None while its module is not loaded.
    """

    path: str
    seen: Seen
    expected: NodeNumbers | None = None
    behind: NodeNumbers | None = None


class DeviceNodeFacts(Struct, frozen=True, kw_only=True):
    """The nodes of GPUs, of control, and of capabilities. ``mig_minors``: the kernel module lists capabilities."""

    folder: str = "/dev"
    problem: str | None = None
    nodes: tuple[SeenNode, ...] = ()
    capabilities: tuple[SeenNode, ...] = ()
    capability_folder: bool = False
    mig_minors: bool = False
    params: NodeParams = field(default_factory=NodeParams)
    selinux: str | None = None
    cgroup_version: int | None = None


def read_devices(view: HostView, dev: DevFolder, majors: Majors | None, minors: Iterable[int]) -> DeviceNodeFacts:
    """The device nodes in the ``/dev`` that ``dev`` shows, for the GPUs with these minors."""
    known = majors or Majors()
    paths = [
        *(f"/dev/nvidia{minor}" for minor in minors),
        device_names.CONTROL,
        device_names.UVM,
        device_names.UVM_TOOLS,
    ]
    try:
        nodes = tuple(_seen_node(dev, path, known) for path in paths)
        present = dev.look(CAPABILITIES).found is not Found.MISSING
        capabilities = tuple(_seen_node(dev, path, known) for path in _capability_paths(view))
        problem = None
    except OSError as error:
        nodes, capabilities, present, problem = (), (), False, f"cannot read {view.dev}: {error.strerror}"
    return DeviceNodeFacts(
        folder=view.dev,
        problem=problem,
        nodes=nodes,
        capabilities=capabilities,
        capability_folder=present,
        mig_minors=text(f"{view.proc}/driver/nvidia-caps/mig-minors") is not None,
        params=read_params(params_path(f"{view.proc}/driver")),
        selinux=text(f"{view.sys}/fs/selinux/enforce"),
        cgroup_version=_cgroup_version(view),
    )


def _seen_node(dev: DevFolder, path: str, majors: Majors) -> SeenNode:
    seen = dev.look(path)
    behind = link_end(dev, path) if seen.found is Found.LINK else None
    return SeenNode(path=path, seen=seen, expected=expected_numbers(path, majors), behind=behind)


def _capability_paths(view: HostView) -> list[str]:
    found = names(view.dev.rstrip("/") + CAPABILITIES.removeprefix("/dev")) or []
    paths = (f"{CAPABILITIES}/{name}" for name in found[:_MOST_CAPABILITIES])
    return [path for path in paths if device_names.kind_of(path) is device_names.NodeKind.CAPABILITY]


def _cgroup_version(view: HostView) -> int | None:
    folder = f"{view.sys}/fs/cgroup"
    if os.path.exists(f"{folder}/cgroup.controllers"):  # noqa: PTH110
        return 2
    return 1 if Path(folder, "devices").is_dir() else None


_OTHERS: Final = 0o006


@check("device-nodes", Layer.DEVICE_NODES, "device nodes with the kernel's numbers")
def _nodes(facts: "LocalFacts") -> Iterator[Finding]:
    devices = facts.devices
    if facts.view.simulated:
        return
    if devices.problem:
        do = "Run it as root, or set --host-dev to the host's /dev."
        yield unknown(devices.problem, "the host's /dev", do, reason="DevUnreadable")
        return
    wanted = [node for node in devices.nodes if node.expected is not None]
    answers = [answer for node in wanted for answer in _node(node, devices.params)]
    yield from answers
    missing = [node.path for node in wanted if _is_missing(node)]
    if missing:
        yield warn(
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing in {devices.folder}",
            "the device nodes of loaded modules, which pods with hostUsers: false need on the host",
            _how_to_make(devices.params),
            reason="DeviceNodesMissing",
        )
    if wanted and not answers and not missing:
        yield ok(f"{len(wanted)} device nodes match the kernel")


def _node(node: SeenNode, params: NodeParams) -> Iterator[Finding]:
    assert node.expected is not None  # noqa: S101 - for the type checker; the caller excludes other nodes
    expected = f"a character device {node.expected.major}:{node.expected.minor}"
    if _is_missing(node):
        return
    present = present_node(node.expected, node.seen, params, node.behind)
    if present is None or present.refusal:
        numbers = node.seen.numbers
        has = f"has the numbers {numbers.major}:{numbers.minor}" if numbers else f"is a {node.seen.found}"
        do = f"Remove {node.path} on the node; nvidia-modprobe or the node process recreates it with the right numbers."
        yield fail(f"{node.path} {has}", f"{expected}, from /proc/devices", do, reason="WrongDeviceNode")
    elif node.seen.found is Found.DEVICE and node.seen.mode & _OTHERS != _OTHERS:
        restricted = "" if params.open_to_all else f", set by the kernel module (DeviceFileMode {params.mode:04o})"
        yield warn(
            f"{node.path} has the mode {node.seen.mode:04o}{restricted}",
            "mode 0666: users other than root of a pod with hostUsers: false get this mode",
            f"Run `chmod 0666 {node.path}`"
            + ("." if params.open_to_all else ", and load the module with NVreg_DeviceFileMode=0666."),
            reason="RestrictedMode",
        )


def _is_missing(node: SeenNode) -> bool:
    return node.seen.found is Found.MISSING


def _how_to_make(params: NodeParams) -> str:
    if params.modify:
        return "A running node process creates them within seconds; else run nvidia-modprobe -u -c0 on the node."
    return (
        "The kernel module was loaded with NVreg_ModifyDeviceFiles=0: create them manually, or load it without "
        "that setting."
    )


@check("capability-nodes", Layer.DEVICE_NODES, "capability nodes with the kernel's numbers")
def _capabilities(facts: "LocalFacts") -> Iterator[Finding]:
    devices, majors = facts.devices, facts.driver.majors
    if facts.view.simulated or majors is None or majors.nvidia is None:
        return
    if majors.caps is None:
        if devices.mig_minors or devices.capability_folder:
            do = "Load the kernel module again; without it no process can open a MIG partition."
            yield warn(
                "the kernel does not list nvidia-caps", "nvidia-caps in /proc/devices", do, reason="NoCapabilities"
            )
        return
    wrong = [node.path for node in devices.capabilities if node.expected not in (node.seen.numbers, node.behind)]
    if wrong:
        seen = f"{listed(wrong)} {'has' if len(wrong) == 1 else 'have'} numbers of a previously loaded driver"
        do = "Remove /dev/nvidia-caps on the node: the node process creates the nodes that a MIG partition needs."
        yield fail(seen, f"major {majors.caps}, that of nvidia-caps in /proc/devices", do, reason="OldCapabilityNodes")
    else:
        yield ok(f"nvidia-caps has major {majors.caps}, {len(devices.capabilities)} nodes")


@check("device-access", Layer.DEVICE_NODES, "the settings that restrict access to device nodes")
def _access(facts: "LocalFacts") -> Iterator[Finding]:
    selinux = {"1": "SELinux is enforcing", "0": "SELinux is permissive"}.get(facts.devices.selinux or "", "no SELinux")
    version = facts.devices.cgroup_version
    cgroup = f"cgroup version {version}" if version else "unknown cgroup version"
    yield ok(f"{selinux}; {cgroup}")
