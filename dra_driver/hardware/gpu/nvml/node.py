"""Read all GPUs of the node through NVML, one at a time, and keep the results of the session."""

import contextlib
from collections.abc import Iterator
from functools import partial

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.call_locks import CallLock, NoAnswerError, Patience, Reads, YieldToWriter
from dra_driver.hardware.gpu.nvml.errors import driver_call, required
from dra_driver.hardware.gpu.nvml.last_values import LastValues
from dra_driver.hardware.gpu.nvml.listings import Listings
from dra_driver.hardware.gpu.nvml.mig import MigFacts, read_facts
from dra_driver.hardware.gpu.nvml.properties import describe_gpu, mode_of
from dra_driver.hardware.gpu.nvml.session import Session


class Known(Struct):
    """Facts that one session has read. Shared by threads: the thread with the GPU's lock replaces whole entries."""

    generation: int = 0
    uuids: dict[int, GpuUuid] = field(default_factory=dict)  # by NVML index; also names GPUs that no longer answer
    facts: dict[GpuUuid, MigFacts] = field(default_factory=dict)
    modes: dict[GpuUuid, bool] = field(default_factory=dict)  # MIG mode at the last read


class Node:
    """Thread-safe, but for ``read`` and ``modes_changed``, which one thread at a time calls."""

    def __init__(self, session: Session, sysfs_root: str, listings: Listings, patience: Patience) -> None:
        self._session = session
        self._sysfs_root = sysfs_root
        self._patience = patience
        self._listings = listings
        self._reads: Reads[Gpu] = Reads()
        self._call_locks: dict[str, CallLock] = {}  # by UUID, or by NVML index before the UUID was read
        self._known = Known()
        self._last: dict[str, LastValues] = {}  # by UUID, "" for the driver; outlives sessions
        self._modes_changed = False
        self._found: frozenset[GpuUuid] = frozenset()  # GPUs of the last read

    def call_lock(self, gpu: str) -> CallLock:
        return self._call_locks.setdefault(gpu, CallLock(gpu, self._patience))

    def knowledge(self, generation: int) -> Known:
        known = self._known
        if known.generation != generation:
            self._known = known = Known(generation)  # two threads may do this at once: one set is read again
        return known

    def facts(self, known: Known, gpu: GpuUuid, handle: pynvml.c_nvmlDevice_t) -> MigFacts:
        """Read once per session, some forty calls, under the GPU's lock; again while they are incomplete."""
        facts = known.facts.get(gpu)
        if facts is None or not facts.complete:
            facts = read_facts(handle)
            known.facts[gpu] = facts = self._values(known, gpu).mig_facts(facts)
        return facts

    def find(self, known: Known, gpu: GpuUuid) -> pynvml.c_nvmlDevice_t:
        """The handle of ``gpu``: first where it was, then everywhere but at GPUs that hang. Raises DeviceLostError."""
        count = driver_call(pynvml.nvmlDeviceGetCount)
        problem: DeviceLostError | None = None
        for index in sorted(range(count), key=lambda index: known.uuids.get(index) != gpu):
            if self._reads.is_stuck(index):
                if known.uuids.get(index) == gpu:
                    problem = DeviceLostError(self.call_lock(gpu).why_stuck())
                continue
            try:
                handle = required(pynvml.nvmlDeviceGetHandleByIndex, index)
                if required(pynvml.nvmlDeviceGetUUID, handle) == gpu:
                    known.uuids[index] = gpu
                    return handle
            except DeviceLostError as error:
                if known.uuids.get(index) == gpu:
                    problem = error
        if problem is not None:
            raise DeviceLostError(f"GPU {gpu}: {problem}") from problem
        raise DeviceLostError(
            f"GPU {gpu} is not on this node; see XID messages in the node's kernel log", reason="GpuNotFound"
        )

    @contextlib.contextmanager
    def reading(self, generation: int, index: int) -> Iterator[None]:
        """The lock of the GPU at ``index``. Raises YieldToWriter if it is taken or the GPU hangs."""
        if self._reads.is_stuck(index):
            raise YieldToWriter
        with self.call_lock(_label(self.knowledge(generation), index)).read():
            yield

    @contextlib.contextmanager
    def opened(self, known: Known, index: int) -> Iterator[tuple[GpuUuid, pynvml.c_nvmlDevice_t]]:
        """UUID and handle of the GPU at ``index``, under its lock. The caller uses the session. Raises DeviceLostError,
        YieldToWriter while the GPU is being changed, and DriverUnavailableError."""
        for _ in range(3):
            label = _label(known, index)
            with self.call_lock(label).read():
                handle = required(pynvml.nvmlDeviceGetHandleByIndex, index)
                uuid = GpuUuid(required(pynvml.nvmlDeviceGetUUID, handle))
                if uuid == label:
                    yield uuid, handle
                    return
            known.uuids[index] = uuid
        raise DeviceLostError(
            f"the GPU at NVML index {index} had another UUID at each of three reads; see the node's kernel log"
        )

    def is_whole(self, generation: int, gpu: GpuUuid) -> bool:
        return self._known.generation == generation and gpu in self._found and not self._known.modes.get(gpu, False)

    def hangs(self, known: Known, index: int) -> bool:
        return self._hangs(index, _label(known, index))

    def is_stuck(self, index: int) -> bool:
        return self._reads.is_stuck(index)

    def modes_changed(self) -> bool:
        """Return whether the last read found other MIG modes, or GPUs with MIG, than the read before."""
        return self._modes_changed

    def read(self, generation: int, covered: frozenset[int]) -> Snapshot:
        """A snapshot of the node. GPUs at the indexes ``covered`` have events. Raises DriverUnavailableError."""
        known = self.knowledge(generation)
        driver = self._values(known, "")
        cuda = driver.read(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        count = driver_call(pynvml.nvmlDeviceGetCount)
        if any(index >= count for index in known.uuids):
            known.uuids.clear()  # a GPU was removed, which changed later indexes
        gpus, left_out = self._sort(known, self._answers(known, count, covered))
        modes = {gpu.uuid: gpu.mig_enabled for gpu in gpus if gpu.mig_capable}
        self._modes_changed, known.modes = modes != known.modes, modes
        return Snapshot(
            driver_version=driver.read(pynvml.nvmlSystemGetDriverVersion),
            nvml_version=driver.read(pynvml.nvmlSystemGetNVMLVersion),
            cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            confidential_compute=mode_of(driver),
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.minor)),
            left_out=tuple(left_out),
        )

    def _answers(self, known: Known, count: int, covered: frozenset[int]) -> dict[int, Gpu | Exception]:
        jobs = []
        for index in range(count):
            is_first = known.uuids.get(index) is None
            limit_s = self._patience.first_look_s if is_first else self._patience.look_s
            jobs.append((index, partial(self._read_gpu, index, known, index in covered), limit_s))
        return self._reads.run(jobs)

    def _sort(self, known: Known, answers: dict[int, Gpu | Exception]) -> tuple[list[Gpu], list[LeftOutGpu]]:
        gpus = {answer.uuid: answer for answer in answers.values() if isinstance(answer, Gpu)}
        self._name_the_only_missing(known, answers, gpus)
        left_out: list[LeftOutGpu] = []
        for index, problem in answers.items():
            if isinstance(problem, Gpu):
                continue
            if not isinstance(problem, DeviceLostError | YieldToWriter | NoAnswerError):
                raise problem  # the driver as a whole, or a mistake of ours
            uuid = known.uuids.get(index)
            if uuid in gpus:  # now at another index
                uuid = None
            label = uuid or f"NVML index {index}"
            hangs = self._hangs(index, label)
            kept = None if uuid is None else self._kept(known, uuid, problem, hangs)
            if kept is not None:
                gpus[kept.uuid] = kept
            else:
                left_out.append(LeftOutGpu(label=label, reason=self._why(label, problem, hangs)))
        self._found = frozenset(gpus)
        return list(gpus.values()), left_out

    def _name_the_only_missing(
        self, known: Known, answers: dict[int, Gpu | Exception], gpus: dict[GpuUuid, Gpu]
    ) -> None:
        """In a new session, one GPU that fails at its first read and one that is missed must be the same."""
        unnamed = [index for index, one in answers.items() if not isinstance(one, Gpu) and index not in known.uuids]
        missed = self._found - gpus.keys() - set(known.uuids.values())
        if len(unnamed) == len(missed) == 1:
            known.uuids[unnamed[0]] = next(iter(missed))

    def _hangs(self, index: int, label: str) -> bool:
        """Return whether a read of the GPU or a change has not returned for so long that it hangs."""
        return self.call_lock(label).is_stuck() or self._reads.stuck_s(index) >= self._patience.stuck_s

    def _kept(self, known: Known, uuid: GpuUuid, problem: Exception, hangs: bool) -> Gpu | None:
        """Return the last description of a GPU that was not read, None to exclude it."""
        values = self._values(known, uuid)
        if isinstance(problem, DeviceLostError):
            return values.kept_gpu(problem)
        return None if hangs else values.gpu

    def _why(self, label: str, problem: Exception, hangs: bool) -> str:
        if isinstance(problem, DeviceLostError):
            return str(problem)
        if hangs:
            return self.call_lock(label).why_stuck()
        return f"GPU {label} has not been read yet: NVML has not answered in time"

    def _read_gpu(self, index: int, known: Known, has_events: bool) -> Gpu:
        """Raises as ``opened``."""
        with self._session.use(known.generation, joins=True), self.opened(known, index) as (uuid, handle):
            values = self._values(known, uuid)
            token = self._listings.token(uuid, known.generation)
            due = self._listings.is_due(uuid, token, has_events=has_events)
            facts = partial(self.facts, known, uuid, handle)
            proceed = self.call_lock(uuid).give_way if values.gpu is not None else None
            values.gpu = gpu = describe_gpu(
                handle, uuid, values, facts, self._sysfs_root, list_instances=due, proceed=proceed
            )
            if due and gpu.mig_enabled:
                self._listings.listed(uuid, token)
            return gpu

    def _values(self, known: Known, gpu: str) -> LastValues:
        values = self._last.setdefault(gpu, LastValues(gpu))
        values.renew(known.generation)
        return values


def _label(known: Known, index: int) -> str:
    return known.uuids.get(index) or f"NVML index {index}"
