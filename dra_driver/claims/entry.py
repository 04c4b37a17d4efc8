"""What the journal remembers of a claim, as values.

Owns the states of a claim on this node and the shape of an entry: with what is in one, everything that prepare did can
be taken back. Refuses to know how entries are stored.

    (no entry) --begin--> preparing --finish--> prepared --start_unprepare--> unpreparing --forget--> (no entry)
                              \\______________________ undo ______________________/
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from dra_driver.model.claim import ClaimRef
from dra_driver.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName
from dra_driver.model.mig import MigInstance, PartitionId
from dra_driver.model.terms import Form, Interval, SharingTerms, Strategy, Use
from dra_driver.sharing.daemon import MpsDaemon

OwnerId = NewType("OwnerId", str)
"""One run of the node process; another run, also of the same pod, has another id."""


class State(StrEnum):
    """How far a claim has come. Only ``prepared`` was ever answered to the kubelet."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIds:
    """What a partition is on the hardware, once it is there: the ids that its container's files are made from."""

    gi_id: int
    ci_id: int
    uuid: MigUuid

    @classmethod
    def of(cls, instance: MigInstance) -> "InstanceIds | None":
        """The instance's ids; None for one that no program can use."""
        device = instance.device
        if device is None or device.uuid is None:
            return None
        return cls(gi_id=instance.gi_id, ci_id=device.ci_id, uuid=device.uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition that a claim has. ``size`` is in memory slices.

    ``created_by_driver``: this driver creates the partition for the claim and destroys it afterwards. Otherwise another
    manager created it, and the claim only uses it. ``live`` is None while it may not exist yet.
    """

    id: PartitionId
    profile_name: str
    size: int
    created_by_driver: bool
    live: InstanceIds | None = None

    def overlaps(self, other: "AssignedPartition") -> bool:
        """Whether both want a memory slice of the same GPU."""
        mine, its = self.id, other.id
        same_gpu = mine.gpu_uuid == its.gpu_uuid
        return same_gpu and mine.start < its.start + other.size and its.start < mine.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedShare:
    """What one share of a GPU consumed, and what there was to share when it was prepared.

    Memory is in bytes and None on a GPU that has no memory of its own; ``percent`` is of 100, 0 for one that asked for
    none and is not limited. ``max_shares`` None sets no limit.
    """

    memory: int | None
    percent: int
    count: int
    total_memory: int | None
    max_shares: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSharing:
    """How a device is shared: by ``share`` between claims (the policy's doing), else inside the claim (its config's).

    ``daemon`` is set under MPS, on a partition once that is made. ``interval`` is Default under MPS.
    """

    strategy: Strategy
    interval: Interval = Interval.DEFAULT
    share: AssignedShare | None = None
    daemon: MpsDaemon | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedDevice:
    """One result of a claim's allocation as it was prepared; ``request`` is the base request.

    ``share_id`` alone does not make it a share: who consumes all of a GPU that could be shared has it whole.
    """

    request: str
    pool: PoolName
    device: DeviceName
    share_id: str | None
    admin_access: bool
    gpu_uuid: GpuUuid
    partition: AssignedPartition | None = None
    sharing: AssignedSharing | None = None

    @property
    def form(self) -> Form:
        """What the GPU is to the claim."""
        if self.partition is not None:
            return Form.PARTITION
        return Form.SHARE if self.sharing is not None and self.sharing.share is not None else Form.WHOLE

    @property
    def changes_hardware(self) -> bool:
        """Whether it takes, or took, more than files: a lock, a durable intent, and something to be taken back."""
        return not self.admin_access and (self.partition is not None or self.sharing is not None)

    @property
    def use(self) -> Use:
        """What the rest of the driver is told about it."""
        sharing, partition = self.sharing, self.partition
        terms = None
        if sharing is not None and sharing.share is not None:
            terms = SharingTerms(
                strategy=sharing.strategy, interval=sharing.interval, max_shares=sharing.share.max_shares
            )
        return Use(
            gpu_uuid=self.gpu_uuid,
            form=self.form,
            partition=partition.id if partition else None,
            created_by_driver=partition.created_by_driver if partition else False,
            sharing=terms,
            of_shared=self.form is Form.WHOLE and self.share_id is not None,
        )


def gpus_of(devices: Iterable[AssignedDevice]) -> tuple[GpuUuid, ...]:
    """The GPUs behind ``devices``, admin access apart, each once and in the order in which they are locked."""
    return tuple(sorted({device.gpu_uuid for device in devices if not device.admin_access}))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptToken:
    """Who works on an entry, and which time: what lets one process notice that another took an entry over."""

    owner: OwnerId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One claim in the journal. ``changed_at`` is in seconds since the epoch and for people only."""

    ref: ClaimRef
    state: State
    attempt: AttemptToken
    boot_id: str
    changed_at: float
    devices: tuple[AssignedDevice, ...]

    @property
    def changes_hardware(self) -> bool:
        """Whether there is more to take back than files."""
        return any(device.changes_hardware for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One device that a claim has, admin access apart."""

    uid: ClaimUid
    device: AssignedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedPartition:
    """A partition that this driver made for a claim which is not in the journal any more.

    An older version of the driver, working beside this one during an update, frees claims without knowing of
    partitions; the note of what was made outlives that.
    """

    uid: ClaimUid
    position: int
    partition: AssignedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """``wanted`` cannot be had beside what the ``holders`` have.

    ``other`` is the first device that excludes it; None when it is the sum of all shares, and ``shortage`` says in half
    a sentence what there is too little of.
    """

    wanted: AssignedDevice
    holders: tuple[ClaimUid, ...]
    other: AssignedDevice | None = None
    shortage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a claim could not be begun.

    ``by`` are entries that hold what it wants, or its own one; ``orphaned_partitions`` overlap and have no claim any
    more. ``conflict`` is the first one found, None for the claim's own entry and where only those are in the way.
    """

    by: tuple[Entry, ...] = ()
    orphaned_partitions: tuple[OrphanedPartition, ...] = ()
    conflict: Conflict | None = None
