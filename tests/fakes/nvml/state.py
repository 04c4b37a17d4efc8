"""The state file behind the C library: what GPUs there are, how they are cut, and which calls fail.

Translates a simulated node into NVML's codes; ``layout.py`` has the bytes. Other processes read the file meanwhile.
"""

import ctypes
import fcntl
import mmap
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.core.model.fabric import FabricState
from dra_driver.core.model.gpu import ConfidentialCompute, Gpu, Snapshot
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.gpu.simulated.faults import GpuHealth, links_of, reading_of
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu
from tests.fakes.nvml import layout

ENVIRONMENT = "FAKE_NVML_STATE"
FUTEX, FUTEX_WAKE, EVERYONE = {"x86_64": 202, "aarch64": 98}, 1, 2**31 - 1  # numbers of the system call: asm/unistd.h
_libc = ctypes.CDLL(None, use_errno=True)
MIG_CONFIG_CHANGE, UNKNOWN_ID = 0x100, 0xFFFFFFFF
XID, DOUBLE_BIT_ECC, RECOVERY_ACTION = 0x8, 0x2, 0x8000  # nvmlEventType*
EVENT_TYPES = 0x1 | DOUBLE_BIT_ECC | XID | RECOVERY_ACTION
ABSENT = -1

# Codes of nvml.h (nvmlReturn_t) that tests inject.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 9, 13
TIMEOUT = 10
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN = 15, 16, 18, 19, 23, 999
# Calls about a GPU that nvml.h documents with NVML_ERROR_NOT_SUPPORTED, of those that this project makes.
NOT_ALWAYS_SUPPORTED = frozenset(
    {"Brand", "Architecture", "MemoryInfo", "MemoryInfo_v2", "AddressingMode", "VirtualizationMode", "FieldValues"}
    | {"GpuFabricInfoV", "NvLinkState", "NvLinkRemoteDeviceType", "NvLinkRemotePciInfo_v2", "GpuInstanceProfileInfoV"}
    | {"GpuInstancePossiblePlacements_v2", "SupportedEventTypes", "ComputeMode"}
)  # each after nvmlDeviceGet
VGPU_GUEST = 2  # nvmlGpuVirtualizationMode_t
LINK_TO_GPU, LINK_TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
FABRIC_NOT_SUPPORTED, FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 0, 1, 2, 3  # nvmlGpuFabricState_t
FABRIC_STATES = dict(zip(FabricState, (FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED), strict=True))
FOR_EVER = 0xFFFFFFFF  # of a number of calls
PRETEND = 1000  # as mode_status: SetMigMode says that it is done, and leaves it pending

# From the names that NVIDIA's driver publishes to nvmlBrandType_t and nvmlDeviceArchitecture_t.
BRANDS = {"Quadro": 1, "Tesla": 2, "NVS": 3, "GeForce": 5, "Titan": 6, "QuadroRTX": 12, "NvidiaRTX": 13, "Nvidia": 14}
ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
ADDRESSING_MODES = {"None": 0, "HMM": 1, "ATS": 2}


