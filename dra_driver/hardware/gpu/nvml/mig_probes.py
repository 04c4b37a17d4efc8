"""Raw questions to NVML about MIG profiles, and about MIG functions while MIG mode is off; see ``probes.py``."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from dra_driver.hardware.gpu.nvml.mig import MAX_INSTANCES
from dra_driver.hardware.gpu.nvml.probes import Answer, ask, pynvml

PROFILE_NUMBERS: Final = range(0x20)
"""Numbers of profiles that are asked: nvml.h 13.3 ends at 0x12, later ones may have more."""


def profiles(handle: Any) -> list[dict[str, Any]]:
    """A row per profile number, whether or not MIG mode is on.

    ``number``; ``v2`` and ``v1``, the answers of both versions; of a profile that either has: ``id``, ``placements``
    (``start:size``) and ``remaining``, the answers for that id.
    """
    rows = []
    for number in PROFILE_NUMBERS:
        row: dict[str, Any] = {f"v{version}": ask(_profile(handle, number, version)) for version in (2, 1)}
        row["number"] = number
        info = row["v2"].get("value") or row["v1"].get("value")
        if info:
            row["id"] = info["id"]
            row["placements"] = ask(_placements(handle, info["id"]))
            row["remaining"] = ask(partial(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info["id"]))
        rows.append(row)
    return rows


def without_mode(handle: Any, profile_ids: Iterable[int]) -> dict[str, Any]:
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


def register_mig_events(handle: Any) -> str:
    """Register for MIG changes alone, and free the set. Raises NVMLError."""
    events = pynvml.nvmlEventSetCreate()
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventMigConfigChange, events)
    finally:
        pynvml.nvmlEventSetFree(events)
    return "registered"


@contextmanager
def event_set(handles: Iterable[Any]) -> Iterator[list[Answer]]:
    """Keep an event set with the MIG events of all GPUs open inside the block; yields the answer for each GPU."""
    events = pynvml.nvmlEventSetCreate()
    try:
        wanted = pynvml.nvmlEventMigConfigChange
        yield [ask(partial(pynvml.nvmlDeviceRegisterEvents, handle, wanted, events)) for handle in handles]
    finally:
        pynvml.nvmlEventSetFree(events)


def instances(handle: Any, profile_ids: Iterable[int]) -> dict[str, Answer]:
    """Number of GPU instances by profile id. Listing them subscribes this session to each."""
    return {str(profile_id): ask(_instances(handle, profile_id)) for profile_id in profile_ids}


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


def is_guest(handle: Any) -> bool:
    """Whether the GPU is a virtual one, whose partitions are its host's."""
    answer = ask(partial(pynvml.nvmlDeviceGetVirtualizationMode, handle))
    return bool(answer.get("value") == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)


def _profile(handle: Any, number: int, version: int) -> Callable[[], Any]:
    return lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)


def _instances(handle: Any, profile_id: int) -> Callable[[], int]:
    def call() -> int:
        count = ctypes.c_uint(MAX_INSTANCES)
        room = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)()
        pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, room, ctypes.byref(count))
        return count.value

    return call


def _placements(handle: Any, profile_id: int) -> Callable[[], list[str]]:
    def call() -> list[str]:
        count = ctypes.c_uint(0)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
        room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
        return [f"{placement.start}:{placement.size}" for placement in room[: count.value]]

    return call
