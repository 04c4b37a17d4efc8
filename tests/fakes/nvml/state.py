"""The state file behind the C library: what GPUs there are, how they are cut, and which calls fail.

Has the byte layout (in step with ``fake.h``, see ``State.check``) and the translation of a simulated node into NVML's
codes; ``state_mig.py`` has that of MIG. The file is changed while other processes look at it.
"""

import ctypes
import fcntl
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.gpu.simulated.spec import NodeSpec, SimulatedGpu
from dra_driver.model.fabric import FabricState
from dra_driver.model.gpu import Snapshot
from dra_driver.model.mig import ComputeInstance, MigInstance
from tests.fakes.nvml import state_mig

ENVIRONMENT = "FAKE_NVML_STATE"
MAX_GPUS, MAX_FAULTS, MAX_COUNTERS, MAX_EVENTS = 64, 32, 128, 64
MAGIC, VERSION = 0x4C4D564E, 3
MIG_CONFIG_CHANGE, UNKNOWN_ID = 0x100, 0xFFFFFFFF
ABSENT = -1

# Codes of nvml.h (nvmlReturn_t) that tests inject.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 9, 13
TIMEOUT = 10
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN = 15, 16, 18, 19, 23, 999
# Calls about a GPU that nvml.h documents with NVML_ERROR_NOT_SUPPORTED, of those that this project makes.
NOT_ALWAYS_SUPPORTED = (
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetComputeMode",
)
VGPU_GUEST = 2  # nvmlGpuVirtualizationMode_t
FABRIC_NOT_SUPPORTED, FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 0, 1, 2, 3  # nvmlGpuFabricState_t
FABRIC_STATES = dict(zip(FabricState, (FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED), strict=True))
FOR_EVER = 0xFFFFFFFF  # of a number of calls
PRETEND = 1000  # as mode_status: SetMigMode says that it is done, and leaves it pending

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
        ("reserved_bytes", ctypes.c_int64),
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
        ("identity", ctypes.c_uint32),
        ("forgets", ctypes.c_uint32),
        ("unbound", ctypes.c_uint32),
        ("resetless", ctypes.c_int32),
        ("virtualization", ctypes.c_int32),
        ("compute_mode", ctypes.c_int32),
        ("mode_status", ctypes.c_uint32),
        ("clients", ctypes.c_uint32),
        ("profiles_need_mode", ctypes.c_uint32),
        ("first_refusals", ctypes.c_uint32),
        ("fabric_state", ctypes.c_int32),
        ("fabric_status", ctypes.c_int32),
        ("fabric_probing", ctypes.c_uint32),
        ("fabric_reprobe", ctypes.c_uint32),
        ("binding", ctypes.c_uint32),
        ("serial", ctypes.c_uint32),
        ("profile_count", ctypes.c_uint32),
        ("profiles", state_mig.Profiles),
        ("gis", state_mig.Gi * state_mig.MAX_GIS),
        ("mig_uuids", state_mig.Uuids),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("latency_ms", ctypes.c_uint32),
        ("left", ctypes.c_uint32),
        ("skip", ctypes.c_uint32),
    )


class _Counter(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("calls", ctypes.c_uint32))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("identity", ctypes.c_uint32),
        ("binding", ctypes.c_uint32),
        ("gi", ctypes.c_uint32),
        ("ci", ctypes.c_uint32),
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
        ("counters", _Counter * MAX_COUNTERS),
        ("event_count", ctypes.c_uint32),
        ("events", _Event * MAX_EVENTS),
        ("identities", ctypes.c_uint32),
        ("releases", ctypes.c_uint32),
    )


