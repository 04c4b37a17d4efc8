"""Find the DRM nodes of a GPU, with their device numbers, in sysfs."""

import os
import re
from pathlib import Path

from msgspec import Struct

from dra_driver.hardware.device_nodes.numbers import NodeNumbers

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
