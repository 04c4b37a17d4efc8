"""Reads what is in use on one GPU. nvml.h, by function. Everything is optional: boards, drivers and rights differ."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pynvml
from msgspec import Struct

from dra_driver.core.model.ids import MigUuid
from dra_driver.core.model.usage import InstanceUsage, ProcessUsage
from dra_driver.hardware.gpu.nvml.errors import ABSENT, optional, raise_translated

Handle = pynvml.c_nvmlDevice_t
T = TypeVar("T")

NO_INSTANCE: Final = 0xFFFFFFFF
MAX_PROCESSES: Final = 16_384
LISTINGS: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
"""A process may be in more than one of them with the same memory, such as a client of MPS."""
_NO_SAMPLES: Final = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
"""Nothing was used since then: pynvml raises the first where the driver has no sample to copy."""
_GONE: Final = ABSENT | {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}


class MemoryReading(Struct, frozen=True, kw_only=True):
    """Bytes; ``used`` is without what the driver reserves, where it tells that (version 2, from driver 510 on)."""

    total: int
    used: int
    reserved: int | None


def read_memory(handle: Handle) -> MemoryReading | None:
    """None on GPUs without memory of their own, and on a MIG parent that this process may not ask."""
    found = optional(
        "nvmlDeviceGetMemoryInfo_v2",
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
        _GONE,  # also of a MIG device, for which a driver may know the first version alone
    )
    if found is not None:
        return MemoryReading(total=int(found.total), used=int(found.used), reserved=int(found.reserved))
    plain = _optional("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return None if plain is None else MemoryReading(total=int(plain.total), used=int(plain.used), reserved=None)


def read_utilisation(handle: Handle) -> tuple[int | None, int | None]:
    """Percent of time in which a kernel ran, and in which memory was read or written; not in MIG mode."""
    found = _optional("nvmlDeviceGetUtilizationRates", partial(pynvml.nvmlDeviceGetUtilizationRates, handle))
    return (None, None) if found is None else (_percent(found.gpu), _percent(found.memory))


def read_number(handle: Handle, function: str, *arguments: Any) -> int | None:
    """The answer of a function of pynvml with a number as answer."""
    found = _optional(function, lambda: getattr(pynvml, function)(handle, *arguments))
    return None if found is None else int(found)


def read_temperature(handle: Handle) -> int | None:
    """Degrees Celsius. The second function is that of drivers before 570."""
    found = read_number(handle, "nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    return found if found is not None else read_number(handle, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)


def read_processes(
    handle: Handle, utilisation: Mapping[int, tuple[int, int]] | None
) -> tuple[ProcessUsage, ...] | None:
    """All processes on the GPU and its instances, by PID; None where the driver lists none of the kinds.

    ``utilisation`` is that of `Utilisation.read`.
    """
    found: dict[tuple[int, int | None], int | None] = {}
    answers = [_optional(function, partial(getattr(pynvml, function), handle)) for function in LISTINGS]
    if all(answer is None for answer in answers):
        return None
    for process in (process for answer in answers for process in answer or ()):
        gi = int(process.gpuInstanceId) if process.gpuInstanceId is not None else NO_INSTANCE
        key = int(process.pid), None if gi == NO_INSTANCE else gi
        memory = process.usedGpuMemory
        former = found.get(key)
        found[key] = former if memory is None else max(int(memory), former or 0)
    return tuple(
        _process(pid, gi, found[pid, gi], utilisation) for pid, gi in sorted(found, key=_order)[:MAX_PROCESSES]
    )


def _order(key: tuple[int, int | None]) -> tuple[int, int]:
    pid, gi = key
    return pid, -1 if gi is None else gi


def _process(
    pid: int, gi: int | None, memory: int | None, utilisation: Mapping[int, tuple[int, int]] | None
) -> ProcessUsage:
    if utilisation is None or gi is not None:
        return ProcessUsage(pid=pid, gi_id=gi, memory_bytes=memory)
    sm, mem = utilisation.get(pid, (0, 0))
    return ProcessUsage(pid=pid, memory_bytes=memory, sm_percent=sm, memory_percent=mem)


class Utilisation:
    """The utilisation of one GPU's processes between two looks."""

    def __init__(self, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now_us = now_us
        self._since_us: int | None = None

    def read(self, handle: Handle) -> Mapping[int, tuple[int, int]] | None:
        """SM and memory utilisation in percent by PID, of those that used anything since the last call.

        None at the first call, and where the driver does not tell.
        """
        since = self._since_us
        # Samples are stamped with the CPU's time in microseconds since 1970.
        samples = _samples(handle, since if since is not None else self._now_us())
        if samples is None:
            self._since_us = None
            return None
        stamps = [int(sample.timeStamp) for sample in samples]
        self._since_us = max([since if since is not None else self._now_us(), *stamps])
        if since is None:
            return None
        by_pid: dict[int, list[tuple[int, int]]] = {}
        for sample in samples:
            if int(sample.timeStamp) > since:
                by_pid.setdefault(int(sample.pid), []).append((_percent(sample.smUtil), _percent(sample.memUtil)))
        return {pid: _mean(each) for pid, each in by_pid.items()}


def _samples(handle: Handle, since_us: int) -> Sequence[Any] | None:
    """From driver 550 on the first function, before it the second; None where neither is supported."""
    for function in ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"):
        try:
            return list(getattr(pynvml, function)(handle, since_us))
        except pynvml.NVMLError as error:
            if error.value in _NO_SAMPLES:
                return ()
            if error.value not in ABSENT:
                raise_translated(function, error)
        except pynvml.NVMLLibraryMismatchError:
            continue
    return None


def _mean(samples: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(sm for sm, _ in samples) // len(samples), sum(memory for _, memory in samples) // len(samples)


def mig_devices(handle: Handle) -> Iterator[tuple[int, Handle]]:
    """The id of the GPU instance, and the handle, of each MIG device. Those of a session keep their instances."""
    most = _optional("nvmlDeviceGetMaxMigDeviceCount", partial(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)) or 0
    for index in range(min(int(most), 64)):
        ask = partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        device = optional("nvmlDeviceGetMigDeviceHandleByIndex", ask, _GONE)
        if device is None:
            continue
        gi_id = optional("nvmlDeviceGetGpuInstanceId", partial(pynvml.nvmlDeviceGetGpuInstanceId, device), _GONE)
        if gi_id is not None:
            yield int(gi_id), device


def read_instance(gi_id: int, device: Handle, sm_percent: int | None) -> InstanceUsage:
    """One MIG device, which spans its GPU instance."""
    memory = read_memory(device)
    uuid = optional("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, device), _GONE)
    return InstanceUsage(
        gi_id=gi_id,
        uuid=None if uuid is None else MigUuid(uuid),
        memory_total=memory.total if memory is not None else None,
        memory_used=memory.used if memory is not None else None,
        sm_percent=sm_percent,
    )


def _optional(function: str, call: Callable[[], T]) -> T | None:
    return optional(function, call, ABSENT)


def _percent(value: int) -> int:
    return min(100, max(0, value))
