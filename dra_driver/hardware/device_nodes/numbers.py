"""Names and numbers of NVIDIA's device nodes, from ``/proc/devices`` and from nodes in ``/dev``.

Sources: Linux ``fs/char_dev.c``; NVIDIA's modules register 195 as ``nvidia`` (``nvidia-frontend`` before series 550)
and take dynamic majors for ``nvidia-uvm`` and ``nvidia-caps``, which change when a module is loaded again;
NVIDIA/nvidia-modprobe a9556df9, ``nvidia-modprobe-utils.h`` and ``pci-enum.h``; MIG User Guide, "Device Nodes and
Capabilities".
"""

import functools
import os
import re
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.files import read_start

_LINE = re.compile(r"\s*(\d{1,10})\s+(\S+)")
_MINORS_LIMIT: Final = 4 << 20  # 32 GPUs with 135 lines of some 25 characters are 110 kB
_MINOR_LINE: Final = re.compile(r"^(gpu\d{1,4}/gi\d{1,4}(?:/ci\d{1,4})?)/access (\d{1,7})$", re.MULTILINE | re.ASCII)


def _registered(text: str) -> Iterator[tuple[int, str]]:
    """Major and name of each driver of character devices."""
    characters = text.partition("Character devices:")[2].partition("Block devices:")[0]
    for line in characters.splitlines():
        if match := _LINE.fullmatch(line.rstrip()):
            yield int(match[1]), match[2]


def registered_names(text: str) -> dict[int, str]:
    """The first driver name for each major in the text of ``/proc/devices``."""
    found: dict[int, str] = {}
    for major, name in _registered(text):
        found.setdefault(major, name)
    return found


def mig_minors(proc_driver: str) -> dict[str, int]:
    """Minors of the capability nodes of all possible instances, such as ``gpu0/gi1/ci0``; {} without a list."""
    text = read_start(f"{proc_driver}/nvidia-caps/mig-minors", _MINORS_LIMIT) or ""
    return {instance: int(minor) for instance, minor in _MINOR_LINE.findall(text)}


class Majors(Struct, frozen=True, kw_only=True):
    """NVIDIA's majors; None for a module that is not loaded. ``modeset`` is 195 too; older modules do not list it."""

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
                "the node process needs /proc of the node (or ALT_PROC_DEVICES_PATH for simulated hardware)",
                reason="DeviceNumbersUnreadable",
            ) from error
        return _parsed(data)

    @classmethod
    def parse(cls, text: str) -> "Majors":
        """Majors in the text of ``/proc/devices``; lines of another form are skipped."""
        found: dict[str, int] = {}
        for major, name in _registered(text):
            found.setdefault(name, major)
        return cls(
            nvidia=found.get("nvidia", found.get("nvidia-frontend")),
            modeset=found.get("nvidia-modeset"),
            uvm=found.get("nvidia-uvm"),
            caps=found.get("nvidia-caps"),
        )


def _content(path: Path | str) -> bytes:
    """At most 64 KiB, without a file object, which would double the time: every prepare calls it."""
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
    """Numbers of the character device at ``path``; None for anything else, also for a link, which runtimes do not
    follow."""
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
_MINORS: Final = {CONTROL: 255, UVM: 0, UVM_TOOLS: 1, MODESET: 254}  # the first and last are in nv.h


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
        of_kind = {NodeKind.UVM: majors.uvm, NodeKind.MODESET: majors.modeset}
        major, minor = of_kind.get(_FIXED[path], majors.nvidia), _MINORS[path]
    elif match := _GPU.fullmatch(path):
        major, minor = majors.nvidia, int(match[1])
    elif match := _CAPABILITY_NODE.fullmatch(path):
        major, minor = majors.caps, int(match[1])
    else:
        return None
    return None if major is None else NodeNumbers(major=major, minor=minor)


def char_link(numbers: NodeNumbers) -> str:
    return f"/dev/char/{numbers.major}:{numbers.minor}"


def char_target(path: str) -> str:
    """The target of that link: the node's path from ``/dev/char``, as nvidia-modprobe writes it."""
    return "../" + path.removeprefix("/dev/")
