"""Real GPUs, read through NVML: the only file that imports ``pynvml``.

Owns the NVML session, its handles and the translation of its errors and codes. Refuses to know what is done with a
snapshot. Handles are asked for anew at each look and never leave this file: they die with the session, and a GPU that
fell off the bus or came back changes the numbering.

Strings of brand, architecture and addressing mode are those that NVIDIA's DRA driver publishes (go-nvlib's names), so
that device classes and CEL written for it keep working.
"""

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

import pynvml

from dra_driver.errors import DeviceLostError, DriverUnavailableError
from dra_driver.gpu import topology
from dra_driver.gpu.library import find_library
from dra_driver.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.model.ids import GpuUuid

__all__ = ["NvmlBackend", "find_library"]

log = logging.getLogger(__name__)
T = TypeVar("T")

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

# Not there: the GPU lacks the property, the driver does not know it, or we may not read it (a MIG parent's memory).
ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
# The whole driver is in trouble: nothing may be concluded about single GPUs. The text is what to do next.
DRIVER_TROUBLE = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVML session is gone; it is opened again",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA kernel module on this node, or wait for the driver container",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or name the folder it is in as the driver root",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "library and kernel module are of different releases: finish the driver upgrade, or reboot the node"
    ),
}
# One GPU is in trouble. The text is what to do next.
GPU_TROUBLE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus: see XID messages in the kernel log, then reset it or reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset it with nvidia-smi --gpu-reset while nothing uses it",
    pynvml.NVML_ERROR_NO_PERMISSION: "this process may not open it: run it as root with access to /dev/nvidia*",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "check the GPU's power cables",
}


