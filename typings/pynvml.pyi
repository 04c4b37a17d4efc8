"""Types of the part of pynvml (nvidia-ml-py) that dra_driver/gpu/nvml.py calls. The package itself has none.

Handles are opaque: ctypes pointers that are unhashable and compare by identity.
"""

# ruff: noqa: N801, N802, N815, N816 - these are NVML's names

from collections.abc import MutableMapping
from ctypes import CDLL

class c_nvmlDevice_t: ...

class nvmlPciInfo_t:
    busId: str | bytes  # pynvml decodes char arrays on attribute access, older releases do not
    busIdLegacy: str | bytes
    pciDeviceId: int
    pciSubSystemId: int

class c_nvmlMemory_t:
    total: int
    free: int
    used: int

class NVMLError(Exception):
    value: int
    def __init__(self, value: int) -> None: ...

class NVMLLibraryMismatchError(Exception): ...

nvmlLib: CDLL | None
_nvmlGetFunctionPointer_cache: MutableMapping[str, object]

NVML_INIT_FLAG_NO_GPUS: int
NVML_DEVICE_MIG_ENABLE: int

NVML_ERROR_UNINITIALIZED: int
NVML_ERROR_NOT_SUPPORTED: int
NVML_ERROR_NO_PERMISSION: int
NVML_ERROR_DRIVER_NOT_LOADED: int
NVML_ERROR_GPU_IS_LOST: int
NVML_ERROR_INSUFFICIENT_POWER: int
NVML_ERROR_RESET_REQUIRED: int
NVML_ERROR_LIBRARY_NOT_FOUND: int
NVML_ERROR_FUNCTION_NOT_FOUND: int
NVML_ERROR_LIB_RM_VERSION_MISMATCH: int
NVML_ERROR_ARGUMENT_VERSION_MISMATCH: int

NVML_BRAND_QUADRO: int
NVML_BRAND_TESLA: int
NVML_BRAND_NVS: int
NVML_BRAND_GRID: int
NVML_BRAND_GEFORCE: int
NVML_BRAND_TITAN: int
NVML_BRAND_NVIDIA_VAPPS: int
NVML_BRAND_NVIDIA_VPC: int
NVML_BRAND_NVIDIA_VCS: int
NVML_BRAND_NVIDIA_VWS: int
NVML_BRAND_NVIDIA_CLOUD_GAMING: int
NVML_BRAND_QUADRO_RTX: int
NVML_BRAND_NVIDIA_RTX: int
NVML_BRAND_NVIDIA: int
NVML_BRAND_GEFORCE_RTX: int
NVML_BRAND_TITAN_RTX: int

NVML_DEVICE_ARCH_KEPLER: int
NVML_DEVICE_ARCH_MAXWELL: int
NVML_DEVICE_ARCH_PASCAL: int
NVML_DEVICE_ARCH_VOLTA: int
NVML_DEVICE_ARCH_TURING: int
NVML_DEVICE_ARCH_AMPERE: int
NVML_DEVICE_ARCH_ADA: int
NVML_DEVICE_ARCH_HOPPER: int
NVML_DEVICE_ARCH_BLACKWELL: int

def nvmlInitWithFlags(flags: int) -> None: ...
def nvmlShutdown() -> None: ...
def nvmlSystemGetDriverVersion() -> str: ...
def nvmlSystemGetCudaDriverVersion_v2() -> int: ...
def nvmlDeviceGetCount() -> int: ...
def nvmlDeviceGetHandleByIndex(index: int) -> c_nvmlDevice_t: ...
def nvmlDeviceGetUUID(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetMinorNumber(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetName(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetBrand(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetArchitecture(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetCudaComputeCapability(handle: c_nvmlDevice_t) -> tuple[int, int]: ...
def nvmlDeviceGetMemoryInfo(handle: c_nvmlDevice_t, version: int | None = None) -> c_nvmlMemory_t: ...
def nvmlDeviceGetPciInfo(handle: c_nvmlDevice_t) -> nvmlPciInfo_t: ...
def nvmlDeviceGetAddressingMode(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetMigMode(device: c_nvmlDevice_t) -> list[int]: ...
