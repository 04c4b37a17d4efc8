"""Fakes of the claim service: API server, CDI files in memory, a clock that never waits, sharing, journal entries."""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ClaimNotAllocatedError,
    ClaimReplacedError,
    DraError,
    MpsUnavailableError,
)
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, OpaqueConfig, PreparedDevice
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName
from dra_driver.core.model.mig import MigProfile, PartitionId, partition_name
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.hardware.cdi.edits import claim_spec
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiSpec, ContainerEdits, DeviceNode, Mount
from dra_driver.hardware.cdi.writer import render
from dra_driver.hardware.gpu.backend import TIME_SLICE, ComputeMode, GpuControl, GpuNotes
from dra_driver.hardware.sharing.mps import MpsDirectories
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.hardware.sharing.timeslice import restore_compute_mode, set_compute_mode
from dra_driver.node.claims.entry import (
    AssignedDevice,
    AssignedPartition,
    AssignedShare,
    AssignedSharing,
    AttemptToken,
    Entry,
    InstanceIds,
    OwnerId,
    State,
)

DRIVER = "gpu.nvidia.com"
POOL = PoolName(f"node-a/{DRIVER}")
NAMES = CdiNames(DRIVER)
CONTROL_PROGRAM = "/usr/bin/nvidia-cuda-mps-control"


def gpu(minor: int, **changes: Any) -> Gpu:
    return Gpu(uuid=GpuUuid(f"GPU-00000000-0000-0000-0000-{minor:012d}"), minor=minor, **changes)


def machine(count: int) -> Snapshot:
    return Snapshot(driver_version="580.105.08", gpus=tuple(gpu(minor) for minor in range(count)))


def uid(number: int) -> ClaimUid:
    return ClaimUid(f"{number:08x}-1111-2222-3333-444444444444")


def ref(number: int, name: str | None = None) -> ClaimRef:
    return ClaimRef(namespace="default", name=name or f"claim-{number}", uid=uid(number))


def result(device: str = "gpu-0", *, request: str = "gpu", **more: Any) -> AllocatedDevice:
    return AllocatedDevice(
        request=request, driver=DRIVER, pool=more.pop("pool", POOL), device=DeviceName(device), **more
    )


def claim(number: int, *results: AllocatedDevice, configs: Sequence[OpaqueConfig] = (), **more: Any) -> AllocatedClaim:
    return AllocatedClaim(ref=ref(number, **more), results=results or (result(),), configs=tuple(configs))


