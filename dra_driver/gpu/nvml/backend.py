"""Real GPUs, read and changed through NVML (libnvidia-ml.so.1).

NVML handles never leave this package. They are looked up again for each read and each change, by index and not by
UUID: a lookup by UUID wakes other GPUs and takes seconds on a busy node, a handle is invalid after its session, and a
GPU that changed its MIG mode or fell off the bus may get another index when it is bound again.

Trouble with one property or at one read never withdraws a GPU: see ``last_values.py``.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pynvml

from dra_driver.driver_root.search import find_library
from dra_driver.errors import DeviceLostError, ResetRequiredError
from dra_driver.gpu.backend import DETACH_TIMEOUT_S, ComputeMode
from dra_driver.gpu.nvml import control
from dra_driver.gpu.nvml.device_files import open_device_files
from dra_driver.gpu.nvml.errors import driver_call, required
from dra_driver.gpu.nvml.events import MigEvents
from dra_driver.gpu.nvml.last_values import LastValues
from dra_driver.gpu.nvml.mig import read_instances
from dra_driver.gpu.nvml.profiles import MigFacts, read_facts
from dra_driver.gpu.nvml.properties import describe_gpu
from dra_driver.gpu.nvml.session import Session
from dra_driver.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import ComputeInstance, MigInstance

__all__ = ["NvmlBackend", "find_library"]

log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0  # a change of a GPU takes seconds; one that takes longer hangs
MODE_TIMEOUT_S = 10.0  # from NVML's success until the mode reads back, while the GPU is bound again
MODE_PAUSE_S = 0.1


@dataclass(slots=True)
class _Known:
    """Facts that one session has read. Shared by threads: the holder of the GPU's lock replaces whole entries."""

    generation: int = 0
    uuids: dict[int, GpuUuid] = field(default_factory=dict)  # by NVML index; also names GPUs that no longer answer
    facts: dict[GpuUuid, MigFacts] = field(default_factory=dict)
    modes: dict[GpuUuid, bool] = field(default_factory=dict)  # MIG mode at the last read


