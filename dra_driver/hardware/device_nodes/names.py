"""The names of NVIDIA's device nodes, and which numbers the kernel gives each. Pure.

Sources: NVIDIA/nvidia-modprobe a9556df9, ``modprobe-utils/nvidia-modprobe-utils.h`` and ``pci-enum.h``; NVIDIA's MIG
User Guide, "Device Nodes and Capabilities", for ``nvidia-caps/nvidia-cap<N>``.
"""

import re
from enum import StrEnum
from typing import Final

from dra_driver.hardware.device_nodes.numbers import (
    CONTROL_MINOR,
    MODESET_MINOR,
    UVM_MINOR,
    UVM_TOOLS_MINOR,
    Majors,
    NodeNumbers,
)

CONTROL: Final = "/dev/nvidiactl"
UVM: Final = "/dev/nvidia-uvm"
UVM_TOOLS: Final = "/dev/nvidia-uvm-tools"
MODESET: Final = "/dev/nvidia-modeset"
CAPABILITIES: Final = "/dev/nvidia-caps"

CONTROL_NODES: Final = (CONTROL, UVM, UVM_TOOLS, MODESET)
"""Nodes that every program with a GPU uses; the last one only where its module is loaded."""

_GPU: Final = re.compile(r"/dev/nvidia([0-9]{1,3})")
_CAPABILITY: Final = re.compile(rf"{CAPABILITIES}/nvidia-cap([0-9]{{1,7}})")


class NodeKind(StrEnum):
    """Which module a node belongs to."""

    GPU = "gpu"
    CONTROL = "control"
    UVM = "uvm"
    MODESET = "modeset"
    CAPABILITY = "capability"


_FIXED: Final = {CONTROL: NodeKind.CONTROL, UVM: NodeKind.UVM, UVM_TOOLS: NodeKind.UVM, MODESET: NodeKind.MODESET}
_MINORS: Final = {CONTROL: CONTROL_MINOR, UVM: UVM_MINOR, UVM_TOOLS: UVM_TOOLS_MINOR, MODESET: MODESET_MINOR}


def kind_of(path: str) -> NodeKind | None:
    """The kind of the node at ``path`` (``/dev/...``); None for any other path. Only nodes with a kind are made."""
    if path in _FIXED:
        return _FIXED[path]
    if _GPU.fullmatch(path):
        return NodeKind.GPU
    return NodeKind.CAPABILITY if _CAPABILITY.fullmatch(path) else None


def expected_numbers(path: str, majors: Majors) -> NodeNumbers | None:
    """The kernel's numbers for the node; None for another path, and while its module is not loaded."""
    if path in _MINORS:
        major, minor = _major(_FIXED[path], majors), _MINORS[path]
    elif match := _GPU.fullmatch(path):
        major, minor = majors.nvidia, int(match[1])
    elif match := _CAPABILITY.fullmatch(path):
        major, minor = majors.caps, int(match[1])
    else:
        return None
    return None if major is None else NodeNumbers(major=major, minor=minor)


def _major(kind: NodeKind, majors: Majors) -> int | None:
    match kind:
        case NodeKind.UVM:
            return majors.uvm
        case NodeKind.MODESET:
            return majors.modeset
        case _:
            return majors.nvidia


def char_link(numbers: NodeNumbers) -> str:
    """Path of the node's link in ``/dev/char``."""
    return f"/dev/char/{numbers.major}:{numbers.minor}"


def char_target(path: str) -> str:
    """What that link holds: the node's path from ``/dev/char``, as nvidia-modprobe writes it."""
    return "../" + path.removeprefix("/dev/")
