"""What is in use on the GPUs of a node and whose it is, as values: the result of one look of the exporter.

``join`` makes them of what the driver, /proc, the kubelet and the node process tell; the watchdog, the metrics and
``/usage`` are made of them. None is never 0 here: it means that nothing tells.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.model.usage_findings import Amount, Name, UsingPod
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, UsageRules

MAX_GPUS, MAX_CLAIMS, MAX_DEVICES = 256, 4096, 512
Pool = Annotated[str, Meta(min_length=1, max_length=1024, pattern="^[!-~]+$")]


class AssignedUse(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device of a prepared claim, as ``assignments.json`` has it.

    ``gi_id`` and ``uuid`` of a partition are None while it may not exist. ``uuid`` is what CUDA calls the device.
    ``memory_bytes`` and ``percent`` are the grant of a share, None for other forms and where there is no limit.
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
    ref: ClaimRef
    prepared: datetime
    devices: tuple[AssignedUse, ...] = ()


class AssignedGpu(Struct, frozen=True, kw_only=True, rename="camel"):
    """A GPU of the node. ``changing``: it is being cut or changes its mode, and must not be held open.

    ``rules`` are those of the policy for this GPU.
    """

    device: Name
    gpu_uuid: Annotated[GpuUuid, Meta(min_length=1, max_length=253, pattern="^[!-~]+$")] = field(name="gpu")
    model: Annotated[str, Meta(max_length=253)] = ""
    changing: bool = False
    rules: UsageRules = field(default=DEFAULT_USAGE, name="usage")


class Assignments(Struct, frozen=True, kw_only=True):
    """All that the node process tells. ``detached`` says why the NVIDIA driver must not be open; None while it may.

    ``process_started`` is of the node process that wrote it.
    """

    node: str
    driver: str
    process_started: datetime
    detached: str | None = None
    gpus: tuple[AssignedGpu, ...] = ()
    claims: tuple[AssignedClaim, ...] = ()


class ContainerRef(Struct, frozen=True, kw_only=True):
    """A container of a pod. ``pod`` has the UID "" where nothing but the name tells which pod it is."""

    pod: UsingPod
    container: str


class SeenProcess(Struct, frozen=True, kw_only=True):
    """One process on a GPU. ``container`` is None for one of the host, and where that is not known.

    ``command`` is the name of the program as /proc tells it, which the process chooses; "" if it ended meanwhile.
    """

    pid: int
    command: str = ""
    gi_id: int | None = None
    memory_bytes: int | None = None
    sm_percent: int | None = None
    container: ContainerRef | None = None


class Basis(StrEnum):
    """Of what a claim's use is made. ``DEVICE``: processes cannot be seen, and the claim has the device alone, so that
    all that is in use of the device counts as the claim's."""

    PROCESSES = "processes"
    DEVICE = "device"


class DeviceUse(Struct, frozen=True, kw_only=True):
    """What one claim has of one device. Grants, form and names are in ``assigned``.

    ``processes`` are those that were attributed to the claim on this device; None if processes are not known.
    ``used_bytes`` is their memory, and None if that of one of them is unknown, or if one may belong to another claim
    as well (``shared_processes``: a container that has both). ``sm_percent`` is 0 to 100 of the whole GPU, or of the
    instance for a partition; None where it is not known. ``containers`` have the device, with and without processes,
    as the kubelet tells; None if it does not.
    """

    claim: ClaimRef
    assigned: AssignedUse
    basis: Basis = Basis.PROCESSES
    processes: tuple[SeenProcess, ...] | None = None
    shared_processes: int = 0
    used_bytes: int | None = None
    sm_percent: int | None = None
    containers: tuple[ContainerRef, ...] | None = None


class GpuUse(Struct, frozen=True, kw_only=True):
    """One GPU: ``used`` = ``claims`` + ``unattributed`` + ``reserved`` bytes, each None where it is not known.

    ``reserved_bytes`` is the driver's. ``unattributed_bytes`` is all that is in use by no claim: the processes in
    ``unattributed``, processes that ended between two reads, and what the driver attributes to no process.
    ``unattributed`` is None if processes are not known.
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
    """What the exporter can know on this node now. Each is None where it can, else a sentence that says why not."""

    driver: str | None = None
    processes: str | None = None
    utilisation: str | None = None
    containers: str | None = None
    claims: str | None = None


class JoinedUsage(Struct, frozen=True, kw_only=True):
    """One look. ``at`` is UTC, for people; ``elapsed_s`` is the time since the look before by a clock that does not
    jump, 0 for the first. ``devices`` are sorted by namespace, claim, request and device; ``gpus`` by UUID."""

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
"""The most that a gap between two looks counts: neither a machine that was suspended nor a clock that jumps ends a
grace time."""


def step_s(elapsed_s: float) -> float:
    """How much of the time since the last look counts. A clock that goes back counts as nothing."""
    return min(max(elapsed_s, 0.0), LONGEST_STEP_S)


def total(values: Iterable[int | None]) -> int | None:
    """The sum; None if one of the values is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def began(now: datetime, observed_s: float) -> datetime:
    """When it began, in whole seconds."""
    return (now - timedelta(seconds=observed_s)).replace(microsecond=0)
