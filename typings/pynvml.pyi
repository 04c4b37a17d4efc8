"""Types of the part of pynvml (nvidia-ml-py) that dra_driver/hardware/gpu/nvml/ call. The package itself has none.

Handles are opaque: ctypes pointers that are unhashable and compare by identity.
"""

# ruff: noqa: N801, N802, N803, N815, N816 - these are NVML's names

from collections.abc import MutableMapping, Sequence
from ctypes import CDLL, Array, Structure, _Pointer, c_ubyte
from typing import Any, overload

class _Opaque(Structure): ...

# At run time these are classes of ctypes pointers; type checkers know no way to say so of an opaque target.
class c_nvmlDevice_t(_Pointer[_Opaque]): ...
class c_nvmlGpuInstance_t(_Pointer[_Opaque]): ...
class c_nvmlComputeInstance_t(_Pointer[_Opaque]): ...
class c_nvmlEventSet_t(_Pointer[_Opaque]): ...

class c_nvmlGpuFabricInfo_v2_t(Structure):
    clusterUuid: Array[c_ubyte]
    cliqueId: int
    state: int
    status: int
    healthMask: int

class c_nvmlGpuFabricInfo_v3_t(Structure):
    clusterUuid: Array[c_ubyte]
    cliqueId: int
    state: int
    status: int
    healthMask: int

class c_nvmlConfComputeSystemState_t(Structure):
    environment: int
    ccFeature: int
    devToolsMode: int

class c_nvmlGpuInstancePlacement_t(Structure):
    start: int
    size: int
    def __init__(self, start: int = ..., size: int = ...) -> None: ...

class c_nvmlGpuInstanceProfileInfo_t(Structure):
    id: int
    sliceCount: int
    instanceCount: int
    multiprocessorCount: int
    copyEngineCount: int
    decoderCount: int
    encoderCount: int
    jpegCount: int
    ofaCount: int
    memorySizeMB: int

class c_nvmlGpuInstanceProfileInfo_v2_t(c_nvmlGpuInstanceProfileInfo_t):  # without subclassing at run time
    name: str | bytes

class c_nvmlGpuInstanceInfo_t(Structure):
    id: int
    profileId: int
    placement: c_nvmlGpuInstancePlacement_t

class c_nvmlComputeInstanceProfileInfo_t(Structure):
    id: int
    sliceCount: int
    multiprocessorCount: int

class c_nvmlComputeInstanceProfileInfo_v2_t(c_nvmlComputeInstanceProfileInfo_t):  # without subclassing at run time
    name: str | bytes

class c_nvmlComputeInstanceInfo_t(Structure):
    device: c_nvmlDevice_t
    id: int
    profileId: int

class c_nvmlDeviceAttributes(Structure):
    multiprocessorCount: int
    sharedCopyEngineCount: int
    sharedDecoderCount: int
    sharedEncoderCount: int
    sharedJpegCount: int
    sharedOfaCount: int
    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int

class c_nvmlValue_t:
    uiVal: int

class c_nvmlFieldValue_t(Structure):
    fieldId: int
    nvmlReturn: int
    value: c_nvmlValue_t

class c_nvmlEventData_t(Structure):
    device: c_nvmlDevice_t
    eventType: int
    eventData: int
    gpuInstanceId: int
    computeInstanceId: int

class nvmlPciInfo_t:
    busId: str | bytes  # pynvml decodes char arrays on attribute access, older releases do not
    busIdLegacy: str | bytes
    pciDeviceId: int
    pciSubSystemId: int

class c_nvmlMemory_t:
    total: int
    free: int
    used: int

class c_nvmlMemory_v2_t:
    total: int
    reserved: int
    free: int
    used: int

nvmlMemory_v2: int

class NVMLError(Exception):
    value: int
    def __init__(self, value: int) -> None: ...

class NVMLLibraryMismatchError(Exception): ...

nvmlLib: CDLL | None
_nvmlGetFunctionPointer_cache: MutableMapping[str, object]

NVML_INIT_FLAG_NO_GPUS: int
NVML_DEVICE_MIG_ENABLE: int

