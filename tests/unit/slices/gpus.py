"""GPUs for the tests of this room."""

from typing import Any

from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import GpuUuid


def gpu(minor: int = 0, **changes: Any) -> Gpu:
    """An H100 as NVML describes it."""
    values: dict[str, Any] = {
        "uuid": GpuUuid(f"GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cd{minor:03d}"),
        "minor": minor,
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": (9, 0),
        "memory_bytes": 81559 * 2**20,
        "pci_bus_id": f"0000:{minor + 0x65:02x}:00.0",
        "pcie_root": "pci0000:64",
        "numa_node": 0,
        "addressing_mode": "None",
        "mig_capable": True,
    }
    return Gpu(**{**values, **changes})


def snapshot(*gpus: Gpu) -> Snapshot:
    return Snapshot(driver_version="580.65.06", cuda_driver_version=(13, 0), gpus=gpus)


def node_of(count: int) -> Snapshot:
    return snapshot(*(gpu(minor) for minor in range(count)))
