"""The state file behind ``nvml.c``: what GPUs there are and which calls fail, changed while other processes look at it.

Owns the byte layout (in step with the C structures, see ``State.check``) and the translation of a simulated node into
NVML's codes. Extended by adding fields at the end of a structure in both files.
"""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.gpu.simulated_spec import SimulatedGpu, SimulatedNode
from dra_driver.model.gpu import Snapshot

ENVIRONMENT = "FAKE_NVML_STATE"
MAX_GPUS, MAX_FAULTS = 64, 32
MAGIC, VERSION = 0x4C4D564E, 1
ABSENT = -1

# Codes of nvml.h (nvmlReturn_t) that tests inject.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 3, 4, 9, 13
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999

# From the names that NVIDIA's driver publishes to nvmlBrandType_t and nvmlDeviceArchitecture_t.
BRANDS = {"Quadro": 1, "Tesla": 2, "NVS": 3, "GeForce": 5, "Titan": 6, "QuadroRTX": 12, "NvidiaRTX": 13, "Nvidia": 14}
ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
ADDRESSING_MODES = {"None": 0, "HMM": 1, "ATS": 2}


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("memory_bytes", ctypes.c_int64),
        ("minor", ctypes.c_int32),
        ("brand", ctypes.c_int32),
        ("architecture", ctypes.c_int32),
        ("capability_major", ctypes.c_int32),
        ("capability_minor", ctypes.c_int32),
        ("addressing_mode", ctypes.c_int32),
        ("mig_current", ctypes.c_int32),
        ("mig_pending", ctypes.c_int32),
        ("pci_device_id", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("latency_ms", ctypes.c_uint32),
        ("left", ctypes.c_uint32),
    )


class _State(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 80),
        ("gpus", _Gpu * MAX_GPUS),
        ("faults", _Fault * MAX_FAULTS),
    )


class State:
    """A handle on one state file, of which there may be many. Every change is one step for the processes that look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ctypes.sizeof(_State))
        self._state = _State.from_buffer(self._map)

    @classmethod
    def create(cls, path: Path, node: SimulatedNode | Snapshot) -> "State":
        """A new file at ``path`` with the GPUs of ``node`` and no faults."""
        path.write_bytes(bytes(_State(magic=MAGIC, version=VERSION)))
        state = cls(path)
        state.set_node(node)
        return state

    def close(self) -> None:
        """Let go of the file; it stays."""
        del self._state
        self._map.close()
        self._file.close()

    def check(self, library: Path) -> None:
        """Fail when ``library`` was built with another layout than this one."""
        size = ctypes.CDLL(str(library)).fakeNvmlStateSize
        size.restype = ctypes.c_size_t
        assert size() == ctypes.sizeof(_State), "nvml.c and state.py disagree about the layout"

    def set_node(self, node: SimulatedNode | Snapshot) -> None:
        """Replace all GPUs, in order of minor, as a driver does that enumerates the PCI bus again."""
        gpus = node.gpus if isinstance(node, SimulatedNode) else tuple(SimulatedGpu(gpu=gpu) for gpu in node.gpus)
        major, minor = node.cuda_driver_version or (0, 0)
        with self._locked() as state:
            state.driver_version = (node.driver_version or "").encode()
            state.cuda_version = major * 1000 + minor * 10
            state.gpu_count = len(gpus)
            for index, item in enumerate(gpus):
                state.gpus[index] = _wire_gpu(item)

    def lose(self, index: int, lost: bool = True) -> None:
        """The GPU at NVML index ``index`` answers every call with GpuIsLost, or answers again."""
        with self._locked() as state:
            state.gpus[index].lost = int(lost)

    def scramble(self, index: int, *fields: str) -> None:
        """Texts of the GPU at NVML index ``index`` are no UTF-8 any more: ``uuid``, ``name`` or ``bus_id``."""
        with self._locked() as state:
            for field in fields:
                setattr(state.gpus[index], field, b"\xff\xfe?")

    def inject(self, function: str, code: int, *, device: int = ABSENT, latency_ms: int = 0, times: int = 0) -> None:
        """Answer ``function`` (its exported name) with ``code``, for one NVML index or all, ``times`` calls or always.

        Code 13 looks to pynvml like a symbol that the library lacks. Code 0 with a latency only makes the call slow.
        """
        with self._locked() as state:
            free = next(fault for fault in state.faults if not fault.function)
            free.device, free.code, free.latency_ms, free.left = device, code, latency_ms, times
            free.function = function.encode()

    def clear_faults(self) -> None:
        """Forget all injected faults; lost GPUs stay lost."""
        with self._locked() as state:
            state.faults = (_Fault * MAX_FAULTS)()

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._state
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def write_sysfs(root: Path, node: SimulatedNode | Snapshot) -> Path:
    """A ``/sys`` below ``root`` in which every GPU of ``node`` hangs where the node says; returns ``root``."""
    links = root / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    gpus = [item.gpu if isinstance(item, SimulatedGpu) else item for item in node.gpus]
    for gpu in gpus:
        if gpu.pci_bus_id is None:
            continue
        above = f"devices/{gpu.pcie_root}/0000:00:01.0" if gpu.pcie_root else "devices/platform"
        device = root / above / gpu.pci_bus_id
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
        link = links / gpu.pci_bus_id
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(device, links))
    return root


def _wire_gpu(item: SimulatedGpu) -> _Gpu:
    gpu = item.gpu
    major, minor = gpu.cuda_compute_capability or (ABSENT, ABSENT)
    return _Gpu(
        uuid=gpu.uuid.encode(),
        name=(gpu.product_name or "").encode(),
        bus_id=f"0000{gpu.pci_bus_id}".upper().encode() if gpu.pci_bus_id else b"",
        memory_bytes=ABSENT if gpu.memory_bytes is None else gpu.memory_bytes,
        minor=gpu.minor,
        brand=ABSENT if gpu.brand is None else BRANDS[gpu.brand],
        architecture=ABSENT if gpu.architecture is None else ARCHITECTURES[gpu.architecture],
        capability_major=major,
        capability_minor=minor,
        addressing_mode=ABSENT if gpu.addressing_mode is None else ADDRESSING_MODES[gpu.addressing_mode],
        mig_current=int(gpu.mig_enabled) if gpu.mig_capable else ABSENT,
        mig_pending=int(gpu.mig_enabled) if gpu.mig_capable else ABSENT,
        lost=int(item.lost is not None),
    )
