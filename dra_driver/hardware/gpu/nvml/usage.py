"""Read the usage of real GPUs: a ``backend.UsageSource`` with its own session, in a process that only reads usage.

The session holds device files open, and one that has listed MIG devices keeps them from being destroyed: ``close``
ends it while GPUs are partitioned. Every value is optional: boards, drivers and permissions differ, and a call that
fails makes only its own value unknown. Utilisation of GPU instances comes from GPM (Hopper and newer, 525+):
nvmlGpmMigSampleGet fills a sample, nvmlGpmMetricsGet compares two samples of one instance, at least 100 ms apart
(nvml.h).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.core.model.ids import GpuUuid, MigUuid
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage, busiest
from dra_driver.hardware.gpu.nvml.call_locks import NoAnswerError, Reads
from dra_driver.hardware.gpu.nvml.errors import attempt, describe, driver_call, required
from dra_driver.hardware.gpu.nvml.session import Session

log = logging.getLogger(__name__)

Handle = pynvml.c_nvmlDevice_t
_Sample = pynvml.c_nvmlGpmSample_t

LEAST_S: Final = 0.1
_SM_UTIL: Final = 2  # NVML_GPM_METRIC_SM_UTIL
_DECODERS: Final = (*range(30, 38), *range(40, 48), 50, 51)  # NVDEC, NVJPG, NVOFA
_ENCODERS: Final = range(166, 170)  # NVENC: drivers before 570 do not know them
Percents = tuple[int | None, int | None]


class GpmMeter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_supported: bool | None = None
        self._samples: dict[tuple[int, str], tuple[_Sample, float]] = {}  # and when it was taken

    def read(self, handle: Handle, gi_id: int, uuid: str) -> Percents:
        """Percent of multiprocessors and of the busiest engine since the last call for that instance; None at the
        first, and where GPM is missing."""
        if not self._supports(handle):
            return None, None
        key = gi_id, uuid
        former = self._samples.get(key)
        if former is not None and self._clock() - former[1] < LEAST_S:
            return None, None
        sample, _ = attempt(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None, None
        if attempt(pynvml.nvmlGpmMigSampleGet, handle, gi_id, sample)[0] is None:
            _free(sample)
            return None, None
        self._samples[key] = sample, self._clock()
        if former is None:
            return None, None
        try:
            return _gpm_percents(former[0], sample)
        finally:
            _free(former[0])

    def keep(self, keys: Collection[tuple[int, str]]) -> None:
        for key in self._samples.keys() - set(keys):
            _free(self._samples.pop(key)[0])

    def _supports(self, handle: Handle) -> bool:
        if self._is_supported is None:
            answer, failed = attempt(pynvml.nvmlGpmQueryDeviceSupport, handle)
            if failed:
                return False
            self._is_supported = answer is not None and bool(answer.isSupportedDevice)
        return self._is_supported


def _gpm_percents(earlier: _Sample, later: _Sample) -> Percents:
    """An instance is idle only if an engine other than the multiprocessors answers; else it is busy or unknown."""
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.sample1, question.sample2 = earlier, later
    # A driver may refuse the whole question for a metric that it does not know.
    for metrics in ((_SM_UTIL, *_DECODERS, *_ENCODERS), (_SM_UTIL, *_DECODERS), (_SM_UTIL,)):
        question.numMetrics = len(metrics)
        for slot, metric in enumerate(metrics):
            question.metrics[slot].metricId = metric
        if attempt(pynvml.nvmlGpmMetricsGet, question)[0] is not None:
            sm, *engines = (_gpm_value(question.metrics[slot]) for slot in range(len(metrics)))
            answered = [each for each in engines if each is not None]
            busy = max([sm or 0, *answered])
            return sm, busy if busy or (sm is not None and answered) else None
    return None, None


def _gpm_value(metric: Any) -> int | None:
    answers = metric.nvmlReturn == pynvml.NVML_SUCCESS and 0 <= metric.value <= 100
    return ceil(metric.value) if answers else None


def _free(sample: _Sample) -> None:
    try:
        with contextlib.suppress(pynvml.NVMLLibraryMismatchError):
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        log.debug("a sample was not freed", extra={"reason": describe(error)})


NO_INSTANCE: Final = 0xFFFFFFFF
MAX_PROCESSES: Final = 16_384
LISTINGS: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
"""A process may be in more than one of them with the same memory, such as a client of MPS."""
ENGINES: Final = tuple(f"nvmlDeviceGet{name}Utilization" for name in ("Encoder", "Decoder", "Jpg", "Ofa"))
_NO_ENGINE: Final = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED})
_NO_SAMPLES: Final = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
"""The driver has no sample since then: pynvml raises the first where there is none to copy."""


class MemoryReading(Struct, frozen=True):
    """Bytes; ``used`` excludes the driver's reserve if reported (version 2, from driver 510 on)."""

    total: int | None = None
    used: int | None = None
    reserved: int | None = None


