"""Ask raw NVML queries; each answer has a value or NVML's code, and its duration.

For ``dra-driver hardware-check`` and tests on real GPUs. No query changes a setting. The caller opens the session
(``NvmlBackend.open``). The node process never imports this module.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, Final

from pynvml import c_nvmlDevice_t

from dra_driver.hardware.gpu.nvml.mig import MAX_INSTANCES
from dra_driver.hardware.gpu.nvml.properties import MAX_LINKS
from dra_driver.hardware.gpu.nvml.session import use_library

pynvml: Any = import_module("pynvml")  # typings/ has only the functions that the backend calls

FIELDS: Final = {
    184: "resetless MIG",
    199: "MIG profiles while MIG mode is off (NVML 13)",
    200: "the same field in older headers of DCGM",
    230: "recovery action",
    142: "correctable row remappings",
    143: "uncorrectable row remappings",
    144: "row remapping pending",
    145: "row remapping failed",
    82: "memory temperature",
    185: "average power",
    186: "instant power",
}
"""Queried field ids of nvml.h (NVML_FI_DEV_*), with their meaning."""
VALUE_TYPES: Final = ("d", "ui", "ul", "ull", "sll", "si", "us")
"""Member of nvmlValue_t by nvmlValueType_t."""
PROCESS_KINDS: Final = ("Compute", "Graphics", "MPSCompute")
MAX_PROCESSES: Final = 64

SYSTEM: Final = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount",
    "nvmlSystemGetConfComputeState",
    "nvmlGetExcludedDeviceCount",
)
DESCRIBED: Final = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetVirtualizationMode",
)
MEMORY_V2, FABRIC = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfoV"
OPTIONAL: Final = (*DESCRIBED, MEMORY_V2, FABRIC)
"""Optional calls of the backend's description of a GPU: each may be missing, and must not fail otherwise."""
NEEDED: Final = ("nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber")
"""Calls without which the backend leaves a GPU out."""
FURTHER: Final = (
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMultiGpuBoard",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "nvmlDeviceGetUtilizationRates",
    "nvmlGpmQueryDeviceSupport",
)

Answer = dict[str, Any]
Handle = c_nvmlDevice_t


def ask(call: Callable[[], Any]) -> Answer:
    """``{"value": ..., "ms": ...}`` or ``{"error": ..., "code": 3, "ms": ...}``, code None for an unreadable answer."""
    begin = time.perf_counter()
    try:
        answer: Answer = {"value": plain(call())}
    except pynvml.NVMLError as error:
        answer = {"error": type(error).__name__, "code": error.value}
    except pynvml.NVMLLibraryMismatchError as error:
        answer = {"error": type(error).__name__, "code": None}
    except (ValueError, AttributeError) as error:  # text that is not UTF-8; a function that the binding lacks
        answer = {"error": f"{type(error).__name__}: {error}"[:200], "code": None}
    return answer | {"ms": round((time.perf_counter() - begin) * 1000, 3)}


def plain(value: Any) -> Any:
    """Turn what pynvml returns, ctypes structures and byte strings included, into JSON."""
    if isinstance(value, ctypes.Structure):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    if isinstance(value, int | float | str | bool) or value is None:
        return value
    # pynvml's "friendly" structures are plain objects.
    return {name: plain(item) for name, item in vars(value).items()} if hasattr(value, "__dict__") else str(type(value))


def handles() -> dict[int, Handle]:
    """By NVML index, without GPUs whose handle fails, such as lost ones."""
    found = ((index, ask(partial(answers_at, index))) for index in range(pynvml.nvmlDeviceGetCount()))
    return {index: handle_at(index) for index, answer in found if "value" in answer}


def handle_at(index: int) -> Handle:
    handle: Handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return handle


def answers_at(index: int) -> bool:
    return bool(handle_at(index))


def system() -> dict[str, Answer]:
    return {name: ask(getattr(pynvml, name)) for name in SYSTEM if hasattr(pynvml, name)}


def described(handle: Handle) -> dict[str, Answer]:
    """The calls of the backend's description of a GPU, by name; `fields` includes field 184."""
    answers = {name: ask(partial(getattr(pynvml, name), handle)) for name in (*NEEDED, *DESCRIBED)}
    answers[MEMORY_V2] = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    answers[FABRIC] = ask(partial(_filled, FABRIC, "c_nvmlGpuFabricInfo_v3_t", handle))
    return answers


def device(handle: Handle) -> dict[str, Answer]:
    """`described`, and more about identity, place and state of one GPU."""
    answers = described(handle)
    answers |= {name: ask(partial(getattr(pynvml, name), handle)) for name in FURTHER if hasattr(pynvml, name)}
    answers["nvmlDeviceGetPlatformInfo"] = ask(
        partial(_filled, "nvmlDeviceGetPlatformInfo", "c_nvmlPlatformInfo_v2_t", handle)
    )
    answers["nvmlDeviceGetMemoryAffinity"] = ask(lambda: pynvml.nvmlDeviceGetMemoryAffinity(handle, 4, 0))
    return answers | links(handle)


