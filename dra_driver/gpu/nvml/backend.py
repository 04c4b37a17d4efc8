"""Real GPUs, read and changed through NVML (libnvidia-ml.so.1).

NVML handles never leave this package. They are looked up again for each read and each change, by index and not by
UUID: a lookup by UUID wakes other GPUs and takes seconds on a busy node, a handle is invalid after its session, and a
GPU that changed its MIG mode or fell off the bus may get another index when it is bound again.

The strings for brand, architecture and addressing mode are those that NVIDIA's DRA driver publishes (go-nvlib's names),
so that device classes and CEL expressions written for it keep working.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pynvml

from dra_driver.errors import DeviceLostError, ResetRequiredError
from dra_driver.gpu import topology
from dra_driver.gpu.backend import ComputeMode
from dra_driver.gpu.library import find_library
from dra_driver.gpu.nvml import control
from dra_driver.gpu.nvml.errors import driver_call, optional, required
from dra_driver.gpu.nvml.events import MigEvents
from dra_driver.gpu.nvml.mig import read_instances
from dra_driver.gpu.nvml.profiles import MigFacts, read_facts
from dra_driver.gpu.nvml.session import Session
from dra_driver.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import ComputeInstance, MigInstance

__all__ = ["NvmlBackend", "find_library"]

LOCK_TIMEOUT_S = 60.0  # a change of a GPU takes seconds; one that takes longer hangs
MODE_TIMEOUT_S = 10.0  # from NVML's success until the mode reads back, while the GPU is bound again
MODE_PAUSE_S = 0.1

BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "VPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "VCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "VWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    13: "Rubin",  # NVML_DEVICE_ARCH_RUBIN, by number because pynvml has it only from 13.610 on
}
ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}  # NVML_DEVICE_ADDRESSING_MODE_*


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
        self, library_path: str | None = None, sysfs_root: str = "/sys", *, driver_root: str | None = None
    ) -> None:
        """Use the library at ``library_path``, else the one below ``driver_root``, else what the dynamic linker finds.

        Every new session searches again, so a driver that is installed or upgraded later is found. The dynamic linker
        searches when there is no driver root, or when it is ``/``, this process' own file system.
        """
        self._sysfs_root = sysfs_root
        self._session = Session(library_path, driver_root)
        self._events = MigEvents(self._session)
        self._looking = threading.Lock()  # one read at a time; acquired before the session and before a GPU's lock
        self._locks: dict[str, threading.Lock] = {}  # by UUID: one read or change of that GPU at a time
        self._known = _Known()

    def open(self) -> None:
        """See ``Backend.open``."""
        self._session.open()

    def close(self) -> None:
        """See ``Backend.close``. Waits for running calls."""
        self._session.close()

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
        """Read once per session: about forty calls with constant results. The caller holds the GPU's lock."""
        facts = known.facts.get(gpu)
        if facts is None or not facts.complete:
            known.facts[gpu] = facts = read_facts(handle, _memory_bytes(handle))
        return facts

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
        cuda = optional("nvmlSystemGetCudaDriverVersion_v2", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        if any(index >= count for index in known.uuids):
            known.uuids.clear()  # a GPU was removed and the others moved up
        gpus: list[Gpu] = []
        left_out: list[LeftOutGpu] = []
        for index in range(count):
            try:
                gpus.append(self._read_gpu(index, known))
            except DeviceLostError as error:
                label = known.uuids.get(index, f"NVML index {index}")
                left_out.append(LeftOutGpu(label=label, reason=str(error)))
        self._remember_modes(known, gpus)
        return Snapshot(
            driver_version=optional("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.minor)),
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
                    return self._describe(handle, uuid, known)
            known.uuids[index] = uuid
        raise DeviceLostError(
            f"the GPU at NVML index {index} had another UUID at each of three reads; see the node's kernel log"
        )

    def _describe(self, handle: pynvml.c_nvmlDevice_t, uuid: GpuUuid, known: _Known) -> Gpu:
        minor = required("nvmlDeviceGetMinorNumber", partial(pynvml.nvmlDeviceGetMinorNumber, handle))
        brand = optional("nvmlDeviceGetBrand", partial(pynvml.nvmlDeviceGetBrand, handle))
        architecture = optional("nvmlDeviceGetArchitecture", partial(pynvml.nvmlDeviceGetArchitecture, handle))
        addressing = optional("nvmlDeviceGetAddressingMode", partial(pynvml.nvmlDeviceGetAddressingMode, handle))
        pci_bus_id = optional("nvmlDeviceGetPciInfo_v3", lambda: _sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle)))
        pcie_root, numa_node = topology.read(pci_bus_id, self._sysfs_root) if pci_bus_id else (None, None)
        mig_mode = optional("nvmlDeviceGetMigMode", partial(pynvml.nvmlDeviceGetMigMode, handle))
        facts = None if mig_mode is None else self._facts(known, uuid, handle)
        mig_enabled = mig_mode is not None and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        return Gpu(
            uuid=uuid,
            minor=minor,
            product_name=optional("nvmlDeviceGetName", partial(pynvml.nvmlDeviceGetName, handle)),
            brand=None if brand is None else BRANDS.get(brand, "Unknown"),
            architecture=None if architecture is None else ARCHITECTURES.get(architecture, "Unknown"),
            cuda_compute_capability=optional(
                "nvmlDeviceGetCudaComputeCapability", partial(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
            ),
            memory_bytes=_memory_bytes(handle),
            pci_bus_id=pci_bus_id,
            pcie_root=pcie_root,
            numa_node=numa_node,
            addressing_mode=None if addressing is None else ADDRESSING_MODES.get(addressing),
            mig_capable=facts is not None,
            mig_enabled=mig_enabled,
            mig_resetless=None if facts is None else facts.resetless,
            mig_profiles=() if facts is None else facts.profiles,
            mig_instances=read_instances(handle, facts) if facts is not None and mig_enabled else (),
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


def _memory_bytes(handle: pynvml.c_nvmlDevice_t) -> int | None:
    return optional("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _sysfs_address(info: pynvml.nvmlPciInfo_t) -> str:
    """``0000:65:00.0``: NVML prints a domain of eight digits in upper case, sysfs at least four in lower case."""
    bus_id = info.busId
    domain, _, rest = (bus_id.decode("ascii") if isinstance(bus_id, bytes) else bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
