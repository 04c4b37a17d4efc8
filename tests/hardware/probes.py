"""Read-only questions to NVML, each answered with a value, an error's name, and how long it took.

Nothing here changes a setting: no MIG mode, compute mode, persistence, accounting or limits. What a real GPU answers is
printed as JSON, so that the simulation can be held against it. The real ``pynvml`` must have been initialised.
"""

import ctypes
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

pynvml: Any = import_module("pynvml")  # typings/ has only the functions that the package calls


MIG_PROFILE_ENUMS = range(0x20)
NVLINKS = range(18)
# nvml.h field ids: resetless MIG, profiles while MIG is off, recovery action, row remapping, memory temperature, power.
FIELDS = (184, 199, 230, 142, 143, 144, 145, 82, 185, 186)

Answer = dict[str, Any]


def ask(call: Callable[[], Any]) -> Answer:
    """``{"value": ..., "ms": ...}`` or ``{"error": "NVMLError_NotSupported", "code": 3, "ms": ...}``."""
    begin = time.perf_counter()
    try:
        answer: Answer = {"value": plain(call())}
    except pynvml.NVMLError as error:
        answer = {"error": type(error).__name__, "code": error.value}
    except pynvml.NVMLLibraryMismatchError as error:
        answer = {"error": type(error).__name__, "code": None}
    return answer | {"ms": round((time.perf_counter() - begin) * 1000, 3)}


def plain(value: Any) -> Any:
    """Turn what pynvml returns, ctypes structures and byte strings included, into JSON."""
    if isinstance(value, ctypes.Structure):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    return value if isinstance(value, int | float | str | bool) or value is None else str(type(value).__name__)


def system() -> dict[str, Answer]:
    """What NVML says about the machine."""
    names = (
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCount",
        "nvmlSystemGetConfComputeState",
        "nvmlGetExcludedDeviceCount",
    )
    return {name: ask(getattr(pynvml, name)) for name in names}


def device(handle: Any) -> dict[str, Answer]:
    """Identity, place and state of one GPU."""
    names = (
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetVirtualizationMode",
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetC2cModeInfoV",
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetMultiGpuBoard",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlGpmQueryDeviceSupport",
    )
    answers = {name: ask(partial(getattr(pynvml, name), handle)) for name in names}
    answers["nvmlDeviceGetMemoryInfo_v2"] = ask(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    )
    answers["nvmlDeviceGetMemoryAffinity"] = ask(lambda: pynvml.nvmlDeviceGetMemoryAffinity(handle, 4, 0))
    return answers | filled(handle) | {f"nvlink {link} state": ask(_link(handle, link)) for link in NVLINKS}


def filled(handle: Any) -> dict[str, Answer]:
    """Calls that fill a structure of the caller."""

    def fill(function: Callable[[Any, Any], Any], structure: Any) -> Any:
        function(handle, ctypes.byref(structure))
        return structure

    return {
        "nvmlDeviceGetPlatformInfo": ask(
            lambda: fill(pynvml.nvmlDeviceGetPlatformInfo, pynvml.c_nvmlPlatformInfo_v2_t())
        ),
        "nvmlDeviceGetGpuFabricInfoV": ask(
            lambda: fill(pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.c_nvmlGpuFabricInfo_v3_t())
        ),
    }


def fields(handle: Any) -> dict[str, Any]:
    """Field values by id: the raw unsigned number, or the code of the field's own error."""
    begin = time.perf_counter()
    try:
        values = pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS))
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__, "code": error.value}
    answers: dict[str, Any] = {
        str(value.fieldId): value.value.uiVal if value.nvmlReturn == 0 else {"code": value.nvmlReturn}
        for value in values
    }
    return answers | {"ms": round((time.perf_counter() - begin) * 1000, 3)}


def mig(handle: Any) -> list[dict[str, Any]]:
    """Every GPU instance profile with its placements, whether or not MIG mode is on."""
    rows = []
    for enum in MIG_PROFILE_ENUMS:
        row: dict[str, Any] = {"enum": enum, "info": ask(_profile(handle, enum, 2))}
        if "error" in row["info"]:
            row["info_v1"] = ask(_profile(handle, enum, 1))
        info = row["info"].get("value") or row.get("info_v1", {}).get("value")
        if info:
            row["placements"] = ask(_placements(handle, info["id"]))
            row["remaining"] = ask(_remaining(handle, info["id"]))
        rows.append(row)
    return rows


def event_wait(handle: Any, timeout_ms: int) -> Answer:
    """How long a wait without an event takes, with the XID, ECC and MIG events that the GPU supports."""
    wanted = 0x8 | 0x2 | 0x1 | 0x100
    created: list[Any] = []

    def wait() -> int:
        created.append(pynvml.nvmlEventSetCreate())
        supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        pynvml.nvmlDeviceRegisterEvents(handle, wanted & supported, created[0])
        return int(pynvml.nvmlEventSetWait_v2(created[0], timeout_ms).eventType)

    answer = ask(wait)
    for events in created:
        pynvml.nvmlEventSetFree(events)
    return answer


def handles() -> list[Any]:
    """Raw handles of all GPUs, in the order of NVML."""
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def is_guest(every: list[Any], uuid: str) -> bool:
    """Whether the GPU is a virtual one, whose partitions are its host's."""
    handle = next(handle for handle in every if pynvml.nvmlDeviceGetUUID(handle) == uuid)
    answer = ask(lambda: pynvml.nvmlDeviceGetVirtualizationMode(handle))
    return bool(answer.get("value") == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)


def settings(handle: Any) -> dict[str, Any]:
    """Everything that this folder's tests must leave as it was."""
    names = ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEccMode")
    answers = {name: ask(partial(getattr(pynvml, name), handle)) for name in names}
    return {name: {key: value for key, value in answer.items() if key != "ms"} for name, answer in answers.items()}


def _link(handle: Any, link: int) -> Callable[[], Any]:
    return lambda: pynvml.nvmlDeviceGetNvLinkState(handle, link)


def _profile(handle: Any, enum: int, version: int) -> Callable[[], Any]:
    return lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=version)


def _remaining(handle: Any, profile_id: int) -> Callable[[], Any]:
    return lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile_id)


def _placements(handle: Any, profile_id: int) -> Callable[[], list[str]]:
    def call() -> list[str]:
        count = ctypes.c_uint(0)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
        room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
        return [f"{placement.start}:{placement.size}" for placement in room[: count.value]]

    return call