NVML_GPU_VIRTUALIZATION_MODE_VGPU: int
NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED: int
nvmlEventMigConfigChange: int
nvmlEventTypeXidCriticalError: int
nvmlEventTypeDoubleBitEccError: int
NVML_NVLINK_STATE_INACTIVE: int
NVML_CC_SYSTEM_FEATURE_ENABLED: int
NVML_CC_SYSTEM_DEVTOOLS_MODE_ON: int
NVML_NVLINK_DEVICE_TYPE_GPU: int
NVML_NVLINK_DEVICE_TYPE_SWITCH: int

NVML_ERROR_UNINITIALIZED: int
NVML_ERROR_INVALID_ARGUMENT: int
NVML_ERROR_NOT_FOUND: int
NVML_ERROR_TIMEOUT: int
NVML_ERROR_IN_USE: int
NVML_GPU_FABRIC_STATE_NOT_STARTED: int
NVML_GPU_FABRIC_STATE_IN_PROGRESS: int
NVML_GPU_FABRIC_STATE_COMPLETED: int
NVML_ERROR_INSUFFICIENT_RESOURCES: int
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
def nvmlSystemGetNVMLVersion() -> str: ...
def nvmlSystemGetCudaDriverVersion_v2() -> int: ...
def nvmlSystemGetConfComputeState() -> c_nvmlConfComputeSystemState_t: ...
def nvmlDeviceGetCount() -> int: ...
def nvmlDeviceGetHandleByIndex(index: int) -> c_nvmlDevice_t: ...
def nvmlDeviceGetUUID(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetAttributes_v2(device: c_nvmlDevice_t) -> c_nvmlDeviceAttributes: ...
def nvmlDeviceGetMinorNumber(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetGpuFabricInfoV(device: c_nvmlDevice_t, gpuFabricInfo: Any) -> int: ...
def nvmlDeviceGetName(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetBrand(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetArchitecture(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetCudaComputeCapability(handle: c_nvmlDevice_t) -> tuple[int, int]: ...
@overload
def nvmlDeviceGetMemoryInfo(handle: c_nvmlDevice_t) -> c_nvmlMemory_t: ...
@overload
def nvmlDeviceGetMemoryInfo(handle: c_nvmlDevice_t, version: int) -> c_nvmlMemory_v2_t: ...
def nvmlDeviceGetPciInfo(handle: c_nvmlDevice_t) -> nvmlPciInfo_t: ...
def nvmlDeviceGetAddressingMode(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetMigMode(device: c_nvmlDevice_t) -> list[int]: ...
def nvmlDeviceSetMigMode(device: c_nvmlDevice_t, mode: int) -> int: ...
def nvmlDeviceGetVirtualizationMode(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetFieldValues(handle: c_nvmlDevice_t, fieldIds: Sequence[int]) -> Array[c_nvmlFieldValue_t]: ...
def nvmlDeviceGetRemappedRows(device: c_nvmlDevice_t) -> tuple[int, int, int, int]: ...
def nvmlDeviceGetRetiredPagesPendingStatus(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetNvLinkState(device: c_nvmlDevice_t, link: int) -> int: ...
def nvmlDeviceGetNvLinkRemoteDeviceType(handle: c_nvmlDevice_t, link: int) -> int: ...
def nvmlDeviceGetNvLinkRemotePciInfo(device: c_nvmlDevice_t, link: int) -> nvmlPciInfo_t: ...
def nvmlDeviceGetComputeMode(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceSetComputeMode(handle: c_nvmlDevice_t, mode: int) -> None: ...
def nvmlDeviceGetGpuInstanceProfileInfo(
    device: c_nvmlDevice_t, profile: int, version: int = 2
) -> c_nvmlGpuInstanceProfileInfo_t | c_nvmlGpuInstanceProfileInfo_v2_t: ...
def nvmlDeviceGetGpuInstancePossiblePlacements(
    device: c_nvmlDevice_t, profileId: int, placementsRef: Any, countRef: Any
) -> int: ...
def nvmlDeviceCreateGpuInstanceWithPlacement(
    device: c_nvmlDevice_t, profileId: int, placement: Any
) -> c_nvmlGpuInstance_t: ...
def nvmlDeviceGetGpuInstances(device: c_nvmlDevice_t, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int: ...
def nvmlDeviceGetGpuInstanceById(device: c_nvmlDevice_t, gpuInstanceId: int) -> c_nvmlGpuInstance_t: ...
def nvmlGpuInstanceGetInfo(gpuInstance: c_nvmlGpuInstance_t) -> c_nvmlGpuInstanceInfo_t: ...
def nvmlGpuInstanceDestroy(gpuInstance: c_nvmlGpuInstance_t) -> int: ...
def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    device: c_nvmlGpuInstance_t, profile: int, engProfile: int, version: int = 2
) -> c_nvmlComputeInstanceProfileInfo_t | c_nvmlComputeInstanceProfileInfo_v2_t: ...
def nvmlGpuInstanceGetComputeInstances(
    gpuInstance: c_nvmlGpuInstance_t, profileId: int, computeInstancesRef: Any, countRef: Any
) -> int: ...
def nvmlGpuInstanceGetComputeInstanceById(
    gpuInstance: c_nvmlGpuInstance_t, computeInstanceId: int
) -> c_nvmlComputeInstance_t: ...
def nvmlGpuInstanceCreateComputeInstance(
    gpuInstance: c_nvmlGpuInstance_t, profileId: int
) -> c_nvmlComputeInstance_t: ...
def nvmlComputeInstanceGetInfo(computeInstance: c_nvmlComputeInstance_t) -> c_nvmlComputeInstanceInfo_t: ...
def nvmlComputeInstanceDestroy(computeInstance: c_nvmlComputeInstance_t) -> int: ...
def nvmlEventSetCreate() -> c_nvmlEventSet_t: ...
def nvmlDeviceGetSupportedEventTypes(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceRegisterEvents(handle: c_nvmlDevice_t, eventTypes: int, eventSet: c_nvmlEventSet_t) -> None: ...
def nvmlEventSetWait_v2(eventSet: c_nvmlEventSet_t, timeoutms: int) -> c_nvmlEventData_t: ...
def nvmlEventSetFree(eventSet: c_nvmlEventSet_t) -> None: ...

NVML_SUCCESS: int
NVML_CLOCK_SM: int
NVML_CLOCK_MEM: int
NVML_TEMPERATURE_GPU: int
NVML_GPM_METRICS_GET_VERSION: int

class c_nvmlUtilization_t(Structure):
    gpu: int
    memory: int

class c_nvmlGpmSample_t(_Pointer[_Opaque]): ...

class c_nvmlGpmSupport_t(Structure):
    isSupportedDevice: int

class c_nvmlGpmMetric_t(Structure):
    metricId: int
    nvmlReturn: int
    value: float

class c_nvmlGpmMetricsGet_t(Structure):
    version: int
    numMetrics: int
    sample1: c_nvmlGpmSample_t
    sample2: c_nvmlGpmSample_t
    metrics: Array[c_nvmlGpmMetric_t]

def nvmlDeviceGetGpuInstanceId(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetMaxMigDeviceCount(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetMigDeviceHandleByIndex(device: c_nvmlDevice_t, index: int) -> c_nvmlDevice_t: ...
def nvmlDeviceGetUtilizationRates(handle: c_nvmlDevice_t) -> c_nvmlUtilization_t: ...
def nvmlGpmMetricsGet(metricsGet: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t: ...
def nvmlGpmMigSampleGet(
    device: c_nvmlDevice_t, gpuInstanceId: int, gpmSample: c_nvmlGpmSample_t
) -> c_nvmlGpmSample_t: ...
def nvmlGpmQueryDeviceSupport(device: c_nvmlDevice_t) -> c_nvmlGpmSupport_t: ...
def nvmlGpmSampleAlloc() -> c_nvmlGpmSample_t: ...
def nvmlGpmSampleFree(gpmSample: c_nvmlGpmSample_t) -> None: ...
