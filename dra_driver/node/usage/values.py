"""Define the use of a node's GPUs by claims and others, as values. None is never 0: it means unknown."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.model.usage_findings import Amount, Name, Time, UsingPod
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, UsageRules

VERSION: Final = 1  # of assignments.json
MAX_GPUS, MAX_CLAIMS, MAX_DEVICES = 256, 4096, 512
MAX_REASON: Final = 1024
EPOCH: Final = datetime.fromtimestamp(0, UTC)
Pool = Annotated[str, Meta(min_length=1, max_length=1024, pattern="^[!-~]+$")]


class AssignedUse(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device of a prepared claim in ``assignments.json``.

    ``gi_id`` and ``uuid`` of a partition are None while it may not exist. ``uuid`` is the name of the device for CUDA.
    ``memory_bytes`` and ``percent`` are the grant of a share, None for other forms and without a limit.
    """

    request: Name
    pool: Pool
    device: Name
    form: Form
    gpu_uuid: Annotated[GpuUuid, Meta(min_length=1, max_length=253, pattern="^[!-~]+$")] = field(name="gpu")
    gi_id: Amount | None = None
    uuid: Name | None = None
    profile: Name | None = None
    share_id: Name | None = None
    memory_bytes: Amount | None = None
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    admin_access: bool = False


class AssignedClaim(Struct, frozen=True, kw_only=True):
    """``prepared`` is UTC, in whole seconds; 1970 for a time that is unknown."""

    uid: Name
    namespace: Name
    name: Name
    prepared: Time = EPOCH
    devices: Annotated[tuple[AssignedUse, ...], Meta(max_length=MAX_DEVICES)] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "prepared", _utc(self.prepared))

    @property
    def ref(self) -> ClaimRef:
        return ClaimRef(namespace=self.namespace, name=self.name, uid=ClaimUid(self.uid))


class AssignedGpu(Struct, frozen=True, kw_only=True, rename="camel"):
    """A GPU of the node. ``changing``: its partitions or mode change, and it must not be held open."""

    device: Name
    gpu_uuid: Annotated[GpuUuid, Meta(min_length=1, max_length=253, pattern="^[!-~]+$")] = field(name="gpu")
    model: Annotated[str, Meta(max_length=253)] = ""
    changing: bool = False
    rules: UsageRules = field(default=DEFAULT_USAGE, name="usage")


class Assignments(Struct, frozen=True, kw_only=True, rename="camel"):
    """``assignments.json``. ``detached`` is the reason why the NVIDIA driver must not be open; None while it may, and
    never another type. ``process_started`` is of the node process that wrote the file."""

    version: int = VERSION
    node: Name
    driver: Name
    process_started: Time
    detached: object = None
    gpus: Annotated[tuple[AssignedGpu, ...], Meta(max_length=MAX_GPUS)] = ()
    claims: Annotated[tuple[AssignedClaim, ...], Meta(max_length=MAX_CLAIMS)] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "process_started", _utc(self.process_started))
        if self.detached is not None:
            reason = self.detached if isinstance(self.detached, str) else ""
            force_setattr(self, "detached", reason[:MAX_REASON] or "for an unknown reason")


def _utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return EPOCH


class ContainerRef(Struct, frozen=True, kw_only=True):
    """A container of a pod. ``pod`` has the UID "" if only its name was found."""

    pod: UsingPod
    container: str


class SeenProcess(Struct, frozen=True, kw_only=True):
    """One process on a GPU. ``container`` is None for a process of the host, and if unknown.

    ``command`` is the program's name in /proc, which the process chooses; "" if it ended.
    """

    pid: int
    command: str = ""
    gi_id: int | None = None
    memory_bytes: int | None = None
    sm_percent: int | None = None
    busy_percent: int | None = None
    container: ContainerRef | None = None


class Basis(StrEnum):
    """``DEVICE``: processes are unknown, and the claim has the device alone, so that all use of the device counts as
    its."""

    PROCESSES = "processes"
    DEVICE = "device"


class DeviceUse(Struct, frozen=True, kw_only=True):
    """The use of one device by one claim.

    ``processes`` were attributed to the claim on this device; None if unknown. ``used_bytes`` is their memory, None if
    that of one is unknown or may be another claim's (``shared_processes``: of a container that has both).
    ``sm_percent`` is 0 to 100 of the whole GPU, or of the instance for a partition. ``busy_percent`` is that of the
    busiest engine: of the processes, or of a device that the claim has alone. ``containers`` have the device, with and
    without processes, as the kubelet reports.
    """

    claim: ClaimRef
    assigned: AssignedUse
    basis: Basis = Basis.PROCESSES
    processes: tuple[SeenProcess, ...] | None = None
    shared_processes: int = 0
    used_bytes: int | None = None
    sm_percent: int | None = None
    busy_percent: int | None = None
    containers: tuple[ContainerRef, ...] | None = None


class GpuUse(Struct, frozen=True, kw_only=True):
    """One GPU: ``used`` = ``claims`` + ``unattributed`` + ``reserved`` bytes, each None if unknown.

    ``reserved_bytes`` is the driver's. ``unattributed_bytes`` is the use by no claim: the processes in
    ``unattributed``, processes that ended between two reads, and memory that the driver attributes to no process.
    """

    device: str
    gpu_uuid: GpuUuid
    model: str = ""
    reading: GpuUsage | None = None
    changing: bool = False
    rules: UsageRules = DEFAULT_USAGE
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    claims_bytes: int | None = None
    unattributed_bytes: int | None = None
    unattributed: tuple[SeenProcess, ...] | None = None


class Knows(Struct, frozen=True, kw_only=True):
    """The exporter's sources on this node: None for an available one, else the reason."""

    driver: str | None = None
    processes: str | None = None
    memory: str | None = None
    utilisation: str | None = None
    containers: str | None = None
    claims: str | None = None


class JoinedUsage(Struct, frozen=True, kw_only=True):
    """One sample. ``at`` is UTC; ``elapsed_s`` is the time since the previous sample by a clock that does not jump, 0
    for the first. ``devices`` are sorted by namespace, claim, request and device; ``gpus`` by UUID."""

    node: str
    at: datetime
    elapsed_s: float
    knows: Knows
    gpus: tuple[GpuUse, ...] = ()
    devices: tuple[DeviceUse, ...] = ()

    @property
    def rules(self) -> dict[str, UsageRules]:
        return {gpu.gpu_uuid: gpu.rules for gpu in self.gpus}


LONGEST_STEP_S: Final = 30.0
"""The most that a gap between two samples counts: a suspended machine must not end a grace period."""


def step_s(elapsed_s: float) -> float:
    """The counted part of the time since the last sample."""
    return min(max(elapsed_s, 0.0), LONGEST_STEP_S)


def total(values: Iterable[int | None]) -> int | None:
    """The sum; None if one of the values is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def began(now: datetime, observed_s: float) -> datetime:
    """In whole seconds."""
    return (now - timedelta(seconds=observed_s)).replace(microsecond=0)
