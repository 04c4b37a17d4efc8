"""Names and numbers of NVIDIA's device nodes, from ``/proc/devices`` and from nodes in ``/dev``.

Sources: Linux ``fs/char_dev.c`` (the "Character devices" block); NVIDIA's kernel modules register 195 as ``nvidia``
or, before series 550, ``nvidia-frontend``, and take dynamic majors for ``nvidia-uvm`` and ``nvidia-caps``, which
therefore change when a module is loaded again; ``nv.h`` for the fixed minors 255 (nvidiactl) and 254 (nvidia-modeset);
NVIDIA/nvidia-modprobe a9556df9, ``modprobe-utils/nvidia-modprobe-utils.h`` and ``pci-enum.h``, for the names; NVIDIA's
MIG User Guide, "Device Nodes and Capabilities", for ``nvidia-caps/nvidia-cap<N>``.
"""

import functools
import os
import re
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DriverUnavailableError

CONTROL_MINOR = 255
MODESET_MINOR = 254
UVM_MINOR = 0
UVM_TOOLS_MINOR = 1

_LINE = re.compile(r"\s*(\d{1,10})\s+(\S+)")


def registered_names(text: str) -> dict[int, str]:
    """Names of drivers by major of their character devices, in the text of ``/proc/devices``; the first of several."""
    characters = text.partition("Character devices:")[2].partition("Block devices:")[0]
    found: dict[int, str] = {}
    for line in characters.splitlines():
        if match := _LINE.fullmatch(line.rstrip()):
            found.setdefault(int(match[1]), match[2])
    return found


class Majors(Struct, frozen=True, kw_only=True):
    """Majors of NVIDIA's character devices; None for a module that is not loaded.

    ``modeset`` is 195 as well, and listed by recent modules only; with older ones its node in ``/dev`` has the number.
    """

    nvidia: int | None = None
    modeset: int | None = None
    uvm: int | None = None
    caps: int | None = None

    @classmethod
    def read(cls, proc_devices: Path | str = "/proc/devices") -> "Majors":
        """Majors in a ``/proc/devices``. Raises `DriverUnavailableError` when the file cannot be read."""
        try:
            data = _content(proc_devices)
        except OSError as error:
            raise DriverUnavailableError(
                f"cannot read the kernel's device numbers from {proc_devices}: {error.strerror}; "
                "the node process needs /proc of the node (or ALT_PROC_DEVICES_PATH for simulated hardware)"
            ) from error
        return _parsed(data)

    @classmethod
    def parse(cls, text: str) -> "Majors":
        """Majors in the text of ``/proc/devices``; lines of another form are skipped."""
        characters = text.partition("Character devices:")[2].partition("Block devices:")[0]
        found: dict[str, int] = {}
        for line in characters.splitlines():
            if match := _LINE.fullmatch(line.rstrip()):
                found.setdefault(match[2], int(match[1]))
        return cls(
            nvidia=found.get("nvidia", found.get("nvidia-frontend")),
            modeset=found.get("nvidia-modeset"),
            uvm=found.get("nvidia-uvm"),
            caps=found.get("nvidia-caps"),
        )


def _content(path: Path | str) -> bytes:
    """At most 64 KiB of a file. Without a file object, which would take twice the time: every prepare calls it."""
    descriptor, data = os.open(path, os.O_RDONLY | os.O_CLOEXEC), b""
    try:
        while len(data) < 65536 and (more := os.read(descriptor, 65536)):
            data += more
    finally:
        os.close(descriptor)
    return data


@functools.lru_cache(maxsize=2)
def _parsed(data: bytes) -> Majors:
    return Majors.parse(data.decode("ascii", "replace"))


class NodeNumbers(Struct, frozen=True, kw_only=True):
    major: int
    minor: int


def node_numbers(path: str) -> NodeNumbers | None:
    """Numbers of the character device at ``path``; None for anything else, a symbolic link included: to a runtime it is
    no device node. An unreadable folder counts as missing."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return NodeNumbers(major=os.major(status.st_rdev), minor=os.minor(status.st_rdev))


CONTROL: Final = "/dev/nvidiactl"
UVM: Final = "/dev/nvidia-uvm"
UVM_TOOLS: Final = "/dev/nvidia-uvm-tools"
MODESET: Final = "/dev/nvidia-modeset"
CAPABILITIES: Final = "/dev/nvidia-caps"

CONTROL_NODES: Final = (CONTROL, UVM, UVM_TOOLS, MODESET)
"""Nodes that every program with a GPU uses; the last one only where its module is loaded."""

_GPU: Final = re.compile(r"/dev/nvidia([0-9]{1,3})")
_CAPABILITY_NODE: Final = re.compile(rf"{CAPABILITIES}/nvidia-cap([0-9]{{1,7}})")


class NodeKind(StrEnum):
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
    return NodeKind.CAPABILITY if _CAPABILITY_NODE.fullmatch(path) else None


def expected_numbers(path: str, majors: Majors) -> NodeNumbers | None:
    """The kernel's numbers for the node; None for another path, and while its module is not loaded."""
    if path in _MINORS:
        major, minor = _major(_FIXED[path], majors), _MINORS[path]
    elif match := _GPU.fullmatch(path):
        major, minor = majors.nvidia, int(match[1])
    elif match := _CAPABILITY_NODE.fullmatch(path):
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
    return f"/dev/char/{numbers.major}:{numbers.minor}"


def char_target(path: str) -> str:
    """What that link holds: the node's path from ``/dev/char``, as nvidia-modprobe writes it."""
    return "../" + path.removeprefix("/dev/")
