"""Read the usage of real GPUs: a ``backend.UsageSource`` with its own session, in a process that only reads usage.

The session holds device files open, and one that has listed MIG devices keeps them from being destroyed: ``detach``
ends it while GPUs are partitioned. Every value is optional: boards, drivers and permissions differ. SM utilisation of
GPU instances comes from GPM (Hopper and newer, 525+): nvmlGpmMigSampleGet fills a sample, nvmlGpmMetricsGet compares
two samples of one instance, at least 100 ms apart (nvml.h).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.core.model.ids import GpuUuid, MigUuid
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.hardware.gpu.backend import DETACH_TIMEOUT_S
from dra_driver.hardware.gpu.nvml.call_locks import NoAnswerError, Reads
from dra_driver.hardware.gpu.nvml.errors import ABSENT, describe, driver_call, optional, raise_translated, required
from dra_driver.hardware.gpu.nvml.session import Session

log = logging.getLogger(__name__)

Handle = pynvml.c_nvmlDevice_t
_Sample = pynvml.c_nvmlGpmSample_t

LEAST_S: Final = 0.1
_SM_UTIL: Final = 2  # NVML_GPM_METRIC_SM_UTIL


class GpmMeter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_supported: bool | None = None
        self._samples: dict[tuple[int, str], tuple[_Sample, float]] = {}  # and when it was taken

    def read(self, handle: Handle, gi_id: int, uuid: str) -> int | None:
        """Percent since the last call for that instance; None at the first, and where GPM is missing."""
        if not self._supports(handle):
            return None
        key = gi_id, uuid
        former = self._samples.get(key)
        if former is not None and self._clock() - former[1] < LEAST_S:
            return None
        sample = optional(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        if optional(pynvml.nvmlGpmMigSampleGet, handle, gi_id, sample, absent=_FAILS) is None:
            _free(sample)
            return None
        self._samples[key] = sample, self._clock()
        if former is None:
            return None
        try:
            return _sm_percent(former[0], sample)
        finally:
            _free(former[0])

    def keep(self, keys: Collection[tuple[int, str]]) -> None:
        for key in self._samples.keys() - set(keys):
            _free(self._samples.pop(key)[0])

    def _supports(self, handle: Handle) -> bool:
        if self._is_supported is None:
            answer = optional(pynvml.nvmlGpmQueryDeviceSupport, handle, absent=_FAILS)
            self._is_supported = answer is not None and bool(answer.isSupportedDevice)
        return self._is_supported


_FAILS: Final = ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_IN_USE}


def _sm_percent(earlier: _Sample, later: _Sample) -> int | None:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    question.sample1, question.sample2 = earlier, later
    question.metrics[0].metricId = _SM_UTIL
    if optional(pynvml.nvmlGpmMetricsGet, question, absent=_FAILS) is None:
        return None
    metric = question.metrics[0]
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not 0 <= metric.value <= 100:
        return None
    return round(metric.value)


def _free(sample: _Sample) -> None:
    try:
        with contextlib.suppress(pynvml.NVMLLibraryMismatchError):
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        log.debug("a sample was not freed", extra={"reason": describe(error)})


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


class MemoryReading(Struct, frozen=True):
    """Bytes; ``used`` is without what the driver reserves, where it tells that (version 2, from driver 510 on)."""

    total: int | None = None
    used: int | None = None
    reserved: int | None = None


def read_memory(handle: Handle) -> MemoryReading:
    """All None on GPUs without memory of their own, and on a MIG parent that this process may not ask."""
    # A driver may know the first version alone of a MIG device, too.
    version, name = pynvml.nvmlMemory_v2, "nvmlDeviceGetMemoryInfo_v2"
    found = optional(pynvml.nvmlDeviceGetMemoryInfo, handle, version, absent=_GONE, name=name)
    if found is not None:
        return MemoryReading(int(found.total), int(found.used), int(found.reserved))
    plain = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return MemoryReading() if plain is None else MemoryReading(int(plain.total), int(plain.used))


def read_utilisation(handle: Handle) -> tuple[int | None, int | None]:
    """Percent of time in which a kernel ran, and in which memory was read or written; not in MIG mode."""
    found = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return (None, None) if found is None else (_percent(found.gpu), _percent(found.memory))


def read_number(handle: Handle, function: str, *arguments: int) -> int | None:
    found = optional(getattr(pynvml, function), handle, *arguments)
    return None if found is None else int(found)


def read_temperature(handle: Handle) -> int | None:
    """Degrees Celsius. The second function is that of drivers before 570."""
    found = read_number(handle, "nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    return found if found is not None else read_number(handle, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)


def read_processes(
    handle: Handle, utilisation: Mapping[int, tuple[int, int]] | None
) -> tuple[ProcessUsage, ...] | None:
    """All processes on the GPU and its instances, by PID; None where the driver lists none of the kinds."""
    found: dict[tuple[int, int | None], int | None] = {}
    answers = [optional(getattr(pynvml, function), handle) for function in LISTINGS]
    if all(answer is None for answer in answers):
        return None
    for process in (process for answer in answers for process in answer or ()):
        gi = int(process.gpuInstanceId) if process.gpuInstanceId is not None else NO_INSTANCE
        key = int(process.pid), None if gi == NO_INSTANCE else gi
        memory = process.usedGpuMemory
        former = found.get(key)
        found[key] = former if memory is None else max(int(memory), former or 0)
    ordered = sorted(found, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
    return tuple(_process(pid, gi, found[pid, gi], utilisation) for pid, gi in ordered[:MAX_PROCESSES])


def _process(
    pid: int, gi: int | None, memory: int | None, utilisation: Mapping[int, tuple[int, int]] | None
) -> ProcessUsage:
    if utilisation is None or gi is not None:
        return ProcessUsage(pid=pid, gi_id=gi, memory_bytes=memory)
    sm, mem = utilisation.get(pid, (0, 0))
    return ProcessUsage(pid=pid, memory_bytes=memory, sm_percent=sm, memory_percent=mem)


class Utilisation:
    def __init__(self, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now_us = now_us
        self._since_us: int | None = None

    def read(self, handle: Handle) -> Mapping[int, tuple[int, int]] | None:
        """SM and memory percent by PID of active processes since the last call; None at the first and without data."""
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
    most = optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for index in range(min(int(most), 64)):
        device = optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index, absent=_GONE)
        if device is None:
            continue
        gi_id = optional(pynvml.nvmlDeviceGetGpuInstanceId, device, absent=_GONE)
        if gi_id is not None:
            yield int(gi_id), device


def read_instance(gi_id: int, device: Handle, sm_percent: int | None) -> InstanceUsage:
    memory = read_memory(device)
    uuid = optional(pynvml.nvmlDeviceGetUUID, device, absent=_GONE)
    return InstanceUsage(
        gi_id=gi_id,
        uuid=None if uuid is None else MigUuid(uuid),
        memory_total=memory.total,
        memory_used=memory.used,
        sm_percent=sm_percent,
    )


def _percent(value: int) -> int:
    return min(100, max(0, value))


LOOK_S: Final = 5.0


class _Meters(Struct):
    """What a GPU's looks compare with the look before, by NVML index; of one session."""

    uuid: GpuUuid | None = None
    utilisation: Utilisation = field(default_factory=Utilisation)
    gpm: GpmMeter = field(default_factory=GpmMeter)