def links(handle: Handle) -> dict[str, Answer]:
    """State and other end of each link that NVML has a number for."""
    states, ends = pynvml.nvmlDeviceGetNvLinkState, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType
    answers = {f"nvlink {link} state": ask(partial(states, handle, link)) for link in range(MAX_LINKS)}
    return answers | {link_end(link): ask(partial(ends, handle, link)) for link in range(MAX_LINKS)}


def fabric_state(handle: Handle) -> Answer:
    """``value``: 0 not supported, 1 not started, 2 in progress, 3 completed (nvmlGpuFabricInfo_v3_t, or version 2)."""
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        answer = ask(partial(_filled, FABRIC, structure, handle))
        if "value" in answer:
            return {**answer, "value": answer["value"]["state"] & 0xFF}
        if answer["code"] not in (pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            break
    return answer


def fields(handle: Handle) -> dict[str, Any]:
    """By id ``{"type", "value", "uint"}`` (``uint``: as the backend reads it) or ``{"code"}``; or the call's error."""
    begin = time.perf_counter()
    try:
        values = pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS))
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__, "code": error.value}
    answer = {str(one.fieldId): _field(one) if one.nvmlReturn == 0 else {"code": one.nvmlReturn} for one in values}
    return answer | {"ms": round((time.perf_counter() - begin) * 1000, 3)}


def processes(handle: Handle) -> dict[str, Answer]:
    """Processes on a GPU by kind, each with ``pid``; at most `MAX_PROCESSES` of a kind."""

    def listed(kind: str) -> list[dict[str, Any]]:
        found = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
        return [{"pid": one.pid} for one in found[:MAX_PROCESSES]]

    return {kind: ask(partial(listed, kind)) for kind in PROCESS_KINDS}


UTILISATION: Final = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
ENGINES: Final = {"decoder": "Decoder", "encoder": "Encoder", "jpeg": "Jpg", "ofa": "Ofa"}
MAX_SAMPLES: Final = 100


def usage(handle: Handle) -> dict[str, Answer]:
    """All that NVML reports as in use on a GPU, from the oldest sample on; ``cpu_us`` is this process' clock."""

    def listed(kind: str) -> list[dict[str, Any]]:
        found = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
        return [{"pid": one.pid, "memory": one.usedGpuMemory} for one in found[:MAX_PROCESSES]]

    def samples(function: str) -> list[dict[str, Any]]:
        try:
            found = getattr(pynvml, function)(handle, 0)
        except pynvml.NVMLError as error:
            if error.value in {0, pynvml.NVML_ERROR_NOT_FOUND}:  # the binding raises 0 for no samples
                return []
            raise
        values = sorted((plain(one) for one in found), key=itemgetter("timeStamp"))
        return values[-MAX_SAMPLES:]

    answers: dict[str, Answer] = {f"listed {kind}": ask(partial(listed, kind)) for kind in PROCESS_KINDS}
    answers |= {function: ask(partial(samples, function)) for function in UTILISATION}
    answers["cpu_us"] = {"value": time.time_ns() // 1000, "ms": 0.0}
    answers["rates"] = ask(partial(pynvml.nvmlDeviceGetUtilizationRates, handle))
    answers |= {
        engine: ask(partial(getattr(pynvml, f"nvmlDeviceGet{name}Utilization"), handle))
        for engine, name in ENGINES.items()
    }
    return answers | {MEMORY_V2: ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))}


def settings(handle: Handle) -> dict[str, Any]:
    """Everything that a read-only check must leave as it was, without timings."""
    names = ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEccMode")
    return {name: timeless(ask(partial(getattr(pynvml, name), handle))) for name in names}


def timeless(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "ms"}


def _field(one: Any) -> dict[str, Any]:
    kind = one.valueType if one.valueType < len(VALUE_TYPES) else 1
    value = getattr(one.value, f"{VALUE_TYPES[kind]}Val")
    return {"type": one.valueType, "value": plain(value), "uint": one.value.uiVal}


def _filled(function: str, structure: str, handle: Handle) -> Any:
    """Return the structure that a call fills. Raises NVMLError."""
    room = getattr(pynvml, structure)()
    getattr(pynvml, function)(handle, ctypes.byref(room))
    return room


def link_end(link: int) -> str:
    """Name in `device` of the remote end of a link (nvmlIntNvLinkDeviceType_t)."""
    return f"nvlink {link} end"


