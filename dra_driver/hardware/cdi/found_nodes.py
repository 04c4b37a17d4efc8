"""Find a partition's MIG capability nodes below ``/proc/driver``, and a GPU's DRM nodes in sysfs.

Source: NVIDIA's MIG User Guide, "Device Nodes and Capabilities". A program may use a compute instance when it can read
two nodes, the GPU instance's and the compute instance's. ``nvidia/capabilities/gpu<minor>/mig/gi<g>/access`` and
``.../gi<g>/ci<c>/access`` have minor and mode while the instances exist. ``nvidia-caps/mig-minors`` lists the minors of
all possible instances; it is read only where the first folder is missing, because the minor of a destroyed instance
opens the next instance with its id. ``gpu<minor>`` is N of ``/dev/nvidiaN``.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import NodeNumbers

MODE = 0o444
"""Default mode of the module's nodes: readable, which is enough to open a capability."""

_ACCESS_LIMIT = 4096  # an access file has three short lines
_MINORS_LIMIT = 4 << 20  # 32 GPUs with 135 lines of some 25 characters are 110 kB
_MINOR_LIMIT = 1 << 20  # the kernel's MINORBITS
_LINE = re.compile(r"DeviceFile(Minor|Mode):\s*(\d{1,10})")


class Capability(Struct, frozen=True, kw_only=True):
    """One node: ``nvidia-cap<minor>`` and its permission bits."""

    minor: int
    mode: int = MODE

    @property
    def path(self) -> str:
        return f"/dev/nvidia-caps/nvidia-cap{self.minor}"


def partition_capabilities(proc_driver: str, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[Capability, Capability]:
    """The nodes of a GPU instance and of one compute instance in it. Raises `DriverUnavailableError` when the module
    has no capability files, and `DeviceLostError` when these are missing."""
    capabilities = f"{proc_driver}/nvidia/capabilities"
    gi, ci = f"gi{gi_id}", f"gi{gi_id}/ci{ci_id}"
    if os.path.isdir(capabilities):  # noqa: PTH112 - as below
        folder = f"{capabilities}/gpu{gpu_minor}/mig"
        return _from_access(folder, gi, gpu_minor), _from_access(folder, ci, gpu_minor)
    path = f"{proc_driver}/nvidia-caps/mig-minors"
    minors = _minors(path)
    if not minors:
        raise DriverUnavailableError(
            f"no capability nodes for MIG on /dev/nvidia{gpu_minor}: neither {capabilities} nor {path} can be read; "
            "the node process needs the node's /proc/driver, and an NVIDIA kernel module of 450.80.02 or newer"
        )
    return _from_minors(path, minors, gpu_minor, gi), _from_minors(path, minors, gpu_minor, ci)


def _from_access(folder: str, instance: str, gpu_minor: int) -> Capability:
    path = f"{folder}/{instance}/access"
    values = {name: int(number) for name, number in _LINE.findall(_read(path, _ACCESS_LIMIT) or "")}
    minor = values.get("Minor")
    if minor is None or minor >= _MINOR_LIMIT:
        raise _lost(instance, gpu_minor, f"{path} is missing or has no DeviceFileMinor")
    return Capability(minor=minor, mode=values.get("Mode", MODE) & 0o777)


def _minors(path: str) -> dict[str, int]:
    """``gpu0/gi1/ci0/access`` -> minor; {} when the file is missing."""
    pairs = (line.split() for line in (_read(path, _MINORS_LIMIT) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal() and len(pair[1]) <= 7}


def _from_minors(path: str, minors: dict[str, int], gpu_minor: int, instance: str) -> Capability:
    minor = minors.get(f"gpu{gpu_minor}/{instance}/access", _MINOR_LIMIT)
    if minor >= _MINOR_LIMIT:
        raise _lost(instance, gpu_minor, f"{path} does not list it")
    return Capability(minor=minor)


def _lost(instance: str, gpu_minor: int, seen: str) -> DeviceLostError:
    return DeviceLostError(
        f"no capability node for MIG instance {instance} of /dev/nvidia{gpu_minor}: {seen}; another program "
        "destroyed the instance, or the GPU's minor has changed (restart the node process)"
    )


def _read(path: str, limit: int) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as in host.py, twice as fast
            return file.read(limit)
    except OSError:
        return None


_PCI_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DRM_NAME = re.compile(r"card\d{1,4}|renderD\d{1,4}")
_DEV_FILE = re.compile(r"(\d{1,10}):(\d{1,10})")


class DrmNode(Struct, frozen=True, kw_only=True):
    """One node below ``/dev/dri``: ``card1`` or ``renderD129``."""

    name: str
    numbers: NodeNumbers


def drm_nodes(pci_bus_id: str | None, sysfs_root: str = "/sys") -> tuple[DrmNode, ...]:
    """DRM nodes of the GPU at ``pci_bus_id`` (sysfs form, ``0000:65:00.0``) in order of name; () when it has none.

    Numbers come from sysfs's ``dev`` files, so ``/dev/dri`` need not be visible here.
    """
    if not pci_bus_id or not _PCI_BUS_ID.fullmatch(pci_bus_id.lower()):
        return ()
    folder = Path(sysfs_root, "bus/pci/devices", pci_bus_id.lower(), "drm")
    try:
        names = sorted(name for name in os.listdir(folder) if _DRM_NAME.fullmatch(name))  # noqa: PTH208 - names, not paths
        texts = [(name, (folder / name / "dev").read_text("ascii")) for name in names]
    except (OSError, UnicodeDecodeError):
        return ()
    matches = [(name, _DEV_FILE.fullmatch(text.strip())) for name, text in texts]
    return tuple(
        DrmNode(name=name, numbers=NodeNumbers(major=int(match[1]), minor=int(match[2])))
        for name, match in matches
        if match
    )