def read_memory(handle: Handle) -> MemoryReading:
    """All None on GPUs without memory of their own, and on a MIG parent that this process may not ask."""
    # A driver may know the first version alone of a MIG device, too.
    version, name = pynvml.nvmlMemory_v2, "nvmlDeviceGetMemoryInfo_v2"
    found, _ = attempt(pynvml.nvmlDeviceGetMemoryInfo, handle, version, name=name)
    if found is not None:
        return MemoryReading(int(found.total), int(found.used), int(found.reserved))
    plain, _ = attempt(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return MemoryReading() if plain is None else MemoryReading(int(plain.total), int(plain.used))


def read_number(handle: Handle, function: str, *arguments: int) -> int | None:
    found, _ = attempt(getattr(pynvml, function), handle, *arguments)
    return None if found is None else int(found)


def read_temperature(handle: Handle) -> int | None:
    """Degrees Celsius. The second function is that of drivers before 570."""
    found = read_number(handle, "nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    return found if found is not None else read_number(handle, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)


class Measured(Struct, frozen=True, kw_only=True):
    """Utilisation since the last sample, in percent; None is unknown. ``by_pid`` has multiprocessors, memory and the
    busiest engine of each process that used one; ``others`` is 0 if all other processes used none."""

    gpu: int | None = None
    memory: int | None = None
    busy: int | None = None
    by_pid: Mapping[int, tuple[int, int, int]] = {}
    others: int | None = None


def read_processes(handle: Handle, measured: Measured) -> tuple[ProcessUsage, ...] | None:
    """All processes on the GPU and its instances, by PID; None where the driver does not list compute processes, and
    where a listing fails: a list that lacks some would call their GPU unused."""
    found: dict[tuple[int, int | None], int | None] = {}
    answers = []
    for function in LISTINGS:
        answer, failed = attempt(getattr(pynvml, function), handle)
        if failed:
            return None
        answers.append(answer)
    if answers[0] is None:
        return None
    clients = {int(process.pid) for process in answers[2] or ()}
    for process in (process for answer in answers for process in answer or ()):
        gi = int(process.gpuInstanceId) if process.gpuInstanceId is not None else NO_INSTANCE
        key = int(process.pid), None if gi == NO_INSTANCE else gi
        memory = process.usedGpuMemory
        former = found.get(key)
        found[key] = former if memory is None else max(int(memory), former or 0)
    ordered = sorted(found, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
    return tuple(_process(pid, gi, found[pid, gi], measured, mps=pid in clients) for pid, gi in ordered[:MAX_PROCESSES])


def _process(pid: int, gi: int | None, memory: int | None, measured: Measured, *, mps: bool) -> ProcessUsage:
    if gi is not None:
        return ProcessUsage(pid=pid, gi_id=gi, memory_bytes=memory, mps=mps)
    sm, mem, busy = measured.by_pid.get(pid, (measured.others,) * 3)
    return ProcessUsage(pid=pid, memory_bytes=memory, sm_percent=sm, memory_percent=mem, busy_percent=busy, mps=mps)


class Utilisation:
    """Accumulates the utilisation of one GPU without MIG and of its processes: the driver keeps about ten seconds.

    Samples of processes have stamps of the GPU's clock, which is set once while its firmware boots and then drifts. So
    each question begins after the newest stamp seen, the first one at 0. Stamps that went back (a reset of the GPU)
    begin again. A missing sample means no use only if the whole GPU was idle.
    """

    def __init__(self) -> None:
        self._since_us: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._device: list[tuple[int, int]] = []  # percent of GPU and of memory
        self._busy: list[int | None] = []
        self._sums: dict[int, tuple[int, int, int]] = {}
        self._rounds, self._is_unknown = 0, False  # of processes

    def take(self) -> Measured:
        """Return the measurements since the last call; each mean rounds up, so that any use is above 0."""
        busy = [each or 0 for each in self._busy]
        found = Measured(
            gpu=_mean([gpu for gpu, _ in self._device]),
            memory=_mean([memory for _, memory in self._device]),
            busy=_mean(busy) if any(busy) or None not in self._busy else None,
            by_pid={pid: (_up(a, self._rounds), _up(b, self._rounds), _up(c, self._rounds))
                    for pid, (a, b, c) in self._sums.items() if c},
            others=None if self._is_unknown or not self._rounds else 0,
        )  # fmt: skip
        self._begin()
        return found

    def sample(self, handle: Handle) -> None:
        rates, _ = attempt(pynvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            self._device.append((_percent(rates.gpu), _percent(rates.memory)))
        engines = [attempt(getattr(pynvml, name), handle, absent=_NO_ENGINE) for name in ENGINES]
        percents = [None if failed else 0 if answer is None else _percent(answer[0]) for answer, failed in engines]
        busy = busiest([*self._device[-1], *percents] if rates is not None else [None, *percents])
        self._busy.append(busy)
        if not self._add_processes(handle, busy, busiest(percents[2:])):
            self._is_unknown = True

    def _add_processes(self, handle: Handle, busy: int | None, rest: int | None) -> bool:
        """Return whether the use of every process since the last sample was read. ``rest``: use of the JPEG and
        optical flow engines by all processes."""
        since = self._since_us
        found = _samples(handle, since or 0)
        if found is None:
            return False
        samples, is_complete = found
        fresh = [sample for sample in samples if int(sample.timeStamp) > (since or 0)]
        newest = max((int(sample.timeStamp) for sample in fresh), default=since or 0)
        self._since_us = newest
        if since is None:
            return True  # before the first sample
        if not fresh:
            every = _samples(handle, 0) if since else None
            stamps = [int(sample.timeStamp) for sample in every[0]] if every is not None else []
            if stamps and max(stamps) < since:
                self._since_us = max(stamps)
                return False
            self._rounds += busy == 0
            return busy == 0
        self._rounds += 1
        by_pid: dict[int, list[tuple[int, int, int]]] = {}
        for sample in fresh:
            sm, memory = _percent(sample.smUtil), _percent(sample.memUtil)
            more = (getattr(sample, name, 0) for name in ("encUtil", "decUtil", "jpgUtil", "ofaUtil"))
            by_pid.setdefault(int(sample.pid), []).append((sm, memory, max(sm, memory, *map(_percent, more))))
        for pid, each in by_pid.items():
            sums = self._sums.get(pid, (0, 0, 0))
            means = [_up(sum(column), len(each)) for column in zip(*each, strict=True)]
            self._sums[pid] = (sums[0] + means[0], sums[1] + means[1], sums[2] + means[2])
        return is_complete or rest == 0


def _samples(handle: Handle, since_us: int) -> tuple[Sequence[Any], bool] | None:
    """Samples, and whether they have all engines: of the first function, from driver 550 on. None without samples."""
    for function in ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"):
        found, _ = attempt(_listed, function, handle, since_us, name=function)
        if found is not None:
            return found, function == "nvmlDeviceGetProcessesUtilizationInfo"
    return None


def _listed(function: str, handle: Handle, since_us: int) -> Sequence[Any]:
    try:
        return list(getattr(pynvml, function)(handle, since_us))
    except pynvml.NVMLError as error:
        if error.value in _NO_SAMPLES:
            return ()
        raise


def _up(total: int, count: int) -> int:
    return -(-total // count)


def _mean(percents: Sequence[int]) -> int | None:
    return _up(sum(percents), len(percents)) if percents else None


def mig_devices(handle: Handle) -> Iterator[tuple[int, Handle]]:
    """Return GPU instance id and handle of each MIG device. A handle keeps its instance for a session."""
    most = read_number(handle, "nvmlDeviceGetMaxMigDeviceCount") or 0
    for index in range(min(most, 64)):
        device, _ = attempt(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is None:
            continue
        gi_id = read_number(device, "nvmlDeviceGetGpuInstanceId")
        if gi_id is not None:
            yield gi_id, device


def read_instance(gi_id: int, device: Handle, uuid: str | None, percents: Percents) -> InstanceUsage:
    memory = read_memory(device)
    return InstanceUsage(
        gi_id=gi_id,
        uuid=None if uuid is None else MigUuid(uuid),
        memory_total=memory.total,
        memory_used=memory.used,
        sm_percent=percents[0],
        busy_percent=percents[1],
    )


def _percent(value: int) -> int:
    return min(100, max(0, value))


LOOK_S: Final = 5.0


class _Meters(Struct):
    """Values of the last sample of each GPU, by NVML index, for the next sample of the session."""

    uuid: GpuUuid | None = None
    is_cut: bool = False
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
        """Arguments as in `NvmlBackend`; ``look_s`` is a GPU's time limit in seconds."""
        self._session = Session(library_path, driver_root, sysfs_root)
        self._session.before_end(self._forget)
        self.close = self._session.close
        self._reads: Reads[GpuUsage | None] = Reads()
        self._look_s = look_s
        self._meters: dict[int, _Meters] = {}
        self._generation = 0

    def usage(self) -> tuple[GpuUsage, ...]:
        """See ``backend.UsageSource``. A GPU that never answered is excluded: its UUID is unknown."""
        answers = self._each_gpu(self._look)
        found = (self._found(index, answer) for index, answer in answers.items())
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.gpu_uuid))

    def sample(self) -> None:
        """See ``backend.UsageSource``. A failure repeats in the next sample, which reports it."""
        self._each_gpu(self._sample)

    def _each_gpu(self, call: Callable[[int, int], GpuUsage | None]) -> dict[int, GpuUsage | Exception | None]:
        with self._session.use() as generation:
            if generation != self._generation:
                self._meters, self._generation = {}, generation
            count = driver_call(pynvml.nvmlDeviceGetCount)
            for index in range(count):
                self._meters.setdefault(index, _Meters())
            return self._reads.run([(index, partial(call, generation, index), self._look_s) for index in range(count)])

    def _forget(self) -> None:
        """Right before the session ends: no other call runs, and samples end with it."""
        for meters in self._meters.values():
            meters.gpm.keep(())

    def _found(self, index: int, answer: GpuUsage | Exception | None) -> GpuUsage | None:
        if answer is None or isinstance(answer, GpuUsage):
            return answer
        if isinstance(answer, DriverUnavailableError) or not isinstance(answer, DeviceLostError | NoAnswerError):
            raise answer  # the driver as a whole, or a defect here
        uuid = self._meters[index].uuid
        reason = "a call of the NVIDIA driver has not returned" if isinstance(answer, NoAnswerError) else str(answer)
        return None if uuid is None else GpuUsage(gpu_uuid=uuid, unreadable=reason)

    def _sample(self, generation: int, index: int) -> None:
        meters = self._meters[index]
        if meters.uuid is not None and not meters.is_cut:  # a sample exists
            with self._session.use(generation, joins=True):
                meters.utilisation.sample(required(pynvml.nvmlDeviceGetHandleByIndex, index))

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
    modes, failed = attempt(pynvml.nvmlDeviceGetMigMode, handle)
    if not failed:
        meters.is_cut = modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    is_cut = meters.is_cut
    if not is_cut:
        meters.utilisation.sample(handle)
    measured = Measured() if is_cut else meters.utilisation.take()
    memory = read_memory(handle)
    processes = read_processes(handle, measured)
    if sum(each.memory_bytes or 0 for each in processes or ()) > (memory.used or 0):
        memory = read_memory(handle)  # it has grown between both calls, or memory of two processes is the same
    devices = list(mig_devices(handle)) if is_cut else []
    instances = []
    for gi_id, device in devices:
        name, _ = attempt(pynvml.nvmlDeviceGetUUID, device)
        instances.append(read_instance(gi_id, device, name, meters.gpm.read(handle, gi_id, name or "")))
    meters.gpm.keep([(each.gi_id, each.uuid or "") for each in instances])
    return GpuUsage(
        gpu_uuid=uuid,
        memory_total=memory.total,
        memory_reserved=memory.reserved,
        memory_used=memory.used,
        gpu_percent=measured.gpu,
        memory_percent=measured.memory,
        busy_percent=measured.busy,
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