class NvmlBackend:
    """A ``backend.GpuBackend`` over ``libnvidia-ml.so.1``. Thread-safe: one call per GPU at a time, GPUs in parallel.

    Open at most one per process, because pynvml keeps the library in a global variable. A session holds the device
    files open, so an administrator who changes the MIG mode by hand has to stop this process first.
    """

    def __init__(
        self,
        library_path: str | None = None,
        sysfs_root: str = "/sys",
        *,
        driver_root: str | Callable[[], str] | None = None,
    ) -> None:
        """Use the library at ``library_path``, else the one below ``driver_root``, else what the dynamic linker finds.

        ``driver_root`` may be a function that finds it, and raises DriverUnavailableError.
        Every new session searches again, so a driver that is installed or upgraded later is found. The dynamic linker
        searches when there is no driver root, or when it is ``/``, this process' own file system.
        """
        self._sysfs_root = sysfs_root
        self._session = Session(library_path, driver_root)
        self._events = MigEvents(self._session)
        self._looking = threading.Lock()  # one read at a time; acquired before the session and before a GPU's lock
        self._locks: dict[str, threading.Lock] = {}  # by UUID: one read or change of that GPU at a time
        self._known = _Known()
        self._last: dict[str, LastValues] = {}  # by UUID, "" for the driver; outlives sessions

    def open(self) -> None:
        """See ``Backend.open``."""
        self._session.open()

    def close(self) -> None:
        """See ``Backend.close``. Waits for running calls."""
        self._session.close()

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """See ``Detachable.detach``. NVML's own library stays loaded, which keeps no device file open."""
        if not self._session.detach(reason, timeout_s):
            log.warning("an NVML call has not returned, the GPUs stay open", extra={"timeout_s": timeout_s})
            return False
        left = open_device_files()
        if left:
            log.warning("device files are open after the end of the NVML session", extra={"files": " ".join(left)})
        return not left

    def reattach(self) -> None:
        """See ``Detachable.reattach``."""
        self._session.reattach()

    @property
    def detached(self) -> str | None:
        """See ``Detachable.detached``."""
        return self._session.detached

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. Blocks as long as NVML does: seconds at the first read without persistence mode,
        and while a GPU is being changed."""
        with self._looking, self._session.use() as generation:
            return self._read(self._knowledge(generation))

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``. Also True when a GPU was lost; False at once when ``close`` is called."""
        return self._events.wait(timeout_s)

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """See ``GpuControl.mig_mode``."""
        with self._locked_handle(gpu) as (_, handle):
            return control.mig_mode(handle, gpu)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """See ``GpuControl.set_mig_mode``. Also raises GpuBusyError when instances exist and it is switched off."""
        with self._events.paused(), self._locked_handle(gpu) as (known, handle):
            if control.mig_mode(handle, gpu) == enabled:
                return
            instances = read_instances(handle, self._facts(known, gpu, handle)) if not enabled else ()
            control.set_mig_mode(handle, gpu, enabled, instances)
            self._events.renew()
            self._await_mode(known, gpu, enabled)

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """See ``GpuControl.mig_instances``."""
        with self._locked_handle(gpu) as (known, handle):
            if not control.mig_mode(handle, gpu):
                return ()
            return read_instances(handle, self._facts(known, gpu, handle))

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """See ``GpuControl.create_gpu_instance``."""
        with self._locked_handle(gpu) as (known, handle):
            facts = self._facts(known, gpu, handle)
            return control.create_gpu_instance(handle, gpu, facts, profile_id, start)

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """See ``GpuControl.create_compute_instance``. DeviceLostError when the GPU instance does not exist."""
        with self._locked_handle(gpu) as (known, handle):
            return control.create_compute_instance(handle, gpu, self._facts(known, gpu, handle), gi_id)

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See ``GpuControl.destroy_compute_instance``."""
        with self._locked_handle(gpu) as (_, handle):
            control.destroy_compute_instance(handle, gpu, gi_id, ci_id)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See ``GpuControl.destroy_gpu_instance``. About a second on hardware."""
        with self._locked_handle(gpu) as (_, handle):
            control.destroy_gpu_instance(handle, gpu, gi_id)

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See ``GpuControl.compute_mode``."""
        with self._locked_handle(gpu) as (_, handle):
            return control.compute_mode(handle)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See ``GpuControl.set_compute_mode``. MigUnsupportedError while MIG mode is on."""
        with self._locked_handle(gpu) as (_, handle):
            control.set_compute_mode(handle, gpu, mode)

    def _knowledge(self, generation: int) -> _Known:
        known = self._known
        if known.generation != generation:
            self._known = known = _Known(generation)  # two threads may do this at once: one set is read again
        return known

    @contextlib.contextmanager
    def _locked(self, gpu: str) -> Iterator[None]:
        lock = self._locks.setdefault(gpu, threading.Lock())
        if not lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise DeviceLostError(
                f"GPU {gpu} is busy with an NVML call that has not returned for {LOCK_TIMEOUT_S:.0f} s; "
                "see XID messages in the node's kernel log"
            )
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _locked_handle(self, gpu: GpuUuid) -> Iterator[tuple[_Known, pynvml.c_nvmlDevice_t]]:
        """The GPU's handle, with the GPU's lock held. Raises DeviceLostError when the GPU is missing."""
        with self._session.use() as generation, self._locked(gpu):
            known = self._knowledge(generation)
            yield known, _find(known, gpu)

    def _facts(self, known: _Known, gpu: GpuUuid, handle: pynvml.c_nvmlDevice_t) -> MigFacts:
        """Read once per session: about forty calls with constant results. The caller holds the GPU's lock.

        When not all can be read, the last complete facts are used, and the next call reads again.
        """
        facts = known.facts.get(gpu)
        if facts is None or not facts.complete:
            facts = read_facts(handle)
            known.facts[gpu] = facts = self._values(known, gpu).mig_facts(facts)
        return facts

    def _values(self, known: _Known, gpu: str) -> LastValues:
        values = self._last.setdefault(gpu, LastValues(gpu))
        values.renew(known.generation)
        return values

    def _await_mode(self, known: _Known, gpu: GpuUuid, enabled: bool) -> None:
        deadline = time.monotonic() + MODE_TIMEOUT_S
        while True:
            try:
                handle = _find(known, gpu)
                if control.mig_mode(handle, gpu) == enabled:
                    return
                if control.revert_pending_mode(handle):
                    raise ResetRequiredError(
                        f"switching MIG mode of GPU {gpu} {'on' if enabled else 'off'} failed: it needs a GPU "
                        "reset, and was reverted; drain the node, then use nvidia-smi -mig and --gpu-reset"
                    )
            except DeviceLostError:  # being bound again
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise DeviceLostError(
                    f"MIG mode of GPU {gpu} is not {'on' if enabled else 'off'} {MODE_TIMEOUT_S:.0f} s after NVML "
                    "reported success; see XID messages in the node's kernel log"
                )
            time.sleep(MODE_PAUSE_S)

    def _read(self, known: _Known) -> Snapshot:
        driver = self._values(known, "")
        cuda = driver.read("nvmlSystemGetCudaDriverVersion_v2", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        if any(index >= count for index in known.uuids):
            known.uuids.clear()  # a GPU was removed and the others moved up
        gpus: dict[GpuUuid, Gpu] = {}
        failed: dict[int, DeviceLostError] = {}
        for index in range(count):
            try:
                gpu = self._read_gpu(index, known)
                gpus[gpu.uuid] = gpu
            except DeviceLostError as error:
                failed[index] = error
        left_out: list[LeftOutGpu] = []
        for index, problem in failed.items():
            uuid = known.uuids.get(index)
            if uuid in gpus:  # now at another index
                uuid = None
            kept = None if uuid is None else self._values(known, uuid).kept_gpu(problem)
            if kept is not None:
                gpus[kept.uuid] = kept
            else:
                left_out.append(LeftOutGpu(label=uuid or f"NVML index {index}", reason=str(problem)))
        self._remember_modes(known, list(gpus.values()))
        return Snapshot(
            driver_version=driver.read("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(sorted(gpus.values(), key=lambda gpu: gpu.minor)),
            left_out=tuple(left_out),
        )

    def _remember_modes(self, known: _Known, gpus: list[Gpu]) -> None:
        modes = {gpu.uuid: gpu.mig_enabled for gpu in gpus if gpu.mig_capable}
        if modes != known.modes:
            known.modes = modes
            self._events.renew()

    def _read_gpu(self, index: int, known: _Known) -> Gpu:
        """The GPU at ``index``, read under the lock of the UUID that was there before: a GPU does not answer while its
        MIG mode changes, and must be waited for instead of being left out."""
        for _ in range(3):
            label = known.uuids.get(index, "")
            with self._locked(label):
                handle = required("nvmlDeviceGetHandleByIndex_v2", partial(pynvml.nvmlDeviceGetHandleByIndex, index))
                uuid = GpuUuid(required("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, handle)))
                if uuid == label:
                    values = self._values(known, uuid)
                    facts = partial(self._facts, known, uuid, handle)
                    values.gpu = gpu = describe_gpu(handle, uuid, values, facts, self._sysfs_root)
                    return gpu
            known.uuids[index] = uuid
        raise DeviceLostError(
            f"the GPU at NVML index {index} had another UUID at each of three reads; see the node's kernel log"
        )


def _find(known: _Known, gpu: GpuUuid) -> pynvml.c_nvmlDevice_t:
    """The handle of ``gpu`` at its present index: first where it was last, then everywhere."""
    count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
    problem: DeviceLostError | None = None
    for index in sorted(range(count), key=lambda index: known.uuids.get(index) != gpu):
        try:
            handle = required("nvmlDeviceGetHandleByIndex_v2", partial(pynvml.nvmlDeviceGetHandleByIndex, index))
            if required("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, handle)) == gpu:
                known.uuids[index] = gpu
                return handle
        except DeviceLostError as error:
            if known.uuids.get(index) == gpu:
                problem = error
    if problem is not None:
        raise DeviceLostError(f"GPU {gpu}: {problem}") from problem
    raise DeviceLostError(f"GPU {gpu} is not on this node; see XID messages in the node's kernel log")