class State:
    """A handle on one state file, of which there may be many. Every change is one step for the processes that look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ctypes.sizeof(_State))
        self._state = _State.from_buffer(self._map)

    @classmethod
    def create(cls, path: Path, node: NodeSpec | Snapshot) -> "State":
        """A new file at ``path`` with the GPUs of ``node`` and no faults."""
        path.write_bytes(bytes(_State(magic=MAGIC, version=VERSION)))
        state = cls(path)
        state.set_node(node)
        return state

    def close(self) -> None:
        """Unmap the file, which stays."""
        del self._state
        self._map.close()
        self._file.close()

    def check(self, library: Path) -> None:
        """Fail when ``library`` was built with another layout than this one."""
        size = ctypes.CDLL(str(library)).fakeNvmlStateSize
        size.restype = ctypes.c_size_t
        assert size() == ctypes.sizeof(_State), "nvml.c and state.py disagree about the layout"

    def set_node(self, node: NodeSpec | Snapshot) -> None:
        """Replace all GPUs, in the order given. An open session does not see new GPUs, and loses removed ones."""
        gpus = node.gpus if isinstance(node, NodeSpec) else tuple(SimulatedGpu(gpu=gpu) for gpu in node.gpus)
        major, minor = node.cuda_driver_version or (0, 0)
        self._add_devices(["nvidiactl", *(f"nvidia{item.gpu.minor}" for item in gpus)])
        with self._locked() as state:
            state.driver_version = (node.driver_version or "").encode()
            state.cuda_version = major * 1000 + minor * 10
            known = {gpu.uuid: gpu.identity for gpu in state.gpus[: state.gpu_count] if not gpu.unbound}
            state.gpu_count = len(gpus)
            for index, item in enumerate(gpus):
                state.gpus[index] = _wire_gpu(item)
                state.gpus[index].identity = known.get(state.gpus[index].uuid) or self._new_identity(state)

    def opened(self) -> set[str]:
        """Names of the device files that any process has open: with none, the kernel module could be removed."""
        found = set()
        for file in self._devices.iterdir():
            with file.open("r+b") as device:
                try:
                    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.add(file.name)
        return found

    @property
    def _devices(self) -> Path:
        return self.path.parent / "dev"

    def _add_devices(self, names: list[str]) -> None:
        self._devices.mkdir(exist_ok=True)
        for name in names:
            (self._devices / name).touch()

    def unbind(self, index: int) -> None:
        """Take the GPU at slot ``index`` from the driver, such as for vfio. ``write_sysfs`` does not follow."""
        with self._locked() as state:
            state.gpus[index].unbound = 1

    def bind(self, index: int) -> None:
        """Give it back. Sessions that are open do not see it."""
        with self._locked() as state:
            state.gpus[index].unbound = 0
            state.gpus[index].identity = self._new_identity(state)

    def _new_identity(self, state: "_State") -> int:
        state.identities += 1
        return int(state.identities)

    def lose(self, index: int, lost: bool = True) -> None:
        """The GPU at NVML index ``index`` answers every call with GpuIsLost, or answers again."""
        with self._locked() as state:
            state.gpus[index].lost = int(lost)

    def scramble(self, index: int, *fields: str) -> None:
        """Texts of the GPU at NVML index ``index`` are no UTF-8 any more: ``uuid``, ``name`` or ``bus_id``."""
        with self._locked() as state:
            for field in fields:
                setattr(state.gpus[index], field, b"\xff\xfe?")

    def inject(
        self, function: str, code: int, *, device: int = ABSENT, latency_ms: int = 0, times: int = 0, skip: int = 0
    ) -> None:
        """Answer ``function`` (its exported name) with ``code``, for one NVML index or all, ``times`` calls or always,
        after ``skip`` calls that succeed.

        Code 13 looks to pynvml like a symbol that the library lacks. Code 0 with a latency only makes the call slow.
        """
        with self._locked() as state:
            free = next(fault for fault in state.faults if not fault.function)
            free.device, free.code, free.latency_ms, free.left, free.skip = device, code, latency_ms, times, skip
            free.function = function.encode()

    def reports_little(self, device: int = ABSENT) -> None:
        """Answer NOT_SUPPORTED wherever nvml.h allows it for a usable GPU, for one GPU or all."""
        for function in NOT_ALWAYS_SUPPORTED:
            self.inject(function, NOT_SUPPORTED, device=device)

    def hang(self, function: str, *, device: int = ABSENT, seconds: float = 30.0, times: int = 1) -> None:
        """The next calls of ``function`` return after ``seconds``, or at ``release``."""
        self.inject(function, 0, device=device, latency_ms=int(seconds * 1000), times=times)

    def release(self) -> None:
        """Let all calls that hang return now."""
        with self._locked() as state:
            state.releases += 1

    def clear_faults(self) -> None:
        """Forget all injected faults; lost GPUs stay lost."""
        with self._locked() as state:
            state.faults = (_Fault * MAX_FAULTS)()

    def calls(self, function: str) -> int:
        """How often ``function`` was called, by all processes."""
        with self._locked() as state:
            return sum(one.calls for one in state.counters if one.function == function.encode())

    def functions(self) -> set[str]:
        """Names of all functions that were called, by all processes."""
        with self._locked() as state:
            return {one.function.decode() for one in state.counters if one.function}

    def configure(self, index: int, **fields: int) -> None:
        """Set numbers of the GPU at NVML index ``index``: ``resetless`` (-1: not told), ``virtualization``,
        ``mode_status`` (what SetMigMode answers), ``clients``, ``profiles_need_mode``, ``mig_pending``,
        ``forgets`` (no persistence mode: the compute mode ends when this process closes the last device file),
        ``first_refusals`` (how often the create of the first GPU instance is IN_USE; FOR_EVER), ``fabric_state``,
        ``fabric_status`` (an nvmlReturn_t), ``fabric_probing`` and ``fabric_reprobe`` (for how many looks the state is
        IN_PROGRESS now, and after the last GPU instance is destroyed)."""
        with self._locked() as state:
            for field, value in fields.items():
                assert hasattr(state.gpus[index], field), field
                setattr(state.gpus[index], field, value)

    def modes(self, index: int) -> tuple[int, int]:
        """Current and pending MIG mode."""
        with self._locked() as state:
            return state.gpus[index].mig_current, state.gpus[index].mig_pending

    def use(self, index: int, gi_id: int, in_use: bool = True) -> None:
        """A process runs in that GPU instance, or has ended."""
        with self._locked() as state:
            self._instance(state, index, gi_id).in_use = int(in_use)

    def subscribers(self, index: int, gi_id: int) -> set[int]:
        """Ids of the processes that have asked for that instance, and so keep others from destroying it."""
        with self._locked() as state:
            return {pid for pid in self._instance(state, index, gi_id).subscribers if pid}

    def foreign_mode(self, index: int, enabled: bool) -> None:
        """An administrator switches MIG mode, with whatever reset it takes. Existing instances are gone afterwards."""
        with self._locked() as state:
            gpu = state.gpus[index]
            self._tell(state, index)
            gpu.mig_current = gpu.mig_pending = int(enabled)
            gpu.binding += 1
            gpu.gis = (state_mig.Gi * state_mig.MAX_GIS)()

    def foreign_create(self, index: int, profile_id: int, start: int, compute: str = "full") -> int:
        """Create an instance as another program, ``compute``: full, partial or none; returns its id. Checks no
        rules."""
        with self._locked() as state:
            gpu = state.gpus[index]
            number, profile = next((n, p) for n, p in enumerate(gpu.profiles) if p.id == profile_id)
            slices = max(p.memory_slices for p in gpu.profiles)
            gi_id: int = slices // profile.memory_slices - 1 + start // profile.memory_slices
            cis = () if compute == "none" else (ComputeInstance(ci_id=0, uuid=None, spans=compute == "full"),)
            made = MigInstance(
                gi_id=gi_id,
                profile_id=profile_id,
                profile_name="",
                start=start,
                size=profile.memory_slices,
                compute=cis,
            )
            slot = next(gi for gi in gpu.gis if not gi.used)
            gpu.serial = state_mig.wire_instance(slot, number, profile, made, gpu.serial + 1)
            self._tell(state, index, gi_id)
            return gi_id

    def foreign_destroy(self, index: int, gi_id: int, ci_id: int | None = None) -> None:
        """Destroy an instance and its content as another program, or only one of its compute instances."""
        with self._locked() as state:
            gi = self._instance(state, index, gi_id)
            if ci_id is None:
                gi.used = 0
            else:
                next(ci for ci in gi.cis if ci.used and ci.id == ci_id).used = 0
            self._tell(state, index, gi_id)

    def count(self, index: int) -> tuple[int, int]:
        """How many GPU and compute instances there are."""
        with self._locked() as state:
            gis = [gi for gi in state.gpus[index].gis if gi.used]
            return len(gis), sum(bool(ci.used) for gi in gis for ci in gi.cis)

    def _instance(self, state: "_State", index: int, gi_id: int) -> state_mig.Gi:
        found: state_mig.Gi = next(gi for gi in state.gpus[index].gis if gi.used and gi.id == gi_id)
        return found

    def _tell(self, state: "_State", index: int, gi_id: int = UNKNOWN_ID) -> None:
        gpu = state.gpus[index]
        event = _Event(MIG_CONFIG_CHANGE, gpu.identity, gpu.binding, gi_id, UNKNOWN_ID)
        state.events[state.event_count % MAX_EVENTS] = event
        state.event_count += 1

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._state
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _wire_gpu(item: SimulatedGpu) -> _Gpu:
    gpu = item.gpu
    major, minor = gpu.cuda_compute_capability or (ABSENT, ABSENT)
    profiles = state_mig.wire_profiles(gpu.mig_profiles) if gpu.mig_profiles else ()
    wired = _Gpu(
        uuid=gpu.uuid.encode(),
        name=(gpu.product_name or "").encode(),
        bus_id=f"0000{gpu.pci_bus_id}".upper().encode() if gpu.pci_bus_id else b"",
        memory_bytes=ABSENT if gpu.memory_bytes is None else gpu.memory_bytes,
        reserved_bytes=ABSENT if gpu.reserved_bytes is None else gpu.reserved_bytes,
        minor=gpu.minor,
        brand=ABSENT if gpu.brand is None else BRANDS[gpu.brand],
        architecture=ABSENT if gpu.architecture is None else ARCHITECTURES[gpu.architecture],
        capability_major=major,
        capability_minor=minor,
        addressing_mode=ABSENT if gpu.addressing_mode is None else ADDRESSING_MODES[gpu.addressing_mode],
        mig_current=int(gpu.mig_enabled) if gpu.mig_capable else ABSENT,
        mig_pending=int(gpu.mig_enabled) if gpu.mig_capable else ABSENT,
        lost=int(item.lost is not None),
        resetless=ABSENT if gpu.mig_resetless is None else int(gpu.mig_resetless),
        fabric_state=ABSENT if gpu.fabric is None else FABRIC_STATES[gpu.fabric.state],
        fabric_status=0 if gpu.fabric is None else gpu.fabric.status,
        profile_count=len(profiles),
        profiles=state_mig.Profiles(*profiles),
    )
    if profiles:
        for gi_id, uuid in enumerate(state_mig.uuids(gpu)):
            wired.mig_uuids[gi_id].value = uuid
    ids = [profile.id for profile in profiles]
    for slot, instance in enumerate(gpu.mig_instances):
        number = ids.index(instance.profile_id)
        wired.serial = state_mig.wire_instance(wired.gis[slot], number, profiles[number], instance, wired.serial + 1)
    return wired