class NvmlBackend:
    """A ``backend.Backend`` over ``libnvidia-ml.so.1``. Thread-safe: one NVML call at a time.

    Open at most one per process, because pynvml keeps the library in a global of its own. A session holds the device
    files open, so an administrator who changes the MIG mode by hand has to stop this process first.
    """

    def __init__(
        self, library_path: str | None = None, sysfs_root: str = "/sys", *, driver_root: str | None = None
    ) -> None:
        """Use the library at ``library_path``; else the one below ``driver_root``; else what the dynamic linker finds.

        The search is done whenever a session is opened, so a driver that is installed or upgraded later is found. The
        dynamic linker is asked without a driver root and for the root ``/``, which is our own file system.
        """
        self._library_path = library_path
        self._driver_root = driver_root
        self._sysfs_root = sysfs_root
        self._lock = threading.Lock()  # guards the NVML session, pynvml's globals and the fields below
        self._is_open = False
        self._labels: dict[int, str] = {}  # NVML index -> UUID, to name a GPU that no longer answers

    def open(self) -> None:
        """See ``Backend.open``."""
        with self._lock:
            self._open()

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. Blocks as long as NVML does: seconds at the first look without persistence mode."""
        with self._lock:
            self._open()
            try:
                return self._read()
            except DriverUnavailableError:
                self._close()
                raise

    def close(self) -> None:
        """See ``Backend.close``."""
        with self._lock:
            self._close()

    def _open(self) -> None:
        if self._is_open:
            return
        path = self._library_path
        if path is None and self._driver_root is not None:
            path = find_library(self._driver_root)
            if path is None and self._driver_root != "/":
                raise DriverUnavailableError(
                    f"no libnvidia-ml.so.1 below the driver root {self._driver_root}: install the NVIDIA driver, "
                    "wait for the driver container, or name another driver root"
                )
        _use_library(path)
        # NO_GPUS: a node whose GPUs are all handed to virtual machines still has a working driver.
        _driver_call("nvmlInitWithFlags", lambda: pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS))
        self._is_open = True
        self._labels.clear()

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            log.debug("nvmlShutdown failed", extra={"reason": _describe(error)})
        _use_library(None)

    def _read(self) -> Snapshot:
        cuda = _optional("nvmlSystemGetCudaDriverVersion_v2", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        count = _driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        if any(index >= count for index in self._labels):
            self._labels.clear()  # a GPU was removed and the others moved up
        gpus: list[Gpu] = []
        left_out: list[LeftOutGpu] = []
        for index in range(count):
            try:
                gpu = self._read_gpu(index)
            except DeviceLostError as error:
                label = self._labels.get(index, f"NVML index {index}")
                left_out.append(LeftOutGpu(label=label, reason=str(error)))
            else:
                gpus.append(gpu)
        return Snapshot(
            driver_version=_optional("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.minor)),
            left_out=tuple(left_out),
        )

    def _read_gpu(self, index: int) -> Gpu:
        handle = _required("nvmlDeviceGetHandleByIndex_v2", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        uuid = _required("nvmlDeviceGetUUID", lambda: pynvml.nvmlDeviceGetUUID(handle))
        self._labels[index] = uuid
        minor = _required("nvmlDeviceGetMinorNumber", lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
        brand = _optional("nvmlDeviceGetBrand", lambda: pynvml.nvmlDeviceGetBrand(handle))
        architecture = _optional("nvmlDeviceGetArchitecture", lambda: pynvml.nvmlDeviceGetArchitecture(handle))
        addressing = _optional("nvmlDeviceGetAddressingMode", lambda: pynvml.nvmlDeviceGetAddressingMode(handle))
        mig_mode = _optional("nvmlDeviceGetMigMode", lambda: pynvml.nvmlDeviceGetMigMode(handle))
        pci_bus_id = _optional("nvmlDeviceGetPciInfo_v3", lambda: _sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle)))
        pcie_root, numa_node = topology.read(pci_bus_id, self._sysfs_root) if pci_bus_id else (None, None)
        return Gpu(
            uuid=GpuUuid(uuid),
            minor=minor,
            product_name=_optional("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(handle)),
            brand=None if brand is None else BRANDS.get(brand, "Unknown"),
            architecture=None if architecture is None else ARCHITECTURES.get(architecture, "Unknown"),
            cuda_compute_capability=_optional(
                "nvmlDeviceGetCudaComputeCapability", lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            ),
            memory_bytes=_optional("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            pci_bus_id=pci_bus_id,
            pcie_root=pcie_root,
            numa_node=numa_node,
            addressing_mode=None if addressing is None else ADDRESSING_MODES.get(addressing),
            mig_capable=mig_mode is not None,
            mig_enabled=mig_mode is not None and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        )


def _use_library(path: str | None) -> None:
    """Make pynvml use the library at ``path``, None: search again at the next init.

    pynvml remembers the library and every symbol it has resolved; without clearing both, calls would still go to the
    library of the driver that was upgraded meanwhile. Still needed with nvidia-ml-py 13.615.
    """
    try:
        library = None if path is None else ctypes.CDLL(path)
    except OSError as error:
        raise DriverUnavailableError(f"cannot load the NVML library {path}: {error}; reinstall the driver") from error
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library


def _required(function: str, call: Callable[[], T]) -> T:
    """The answer of one call that a GPU cannot do without. Raises DeviceLostError or DriverUnavailableError."""
    answer = _optional(function, call, absent=frozenset())
    if answer is None:
        raise DeviceLostError(
            f"{function} failed: the driver's library is too old for it, or its answer makes no sense; "
            "upgrade the driver, and see XID messages in the node's kernel log"
        )
    return answer


def _optional(function: str, call: Callable[[], T], absent: frozenset[int] = ABSENT) -> T | None:
    """As ``_required``, but None for a property that is not there: an NVML code in ``absent``, or no readable text."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in absent:
            return None
        _raise_translated(function, error)
    except pynvml.NVMLLibraryMismatchError:  # not an NVMLError: a wrapper found only an older form of the symbol
        return None
    except ValueError as error:
        # A damaged board's name need not be UTF-8, nor its bus id a number; its neighbours are read all the same.
        log.debug("an answer of NVML cannot be read", extra={"function": function, "reason": str(error)})
        return None


def _driver_call(function: str, call: Callable[[], T]) -> T:
    """The answer of one call about the driver as a whole. Raises DriverUnavailableError."""
    try:
        return call()
    except pynvml.NVMLError as error:
        raise _unavailable(function, error) from error


def _raise_translated(function: str, error: pynvml.NVMLError) -> NoReturn:
    if error.value in DRIVER_TROUBLE:
        raise _unavailable(function, error) from error
    advice = GPU_TROUBLE.get(error.value, "see XID messages in the node's kernel log")
    raise DeviceLostError(f"{function} failed: {_describe(error)}; {advice}") from error


def _unavailable(function: str, error: pynvml.NVMLError) -> DriverUnavailableError:
    advice = DRIVER_TROUBLE.get(error.value, "see the node's kernel log")
    return DriverUnavailableError(f"the NVIDIA driver cannot be used: {function} failed: {_describe(error)}; {advice}")


def _describe(error: pynvml.NVMLError) -> str:
    return f"{error} (NVML code {error.value})"


def _sysfs_address(info: pynvml.nvmlPciInfo_t) -> str:
    """``0000:65:00.0``: NVML prints a domain of eight digits in upper case, sysfs at least four in lower case."""
    bus_id = info.busId
    domain, _, rest = (bus_id.decode("ascii") if isinstance(bus_id, bytes) else bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
