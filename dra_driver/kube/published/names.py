"""Names and fixed values of a published device's attributes and capacities, equal to NVIDIA's DRA driver,
so that its DeviceClasses, CEL selectors and dashboards work unchanged.

Added are ``placementStart``, ``placementSize``, ``sharingStrategy``, ``confidentialCompute`` (values of the label
``nvidia.com/cc.mode``), ``nvlink*``, ``clique`` (label ``nvidia.com/gpu.clique``), ``rail`` and the capacities of a
share. A name without a domain belongs to the driver: ``type`` is ``gpu.nvidia.com/type`` to a selector.
"""

from typing import Final

TYPE: Final = "type"
TYPE_GPU: Final = "gpu"
TYPE_MIG: Final = "mig"
TYPE_MONITOR: Final = "monitor"
UUID: Final = "uuid"
PARENT_UUID: Final = "parentUUID"
PROFILE: Final = "profile"
PLACEMENT_START: Final = "placementStart"
PLACEMENT_SIZE: Final = "placementSize"
SHARING_STRATEGY: Final = "sharingStrategy"
PRODUCT_NAME: Final = "productName"
BRAND: Final = "brand"
ARCHITECTURE: Final = "architecture"
COMPUTE_CAPABILITY: Final = "cudaComputeCapability"
DRIVER_VERSION: Final = "driverVersion"
CUDA_DRIVER_VERSION: Final = "cudaDriverVersion"
ADDRESSING_MODE: Final = "addressingMode"
CONFIDENTIAL_COMPUTE: Final = "confidentialCompute"
NVLINK_ISLAND: Final = "nvlinkIsland"
NVLINK_ISLAND_SIZE: Final = "nvlinkIslandSize"
NVLINK_TYPE: Final = "nvlinkType"
CLIQUE: Final = "clique"
RAIL: Final = "rail"  # from `rails` of a GpuPolicy; not reserved, because `attributes` of older policies set it

# Attributes that several drivers publish under the same name, so that a claim can ask for a GPU and a NIC that match
# (kubernetes/dynamic-resource-allocation deviceattribute). numaNode is standard from 1.37 (KEP-6072); as a plain int
# it is an attribute like any other to every API server from 1.34 on, so it is always published.
STANDARD_DOMAIN: Final = "resource.kubernetes.io"
PCI_BUS_ID: Final = f"{STANDARD_DOMAIN}/pciBusID"
PCIE_ROOT: Final = f"{STANDARD_DOMAIN}/pcieRoot"
NUMA_NODE: Final = f"{STANDARD_DOMAIN}/numaNode"

# A policy must not give these another meaning, in whatever domain: ``gpu.nvidia.com/uuid`` is ``uuid`` to a selector.
RESERVED: Final = frozenset(
    name.rpartition("/")[2]
    for name in (
        *(TYPE, UUID, PARENT_UUID, PROFILE, PLACEMENT_START, PLACEMENT_SIZE, SHARING_STRATEGY),
        *(PRODUCT_NAME, BRAND, ARCHITECTURE, COMPUTE_CAPABILITY, DRIVER_VERSION, CUDA_DRIVER_VERSION, ADDRESSING_MODE),
        *(PCI_BUS_ID, PCIE_ROOT, NUMA_NODE, CONFIDENTIAL_COMPUTE),
        *(NVLINK_ISLAND, NVLINK_ISLAND_SIZE, NVLINK_TYPE, CLIQUE),
    )
)
"""Attribute names without their domain that this driver publishes itself."""

MEMORY: Final = "memory"
COMPUTE_PERCENT: Final = "computePercent"
SHARES: Final = "shares"
ALL_PERCENT: Final = 100  # ``computePercent`` of a whole GPU
