"""Read the properties of one GPU through NVML.

The strings for brand, architecture and addressing mode are those that NVIDIA's DRA driver publishes (go-nvlib's names),
so that device classes and CEL expressions written for it keep working.
"""

from collections.abc import Callable
from functools import partial

import pynvml

from dra_driver.core.model.gpu import NO_LINKS, Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu import topology
from dra_driver.hardware.gpu.nvml.errors import required
from dra_driver.hardware.gpu.nvml.fabric import FUNCTION as FABRIC
from dra_driver.hardware.gpu.nvml.fabric import read_fabric
from dra_driver.hardware.gpu.nvml.last_values import LastValues
from dra_driver.hardware.gpu.nvml.mig import read_instances
from dra_driver.hardware.gpu.nvml.nvlinks import links_of
from dra_driver.hardware.gpu.nvml.pci import sysfs_address
from dra_driver.hardware.gpu.nvml.profiles import MigFacts

BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "VPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "VCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "VWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    13: "Rubin",  # NVML_DEVICE_ARCH_RUBIN, by number because pynvml has it only from 13.610 on
}
ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}  # NVML_DEVICE_ADDRESSING_MODE_*


def describe_gpu(
    handle: pynvml.c_nvmlDevice_t,
    uuid: GpuUuid,
    values: LastValues,
    read_facts: Callable[[], MigFacts],
    sysfs_root: str,
    *,
    list_instances: bool = True,
    proceed: Callable[[], None] | None = None,
) -> Gpu:
    """All properties of a GPU; the caller has its turn. A property that cannot be read keeps its last value.

    Without ``list_instances``, known MIG instances are taken from the last description. ``proceed`` is called during a
    listing, and may raise to end it.

    Raises DriverUnavailableError, and DeviceLostError for a lost GPU, without a minor number or a known MIG state.
    """
    minor = required("nvmlDeviceGetMinorNumber", partial(pynvml.nvmlDeviceGetMinorNumber, handle))
    brand = values.constant("nvmlDeviceGetBrand", partial(pynvml.nvmlDeviceGetBrand, handle))
    architecture = values.constant("nvmlDeviceGetArchitecture", partial(pynvml.nvmlDeviceGetArchitecture, handle))
    addressing = values.constant("nvmlDeviceGetAddressingMode", partial(pynvml.nvmlDeviceGetAddressingMode, handle))
    pci_bus_id = values.constant("nvmlDeviceGetPciInfo_v3", lambda: sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle)))
    pcie_root, numa_node = _topology(values, pci_bus_id, sysfs_root)
    mig_mode = values.read("nvmlDeviceGetMigMode", partial(pynvml.nvmlDeviceGetMigMode, handle), needed=True)
    facts = None if mig_mode is None else read_facts()
    mig_enabled = mig_mode is not None and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    last = values.gpu if not list_instances and values.gpu is not None and values.gpu.mig_enabled else None
    return Gpu(
        uuid=uuid,
        minor=minor,
        product_name=values.constant("nvmlDeviceGetName", partial(pynvml.nvmlDeviceGetName, handle)),
        brand=None if brand is None else BRANDS.get(brand, "Unknown"),
        architecture=None if architecture is None else ARCHITECTURES.get(architecture, "Unknown"),
        cuda_compute_capability=values.constant(
            "nvmlDeviceGetCudaComputeCapability", partial(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        ),
        memory_bytes=values.read("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        reserved_bytes=_reserved(handle, values, mig_enabled),
        pci_bus_id=pci_bus_id,
        pcie_root=pcie_root,
        numa_node=numa_node,
        addressing_mode=None if addressing is None else ADDRESSING_MODES.get(addressing),
        mig_capable=facts is not None and facts.capable,
        mig_enabled=mig_enabled,
        mig_resetless=None if facts is None or not facts.capable else facts.resetless,
        mig_profiles=() if facts is None else facts.profiles,
        mig_instances=_instances(handle, facts, values, last, proceed) if facts is not None and mig_enabled else (),
        fabric=values.read(FABRIC, partial(read_fabric, handle)),
        nvlinks=links_of(handle, values) or NO_LINKS,
    )


def _topology(values: LastValues, pci_bus_id: str | None, sysfs_root: str) -> tuple[str | None, int | None]:
    """A device that is bound anew ends the session."""
    if pci_bus_id is None:
        return None, None
    return values.constant(f"topology of {pci_bus_id}", lambda: topology.read(pci_bus_id, sysfs_root)) or (None, None)


def _reserved(handle: pynvml.c_nvmlDevice_t, values: LastValues, mig_enabled: bool) -> int | None:
    """What driver and firmware keep of the memory (nvml.h, nvmlMemory_v2_t; drivers from R510 on).

    MIG instances may change it, so while MIG mode is on the value from before stays: it would change the published
    memory of a GPU with every partition.
    """
    if mig_enabled and values.gpu is not None and values.gpu.reserved_bytes is not None:
        return values.gpu.reserved_bytes

    def read() -> int:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).reserved

    return values.read("nvmlDeviceGetMemoryInfo_v2", read)


def _instances(
    handle: pynvml.c_nvmlDevice_t,
    facts: MigFacts,
    values: LastValues,
    last: Gpu | None,
    proceed: Callable[[], None] | None,
) -> tuple[MigInstance, ...]:
    """The instances of ``last``, else the existing ones. One is dropped or changed only when a second read agrees,
    because Not Supported and Not Found, which mean that it is gone, may also be the answer of a call that fails."""
    if last is not None:
        return last.mig_instances
    before = set(values.gpu.mig_instances) if values.gpu is not None else set()

    def read() -> tuple[MigInstance, ...]:
        found = read_instances(handle, facts, proceed)
        return found if before.issubset(found) else read_instances(handle, facts, proceed)

    return values.read("MIG instances", read, needed=True) or ()
