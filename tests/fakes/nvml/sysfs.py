"""The part of /sys that NVML's backend reads: where GPUs hang, and which are bound to the driver."""

import os
import time
from pathlib import Path

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu


def write_sysfs(root: Path, node: NodeSpec | Snapshot) -> Path:
    """A ``/sys`` below ``root`` in which every GPU of ``node`` hangs where the node says, and no other GPU is bound to
    the driver; returns ``root``."""
    links, bound = root / "bus/pci/devices", root / "bus/pci/drivers/nvidia"
    links.mkdir(parents=True, exist_ok=True)
    bound.mkdir(parents=True, exist_ok=True)
    (bound / "new_id").touch()
    gpus = [item.gpu if isinstance(item, SimulatedGpu) else item for item in node.gpus]
    for gpu in gpus:
        if gpu.pci_bus_id is None:
            continue
        above = f"devices/{gpu.pcie_root}/0000:00:01.0" if gpu.pcie_root else "devices/platform"
        device = root / above / gpu.pci_bus_id
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
        link = links / gpu.pci_bus_id
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(device, links))
    addresses = {gpu.pci_bus_id for gpu in gpus if gpu.pci_bus_id is not None}
    for address in addresses:
        if not (bound / address).is_symlink():
            bind_in_sysfs(root, address)
    for link in bound.iterdir():
        if link.is_symlink() and link.name not in addresses and not link.name.startswith("."):
            unbind_in_sysfs(root, link.name)
    return root


def bind_in_sysfs(root: Path, address: str) -> None:
    """The driver has the GPU at ``address``; when it has it already, it is bound again."""
    bound = root / "bus/pci/drivers/nvidia"
    fresh = bound / f"{address}.new"  # while the old link exists, so that the inode is another one
    fresh.symlink_to(f"../../../../bus/pci/devices/{address}")
    fresh.rename(bound / address)


def unbind_in_sysfs(root: Path, address: str) -> None:
    """The driver gives the GPU up. The link is moved away, so that a later one does not get its inode."""
    link = root / "bus/pci/drivers/nvidia" / address
    link.rename(link.with_name(f".{address}.{time.monotonic_ns()}"))
