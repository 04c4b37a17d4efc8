"""PCIe root and NUMA node of a PCI device, read from sysfs.

Claims use them to choose devices that are near each other. The PCIe root is the first component below ``/sys/devices``
of the device's resolved link, the rule of the standard attribute ``resource.kubernetes.io/pcieRoot``
(k8s.io/dynamic-resource-allocation/deviceattribute).
"""

import re
from pathlib import Path

ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read(pci_bus_id: str, sysfs_root: str = "/sys") -> tuple[str | None, int | None]:
    """``(pcie_root, numa_node)`` of ``0000:65:00.0``; None where sysfs has no value. Raises nothing.

    The kernel writes -1 as the NUMA node where firmware gives none (one-socket machines, most virtual machines).
    """
    link = Path(sysfs_root, "bus/pci/devices", pci_bus_id)
    return _pcie_root(link, Path(sysfs_root)), _numa_node(link)


def _pcie_root(link: Path, sysfs: Path) -> str | None:
    try:
        below = link.resolve(strict=True).relative_to(sysfs.resolve() / "devices")
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return None
    return below.parts[0] if below.parts and ROOT.fullmatch(below.parts[0]) else None


def _numa_node(link: Path) -> int | None:
    try:
        node = int((link / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