def trace(note: Callable[[str], object]) -> None:
    """Call ``note`` with the name of each NVML function before pynvml calls it, for the rest of the process."""
    look_up = pynvml._nvmlGetFunctionPointer

    def noted(name: str) -> Any:
        note(name)
        return look_up(name)

    pynvml._nvmlGetFunctionPointer = noted


def load(library: str | None) -> Answer:
    """Open a session without the backend; the answer of nvmlInitWithFlags. Raises DriverUnavailableError."""
    use_library(library)
    return ask(lambda: pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS))


PROFILE_NUMBERS: Final = range(0x20)
"""Queried profile numbers: nvml.h 13.3 ends at 0x12, later versions may add more."""


def profiles(handle: Handle) -> list[dict[str, Any]]:
    """A row per profile ``number``, whether or not MIG mode is on: the answers ``v2`` and ``v1``, and for a profile
    that exists ``id``, ``placements`` (``start:size``) and ``remaining``."""
    rows = []
    for number in PROFILE_NUMBERS:
        listed = partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        row: dict[str, Any] = {f"v{version}": ask(partial(listed, version=version)) for version in (2, 1)}
        row["number"] = number
        info = row["v2"].get("value") or row["v1"].get("value")
        if info:
            row["id"] = info["id"]
            row["placements"] = ask(partial(_placements, handle, info["id"]))
            row["remaining"] = ask(partial(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info["id"]))
        rows.append(row)
    return rows


def without_mode(handle: Handle, profile_ids: Iterable[int]) -> dict[str, Any]:
    """Answers of functions that the backend may call while MIG mode is off."""
    by_id = instances(handle, profile_ids)
    remaining = {
        profile_id: ask(partial(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, int(profile_id)))
        for profile_id in by_id
    }
    return {
        "nvmlDeviceGetGpuInstances": by_id,
        "nvmlDeviceGetGpuInstanceRemainingCapacity": remaining,
        "nvmlDeviceGetGpuInstanceById": ask(lambda: bool(pynvml.nvmlDeviceGetGpuInstanceById(handle, 0))),
        "nvmlDeviceGetSupportedEventTypes": ask(partial(pynvml.nvmlDeviceGetSupportedEventTypes, handle)),
        "nvmlDeviceRegisterEvents": ask(partial(register_mig_events, handle)),
    }


@contextmanager
def _event_set() -> Iterator[Any]:
    events = pynvml.nvmlEventSetCreate()
    try:
        yield events
    finally:
        pynvml.nvmlEventSetFree(events)


def register_mig_events(handle: Handle) -> str:
    with _event_set() as events:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventMigConfigChange, events)
    return "registered"


@contextmanager
def event_set(handles: Iterable[Handle]) -> Iterator[list[Answer]]:
    """Keep an event set with the MIG events of all GPUs open inside the block; yields the answer for each GPU."""
    wanted = pynvml.nvmlEventMigConfigChange
    with _event_set() as events:
        yield [ask(partial(pynvml.nvmlDeviceRegisterEvents, handle, wanted, events)) for handle in handles]


def instances(handle: Handle, profile_ids: Iterable[int]) -> dict[str, Answer]:
    """Number of GPU instances by profile id. Listing them subscribes this session to each."""
    return {str(profile_id): ask(partial(_instances, handle, profile_id)) for profile_id in profile_ids}


def event_wait(handle: Handle, timeout_ms: int) -> Answer:
    """Measure a wait without an event, with the XID, ECC and MIG events that the GPU supports."""
    wanted = 0x8 | 0x2 | 0x1 | 0x100

    def wait() -> int:
        with _event_set() as events:
            supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            pynvml.nvmlDeviceRegisterEvents(handle, wanted & supported, events)
            return int(pynvml.nvmlEventSetWait_v2(events, timeout_ms).eventType)

    return ask(wait)


@contextmanager
def xid_events(handle: Handle) -> Iterator[Callable[[int], Answer]]:
    """Listen for XIDs of a GPU inside the block; yields a wait for the next one, in milliseconds."""
    with _event_set() as events:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        yield lambda timeout_ms: ask(partial(_next_event, events, timeout_ms))


def _next_event(events: Any, timeout_ms: int) -> dict[str, int]:
    found = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
    return {
        name: int(getattr(found, name)) for name in ("eventType", "eventData", "gpuInstanceId", "computeInstanceId")
    }


def is_guest(handle: Handle) -> bool:
    """Return whether the GPU is a virtual one, whose partitions are its host's."""
    answer = ask(partial(pynvml.nvmlDeviceGetVirtualizationMode, handle))
    return bool(answer.get("value") == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)


def _instances(handle: Handle, profile_id: int) -> int:
    count = ctypes.c_uint(MAX_INSTANCES)
    room = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)()
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, room, ctypes.byref(count))
    return count.value


def _placements(handle: Handle, profile_id: int) -> list[str]:
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    return [f"{placement.start}:{placement.size}" for placement in room[: count.value]]