class NvmlUsage:
    """Open at most one in a process, and no `NvmlBackend` next to it."""

    def __init__(
        self,
        library_path: str | None = None,
        sysfs_root: str = "/sys",
        *,
        driver_root: str | Callable[[], str] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """Arguments are as those of `NvmlBackend`; ``look_s`` is how long a GPU may take to answer, in seconds."""
        self._session = Session(library_path, driver_root, sysfs_root)
        self._session.before_end(self._forget)
        self._reads: Reads[GpuUsage] = Reads()
        self._look_s = look_s
        self._meters: dict[int, _Meters] = {}
        self._generation = 0

    def close(self) -> None:
        self._session.close()

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        return self._session.detach(reason, timeout_s)

    def reattach(self) -> None:
        self._session.reattach()

    @property
    def detached(self) -> str | None:
        return self._session.detached

    def usage(self) -> tuple[GpuUsage, ...]:
        """See ``backend.UsageSource``. A GPU that never answered is left out: its UUID is not known."""
        with self._session.use() as generation:
            if generation != self._generation:
                self._meters, self._generation = {}, generation
            count = driver_call(pynvml.nvmlDeviceGetCount)
            for index in range(count):
                self._meters.setdefault(index, _Meters())
            jobs = [(index, partial(self._look, generation, index), self._look_s) for index in range(count)]
            answers = self._reads.run(jobs)
        found = (self._found(index, answer) for index, answer in answers.items())
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.gpu_uuid))

    def _forget(self) -> None:
        """Right before the session ends: no other call runs, and samples end with it."""
        for meters in self._meters.values():
            meters.gpm.keep(())

    def _found(self, index: int, answer: GpuUsage | Exception) -> GpuUsage | None:
        if isinstance(answer, GpuUsage):
            return answer
        if isinstance(answer, DriverUnavailableError) or not isinstance(answer, DeviceLostError | NoAnswerError):
            raise answer  # the driver as a whole, or a defect here
        uuid = self._meters[index].uuid
        reason = "a call of the NVIDIA driver has not returned" if isinstance(answer, NoAnswerError) else str(answer)
        return None if uuid is None else GpuUsage(gpu_uuid=uuid, unreadable=reason)

    def _look(self, generation: int, index: int) -> GpuUsage:
        """Raises DeviceLostError and DriverUnavailableError."""
        meters = self._meters[index]
        with self._session.use(generation, joins=True):
            handle = required(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = GpuUuid(required(pynvml.nvmlDeviceGetUUID, handle))
            if meters.uuid not in (None, uuid):
                meters.utilisation, meters.gpm = Utilisation(), GpmMeter()
            meters.uuid = uuid
            return _read(handle, uuid, meters)


def _read(handle: Handle, uuid: GpuUuid, meters: _Meters) -> GpuUsage:
    modes = optional(pynvml.nvmlDeviceGetMigMode, handle)
    is_cut = modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    memory = read_memory(handle)
    gpu_percent, memory_percent = (None, None) if is_cut else read_utilisation(handle)
    processes = read_processes(handle, None if is_cut else meters.utilisation.read(handle))
    devices = list(mig_devices(handle)) if is_cut else []
    instances = []
    for gi_id, device in devices:
        name = optional(pynvml.nvmlDeviceGetUUID, device) or ""
        instances.append(read_instance(gi_id, device, meters.gpm.read(handle, gi_id, name)))
    meters.gpm.keep([(each.gi_id, each.uuid or "") for each in instances])
    return GpuUsage(
        gpu_uuid=uuid,
        memory_total=memory.total,
        memory_reserved=memory.reserved,
        memory_used=memory.used,
        gpu_percent=gpu_percent,
        memory_percent=memory_percent,
        energy_mj=read_number(handle, "nvmlDeviceGetTotalEnergyConsumption"),
        power_mw=read_number(handle, "nvmlDeviceGetPowerUsage"),
        temperature_c=read_temperature(handle),
        sm_clock_mhz=read_number(handle, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=read_number(handle, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        mig_enabled=is_cut,
        instances=tuple(sorted(instances, key=lambda each: each.gi_id)),
        processes=processes,
        problem=None if processes is not None else "NVML does not list processes of this GPU to this process",
    )