class State:
    """A handle on one state file, of which there may be many. Every change is one step for the processes that look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ctypes.sizeof(layout.Layout))
        self._state = layout.Layout.from_buffer(self._map)

    @classmethod
    def create(cls, path: Path, node: NodeSpec | Snapshot) -> "State":
        """A new file at ``path`` with the GPUs of ``node`` and no faults."""
        path.write_bytes(bytes(layout.Layout(magic=layout.MAGIC, version=layout.VERSION)))
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
        assert size() == ctypes.sizeof(layout.Layout), "nvml.c and state.py disagree about the layout"

    def set_node(self, node: NodeSpec | Snapshot) -> None:
        """Replace all GPUs, in the order given. An open session does not see new GPUs, and loses removed ones."""
        gpus = node.gpus if isinstance(node, NodeSpec) else tuple(SimulatedGpu(gpu=gpu) for gpu in node.gpus)
        major, minor = node.cuda_driver_version or (0, 0)
        self._add_devices(["nvidiactl", *(f"nvidia{item.gpu.minor}" for item in gpus)])
        with self._locked() as state:
            state.driver_version = (node.driver_version or "").encode()
            state.cuda_version = major * 1000 + minor * 10
            mode = node.confidential_compute
            state.conf_compute = ABSENT if mode is None else int(mode is not ConfidentialCompute.OFF)
            state.conf_devtools = int(mode is ConfidentialCompute.DEVTOOLS)
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

    def _new_identity(self, state: layout.Layout) -> int:
        state.identities += 1
        return int(state.identities)

    def register(self, index: int, cluster: bytes, clique: int) -> None:
        """The GPU at NVML index ``index`` is in that clique of the fabric with that UUID of 16 bytes."""
        with self._locked() as state:
            state.gpus[index].fabric_cluster[:] = cluster
            state.gpus[index].fabric_clique = clique

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
        after ``skip`` calls that succeed. Code 13 looks to pynvml like a missing symbol."""
        with self._locked() as state:
            free = next(fault for fault in state.faults if not fault.function)
            free.device, free.code, free.latency_ms, free.left, free.skip = device, code, latency_ms, times, skip
            free.function = function.encode()

    def reports_little(self, device: int = ABSENT) -> None:
        """Answer NOT_SUPPORTED wherever nvml.h allows it for a usable GPU, for one GPU or all."""
        for function in (*(f"nvmlDeviceGet{name}" for name in NOT_ALWAYS_SUPPORTED), "nvmlDeviceRegisterEvents"):
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
            state.faults = (layout.Fault * layout.MAX_FAULTS)()

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
        IN_PROGRESS now, and after the last GPU instance is destroyed), ``event_types``, ``flood`` (an XID that comes
        without end), ``rows_pending``, ``rows_failed``, ``pages_pending`` (0 or 1), ``recovery_action`` (a
        nvmlDeviceGpuRecoveryAction_t), ``links``, ``links_down`` (a bit for each), ``fabric_health`` (a mask)."""
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
            gpu.gis = (layout.Gi * layout.MAX_GIS)()

    def foreign_create(self, index: int, profile_id: int, start: int, compute: str = "full") -> int:
        """Create an instance as another program, ``compute``: full, partial or none; returns its id. Checks no
        rules."""
        with self._locked() as state:
            gpu = state.gpus[index]
            number, profile = next((n, p) for n, p in enumerate(gpu.profiles) if p.id == profile_id)
            slices = max(p.memory_slices for p in gpu.profiles)
            gi_id: int = slices // profile.memory_slices - 1 + start // profile.memory_slices
            cis = () if compute == "none" else (ComputeInstance(ci_id=0, uuid=None, spans=compute == "full"),)
            size = profile.memory_slices
            made = MigInstance(gi_id=gi_id, profile_id=profile_id, profile_name="", start=start, size=size, compute=cis)
            slot = next(gi for gi in gpu.gis if not gi.used)
            gpu.serial = layout.wire_instance(slot, number, profile, made, gpu.serial + 1)
            self._tell(state, index, gi_id)
            return gi_id

    def foreign_destroy(self, index: int, gi_id: int) -> None:
        """Destroy an instance and its content as another program."""
        with self._locked() as state:
            self._instance(state, index, gi_id).used = 0
            self._tell(state, index, gi_id)

    def count(self, index: int) -> tuple[int, int]:
        """How many GPU and compute instances there are."""
        with self._locked() as state:
            gis = [gi for gi in state.gpus[index].gis if gi.used]
            return len(gis), sum(bool(ci.used) for gi in gis for ci in gi.cis)

    def _instance(self, state: layout.Layout, index: int, gi_id: int) -> layout.Gi:
        found: layout.Gi = next(gi for gi in state.gpus[index].gis if gi.used and gi.id == gi_id)
        return found

    def xid(self, index: int, number: int, *, gi_id: int = UNKNOWN_ID, ci_id: int = UNKNOWN_ID, times: int = 1) -> None:
        """The GPU at NVML index ``index`` reports that XID, of one of its instances when they are given."""
        self.tell(index, XID, number, gi_id=gi_id, ci_id=ci_id, times=times)

    def tell(
        self, index: int, kind: int, data: int = 0, *, gi_id: int = UNKNOWN_ID, ci_id: int = UNKNOWN_ID, times: int = 1
    ) -> None:
        """The GPU reports an event of that type, such as `DOUBLE_BIT_ECC`."""
        with self._locked() as state:
            gpu = state.gpus[index]
            for _ in range(times):
                self._append(state, layout.Event(kind, data, gpu.identity, gpu.binding, gi_id, ci_id))

    def _tell(self, state: layout.Layout, index: int, gi_id: int = UNKNOWN_ID) -> None:
        gpu = state.gpus[index]
        self._append(state, layout.Event(MIG_CONFIG_CHANGE, 0, gpu.identity, gpu.binding, gi_id, UNKNOWN_ID))

    @staticmethod
    def _append(state: layout.Layout, event: layout.Event) -> None:
        state.events[state.event_count % layout.MAX_EVENTS] = event
        state.event_count += 1

    @contextmanager
    def _locked(self) -> Iterator[layout.Layout]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._state
        finally:
            self._state.changes += 1
            address = ctypes.c_void_p(ctypes.addressof(self._state) + layout.Layout.changes.offset)
            # Threads of any process wait in the C library for a change of the file.
            _libc.syscall(ctypes.c_long(FUTEX[platform.machine()]), address, FUTEX_WAKE, EVERYONE, None, None, 0)
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _wire_gpu(item: SimulatedGpu) -> layout.Gpu:
    gpu = item.gpu
    major, minor = gpu.cuda_compute_capability or (ABSENT, ABSENT)
    profiles = layout.wire_profiles(gpu.mig_profiles) if gpu.mig_profiles else ()
    said = reading_of(gpu, GpuHealth())
    link_types, link_ends = _wire_links(gpu)
    wired = layout.Gpu(
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
        event_types=EVENT_TYPES,
        rows_pending=_reported(said.rows_pending),
        rows_failed=_reported(said.rows_failed),
        pages_pending=_reported(said.pages_pending),
        links=links_of(gpu),
        link_types=link_types,
        link_ends=link_ends,
        profile_count=len(profiles),
        profiles=layout.Profiles(*profiles),
    )
    if profiles:
        for gi_id, uuid in enumerate(layout.uuids(gpu)):
            wired.mig_uuids[gi_id].value = uuid
    ids = [profile.id for profile in profiles]
    for slot, instance in enumerate(gpu.mig_instances):
        number = ids.index(instance.profile_id)
        wired.serial = layout.wire_instance(wired.gis[slot], number, profiles[number], instance, wired.serial + 1)
    return wired


def _wire_links(gpu: Gpu) -> tuple[Any, Any]:
    types, ends = (ctypes.c_int32 * layout.MAX_LINKS)(*[ABSENT] * layout.MAX_LINKS), layout.LinkEnds()
    links = gpu.nvlinks
    told = [(LINK_TO_SWITCH, "")] * links.switch_links
    told += [(LINK_TO_GPU, peer.pci_bus_id) for peer in links.peers for _ in range(peer.links)]
    for number, (kind, end) in enumerate(told[: layout.MAX_LINKS]):
        types[number] = kind
        ends[number].value = f"0000{end}".upper().encode() if end else b""
    return types, ends


def _reported(value: bool | None) -> int:
    return ABSENT if value is None else int(value)
