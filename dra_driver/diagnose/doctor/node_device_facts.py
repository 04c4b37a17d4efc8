"""Reads NVIDIA's device nodes in the host's ``/dev``. Changes nothing."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from dra_driver.diagnose.doctor.node_text import names, text
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.hardware.device_nodes import names as device_names
from dra_driver.hardware.device_nodes.folder import DevFolder, Found, Seen, link_end
from dra_driver.hardware.device_nodes.names import CAPABILITIES, expected_numbers
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers
from dra_driver.hardware.device_nodes.params import NodeParams, params_path, read_params

_MOST_CAPABILITIES: Final = 4096


class SeenNode(Struct, frozen=True, kw_only=True):
    """A device node that should be there, or is: what is at its path, and the numbers that the kernel gives it.

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
    """What is in the ``/dev`` that ``dev`` shows, for the GPUs with these minors."""
    known = majors or Majors()
    paths = [
        *(f"/dev/nvidia{minor}" for minor in minors),
        device_names.CONTROL,
        device_names.UVM,
        device_names.UVM_TOOLS,
    ]
    try:
        nodes = tuple(_node(dev, path, known) for path in paths)
        present = dev.look(CAPABILITIES).found is not Found.MISSING
        capabilities = tuple(_node(dev, path, known) for path in _capability_paths(view))
        problem = None
    except OSError as error:
        nodes, capabilities, present, problem = (), (), False, f"{view.dev} cannot be read: {error.strerror}"
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


def _node(dev: DevFolder, path: str, majors: Majors) -> SeenNode:
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