class FakeClaims:
    """Claims by namespace and name. Reads raise ``outage`` while set, or call ``hangs`` with their time limit and
    fail."""

    def __init__(self, *claims: AllocatedClaim) -> None:
        self.by_name: dict[tuple[str, str], AllocatedClaim | None] = {}
        self.outage: DraError | None = None
        self.reads = 0
        self.hangs: Callable[[float], object] | None = None
        for each in claims:
            self.put(each)

    def put(self, each: AllocatedClaim) -> AllocatedClaim:
        self.by_name[each.ref.namespace, each.ref.name] = each
        return each

    def remove(self, of: ClaimRef) -> None:
        self.by_name.pop((of.namespace, of.name), None)

    def deallocate(self, of: ClaimRef) -> None:
        self.by_name[of.namespace, of.name] = None

    def read(self, of: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
        self.reads += 1
        if self.hangs is not None and within_s is not None:
            self.hangs(within_s)
            raise ApiUnreachableError("no answer in time")
        if self.outage is not None:
            raise self.outage
        if (of.namespace, of.name) not in self.by_name:
            raise ClaimReplacedError(f"claim {of} does not exist any more")
        found = self.by_name[of.namespace, of.name]
        if found is None:
            raise ClaimNotAllocatedError(f"claim {of} is not allocated")
        if found.ref.uid != of.uid:
            raise ClaimReplacedError(f"claim {of} was replaced by uid {found.ref.uid}")
        return found

    def ask_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Callable[[], dict[ClaimUid, AllocatedClaim | DraError]]:
        return lambda: self._read_all(refs, within_s)

    def _read_all(self, refs: Sequence[ClaimRef], within_s: float | None) -> dict[ClaimUid, AllocatedClaim | DraError]:
        found: dict[ClaimUid, AllocatedClaim | DraError] = {}
        if refs and self.hangs is not None and within_s is not None:
            self.hangs(within_s)  # once: they are read side by side
            return {each.uid: ApiUnreachableError("no answer in time") for each in refs}
        for each in refs:
            try:
                found[each.uid] = self.read(each)
            except DraError as error:
                found[each.uid] = error
        return found


class FakeCdiWriter:
    """Claims' CDI files in a dict, as bytes. ``failure`` is raised by every change while set."""

    def __init__(self) -> None:
        self.files: dict[ClaimUid, bytes] = {}
        self.metadata_files: dict[tuple[str, str], bytes] = {}
        self.failure: DraError | None = None

    def write_metadata(self, of: str, files: Mapping[str, bytes]) -> None:
        if any(self.metadata(of, request) != data for request, data in files.items()):
            self._may_change()
            self.metadata_files |= {(of, request): data for request, data in files.items()}

    def metadata(self, of: str, request: str) -> bytes | None:
        return self.metadata_files.get((of, request))

    def metadata_path(self, of: str, request: str) -> str:
        return f"/metadata/{NAMES.metadata_file_name(of, request)}"

    def write_claim(self, of: str, spec: CdiSpec) -> bool:
        data = render(spec, NAMES.claim_file_name(of))
        if self.files.get(ClaimUid(of)) == data:
            return False
        self._may_change()
        self.files[ClaimUid(of)] = data
        return True

    def remove_claim(self, of: str) -> bool:
        self._may_change()
        self.metadata_files = {key: data for key, data in self.metadata_files.items() if key[0] != of}
        return self.files.pop(ClaimUid(of), None) is not None

    def claim_uids(self) -> frozenset[ClaimUid]:
        return frozenset(self.files)

    def remove_orphans(self, keep: Collection[str]) -> tuple[ClaimUid, ...]:
        kept = {key: data for key, data in self.metadata_files.items() if key[0] in keep}
        if kept != self.metadata_files:
            self._may_change()
            self.metadata_files = kept
        return tuple(each for each in sorted(self.files) if each not in keep and self.remove_claim(each))

    def devices(self, of: ClaimUid) -> list[str]:
        return [device["name"] for device in json.loads(self.files[of])["devices"]]

    def _may_change(self) -> None:
        if self.failure is not None:
            raise self.failure


class FakeCdiProvider:
    """One device node per GPU, of the major ``driver_identity``. ``failure`` is raised while set."""

    def __init__(self) -> None:
        self.failure: DraError | None = None
        self.base_checks = 0
        self.driver_identity = 195

    def ensure_base(self) -> bool:
        self.base_checks += 1
        if self.failure is not None:
            raise self.failure
        return False

    def edits_for(self, of: Gpu) -> ContainerEdits:
        return ContainerEdits(
            env=(f"DRA_GPU_{of.minor}_UUID={of.uuid}",),
            device_nodes=(
                DeviceNode(path=f"/dev/nvidia{of.minor}", type="c", major=self.driver_identity, minor=of.minor),
            ),
        )

    def edits_for_partition(self, of: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits:
        node = DeviceNode(path=f"/dev/nvidia{of.minor}", type="c", major=195, minor=of.minor)
        return ContainerEdits(env=(f"DRA_GPU_{of.minor}_MIG_{gi_id}_{ci_id}_UUID={uuid}",), device_nodes=(node,))

    def edits_of_share(self) -> ContainerEdits:
        return ContainerEdits(mounts=(Mount(host_path="/mask", container_path=CONTROL_PROGRAM, options=("bind",)),))

    def edits_of_claim(self, claim: ClaimUid) -> ContainerEdits:
        return ContainerEdits()

    def document(self, of: ClaimUid, *devices: Gpu) -> CdiSpec:
        pairs = [(NAMES.claim_device(of, each.device_name), self.edits_for(each)) for each in devices]
        return claim_spec(NAMES, pairs)


class FakeClock:
    """A wait takes no time: it moves the clock, then runs the actions planned for that moment."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waits: list[float] = []
        self.wakes = 0
        self._planned: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        return self.time

    def wake_all(self) -> None:
        self.wakes += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds
        due = [action for at, action in self._planned if at <= self.time]
        self._planned = [(at, action) for at, action in self._planned if at > self.time]
        for action in due:
            action()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self._planned.append((self.time + seconds, action))


class FakeProcessRegistry:
    def __init__(self, own: str = "run-1", alive: Collection[str] = ()) -> None:
        self.own = OwnerId(own)
        self.alive = {*alive}

    def is_alive(self, owner: OwnerId) -> bool:
        return owner == self.own or owner in self.alive


def changed(snapshot: Snapshot, minor: int, **changes: Any) -> Snapshot:
    gpus = (replace(each, **changes) if each.minor == minor else each for each in snapshot.gpus)
    return replace(snapshot, gpus=tuple(gpus))


class FakeSharing:
    """GPU settings and daemons, which survive the node process. ``asked`` are the changes, in words; ``failure`` is
    raised by changes while set; ``takes`` is called with the seconds that a request for a daemon may take."""

    def __init__(self) -> None:
        self.slices: dict[GpuUuid, Interval] = {}
        self.running: dict[str, MpsDaemon] = {}
        self.asked: list[str] = []
        self.failure: DraError | None = None
        self.takes: Callable[[float], object] = lambda _: None

    def change(self, what: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.asked.append(what)

    @property
    def idle(self) -> bool:
        return not self.slices and not self.running


class FakeSlicer:
    """Time slices with notes, in the order of `sharing.timeslice.TimeSlicer`."""

    def __init__(self, node: FakeSharing, notes: GpuNotes) -> None:
        self._node = node
        self._notes = notes

    def set(self, gpu: GpuUuid, interval: Interval, *, within_s: float) -> None:
        if interval is Interval.DEFAULT:
            return self.reset(gpu, within_s=within_s)
        self._node.change(f"slice {interval}")
        self._notes.set_gpu_note(gpu, TIME_SLICE, interval)
        self._node.slices[gpu] = interval
        return None

    def reset(self, gpu: GpuUuid, *, within_s: float) -> None:
        if self._notes.gpu_note(gpu, TIME_SLICE) is not None:
            self._node.change("slice reset")
            self._node.slices.pop(gpu, None)
            self._notes.clear_gpu_note(gpu, TIME_SLICE)


class FakeMps:
    """Daemons that are ready at once, with compute modes as `sharing.mps.MpsClient` changes them."""

    def __init__(self, node: FakeSharing, control: GpuControl, notes: GpuNotes) -> None:
        self._node = node
        self._control = control
        self._notes = notes

    def ensure(self, daemon: MpsDaemon, *, within_s: float) -> None:
        self._node.takes(within_s)
        if self._node.running.get(daemon.id) == daemon:
            return
        self._node.change(f"start {daemon.id}")
        taken = {device for other in self._node.running.values() for device in other.devices}
        assert not taken.intersection(daemon.devices), "a device is under one daemon at a time"
        for gpu in daemon.gpus:
            set_compute_mode(self._control, self._notes, gpu, ComputeMode.EXCLUSIVE_PROCESS)
        self._node.running[daemon.id] = daemon

    def release(self, daemon_id: str, gpus: Sequence[GpuUuid], *, within_s: float) -> None:
        known = self._node.running.get(daemon_id)
        if known is not None:
            self._node.change(f"end {daemon_id}")
            del self._node.running[daemon_id]
        for gpu in sorted({*gpus, *(known.gpus if known else ())}):
            restore_compute_mode(self._control, self._notes, gpu, ComputeMode.EXCLUSIVE_PROCESS)

    def daemons(self) -> tuple[str, ...]:
        return tuple(sorted(self._node.running))

    def daemon(self, daemon_id: str) -> MpsDaemon | None:
        return self._node.running.get(daemon_id)

    def directories(self, daemon_id: str) -> MpsDirectories:
        if daemon_id not in self._node.running:
            raise MpsUnavailableError(f"MPS daemon {daemon_id} does not run")
        return MpsDirectories(pipe=Path(f"/mps/{daemon_id}/pipe"), shm=Path(f"/mps/{daemon_id}/shm"))


def part(minor: int, profile: MigProfile, start: int) -> DeviceName:
    return partition_name(minor, profile.name, profile.profile_id, start)


def share_result(number: int, memory: str | None, percent: int | None, **more: Any) -> AllocatedDevice:
    consumed = {"memory": memory, "computePercent": None if percent is None else str(percent)}
    return result(
        share_id=f"{number:08x}-5555-6666-7777-888888888888",
        consumed_capacity={key: value for key, value in consumed.items() if value is not None},
        **more,
    )


GPU = GpuUuid("GPU-a")


def device(**fields: Any) -> AssignedDevice:
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": PoolName("n/gpu.nvidia.com"),
        "device": DeviceName("gpu-0"),
        "share_id": None,
        "admin_access": False,
        "gpu_uuid": GPU,
    }
    return AssignedDevice(**(given | fields))


def entry(
    uid: str = "u1", *devices: AssignedDevice, state: State = State.PREPARED, ref: ClaimRef | None = None
) -> Entry:
    return Entry(
        ref=ref or ClaimRef(namespace="team", name="llm", uid=ClaimUid(uid)),
        state=state,
        attempt=AttemptToken(owner=OwnerId("o"), number=1),
        boot_id="b",
        changed_at=1_782_907_200.5,
        devices=devices or (device(),),
    )


def sharing(memory: int, percent: int = 20) -> AssignedSharing:
    share = AssignedShare(memory=memory, percent=percent, count=1, total_memory=2**36, max_shares=None)
    return AssignedSharing(strategy=Strategy.TIME_SLICING, share=share)


def partition(start: int = 0, *, gpu: GpuUuid = GPU, gi_id: int | None = None) -> AssignedPartition:
    """A partition of 1g.10gb; ``gi_id`` is that of its GPU instance, once it exists."""
    live = None if gi_id is None else InstanceIds(gi_id=gi_id, ci_id=0, uuid=MigUuid("MIG-x"))
    return AssignedPartition(
        id=PartitionId(gpu, 19, start), profile_name="1g.10gb", size=1, created_by_driver=True, live=live
    )


Answer = tuple[PreparedDevice, ...] | DraError


def prepared_device(name: str = "gpu-0", share_id: str | None = None) -> PreparedDevice:
    return PreparedDevice(
        request_names=("main",),
        pool=PoolName("node/gpu.nvidia.com"),
        device=DeviceName(name),
        cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={name}",),
        share_id=share_id,
    )


class FakePreparer:
    """Answers one GPU for every claim unless ``answers`` says otherwise; remembers every call."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.before: Callable[[ClaimRef], None] = lambda ref: None
        self.prepared: list[ClaimRef] = []
        self.unprepared: list[ClaimRef] = []
        self.time_left: list[float | None] = []
        self.lock = threading.Lock()

    def prepare(self, refs: Sequence[ClaimRef], *, within_s: float | None = None) -> Mapping[ClaimUid, Answer]:
        for ref in refs:
            self.before(ref)
        with self.lock:
            self.time_left.append(within_s)
            self.prepared.extend(refs)
        return {ref.uid: self.answers.get(ref.uid, (prepared_device(),)) for ref in refs}

    def unprepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Mapping[ClaimUid, DraError | None]:
        with self.lock:
            self.time_left.append(within_s)
            self.unprepared.extend(refs)
        found = {ref.uid: self.answers.get(ref.uid) for ref in refs}
        return {uid: answer if isinstance(answer, DraError) else None for uid, answer in found.items()}
