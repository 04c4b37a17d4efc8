r"""The journal's values: a claim's state and devices, and all that is needed to undo a prepare.

(no entry) --begin--> preparing --finish--> prepared --start_unprepare--> unpreparing --forget--> (no entry)
                          \____________________ teardown ____________________/
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NewType

from msgspec import Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.core.model.terms import Form, Interval, SharingTerms, Strategy, Use
from dra_driver.hardware.sharing.mps_files import MpsDaemon

OwnerId = NewType("OwnerId", str)
"""One run of the node process. Every run has its own id, also of the same pod."""


class State(StrEnum):
    """A claim's progress. The kubelet got an answer only for ``prepared``."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


class InstanceIds(Struct, frozen=True, kw_only=True):
    """The ids of an existing partition; its device files are named after them."""

    gi_id: int
    ci_id: int
    uuid: MigUuid

    @classmethod
    def of(cls, instance: MigInstance) -> "InstanceIds | None":
        """The ids of ``instance``; None when no program can use it."""
        device = instance.device
        if device is None or device.uuid is None:
            return None
        return cls(gi_id=instance.gi_id, ci_id=device.ci_id, uuid=device.uuid)


class AssignedPartition(Struct, frozen=True, kw_only=True):
    """A partition that is assigned to a claim. ``size`` is in memory slices.

    ``created_by_driver``: the driver destroys it with the claim, or hands it over to a claim that shares it; otherwise
    another manager, or the claim that shares it, created it. ``live`` is None while the partition may not exist yet.
    """

    id: PartitionId
    profile_name: str
    size: int
    created_by_driver: bool
    live: InstanceIds | None = None

    def overlaps(self, other: "AssignedPartition") -> bool:
        """Return whether both cover a memory slice of the same GPU."""
        mine, its = self.id, other.id
        same_gpu = mine.gpu_uuid == its.gpu_uuid
        return same_gpu and mine.start < its.start + other.size and its.start < mine.start + self.size


class AssignedShare(Struct, frozen=True, kw_only=True):
    """The amounts that one share consumes, and the GPU's totals when the claim was prepared.

    Memory is in bytes, None on a GPU without memory of its own. ``percent`` is 0 to 100; 0 requests no compute and has
    no compute limit. ``max_shares`` None: no limit.
    """

    memory: int | None
    percent: int
    count: int
    total_memory: int | None
    max_shares: int | None


class AssignedSharing(Struct, frozen=True, kw_only=True):
    """The sharing of a device: between claims when ``share`` is set (by policy), else inside the claim (by its config).

    ``daemon`` is set under MPS; for a partition only once the partition exists. ``interval`` is Default under MPS.
    """

    strategy: Strategy
    interval: Interval = Interval.DEFAULT
    share: AssignedShare | None = None
    daemon: MpsDaemon | None = None


class AssignedDevice(Struct, frozen=True, kw_only=True):
    """One result of a claim's allocation as prepared. ``request`` is the base request.

    A claim that consumes all of a shared device has a ``share_id``, and the device alone.
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
        if self.partition is not None:
            return Form.PARTITION
        return Form.SHARE if self.is_share else Form.WHOLE

    @property
    def is_share(self) -> bool:
        """Return whether other claims may have shares of the same GPU or partition."""
        return self.sharing is not None and self.sharing.share is not None

    @property
    def changes_hardware(self) -> bool:
        """Return whether the device needs GPU locks, a durable intent and a release afterwards."""
        return not self.admin_access and (self.partition is not None or self.sharing is not None)

    @property
    def use(self) -> Use:
        """The use of the GPU by this device, for policies and publishing."""
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
            of_shared=self.share_id is not None and terms is None,
        )


def gpus_of(devices: Iterable[AssignedDevice]) -> tuple[GpuUuid, ...]:
    """The GPUs of ``devices`` except devices with admin access, each once, in lock order."""
    return tuple(sorted({device.gpu_uuid for device in devices if not device.admin_access}))


class AttemptToken(Struct, frozen=True, kw_only=True):
    """The process that works on an entry, and its attempt. Differs once another process took the entry over."""

    owner: OwnerId
    number: int


class Entry(Struct, frozen=True, kw_only=True):
    """One claim in the journal. ``changed_at``: seconds since the epoch, informational."""

    ref: ClaimRef
    state: State
    attempt: AttemptToken
    boot_id: str
    changed_at: float
    devices: tuple[AssignedDevice, ...]

    @property
    def changes_hardware(self) -> bool:
        """Return whether a teardown has more to undo than files."""
        return any(device.changes_hardware for device in self.devices)


class Assignment(Struct, frozen=True, kw_only=True):
    """One device that is assigned to a claim, without admin access."""

    uid: ClaimUid
    device: AssignedDevice


class OrphanedPartition(Struct, frozen=True, kw_only=True):
    """A partition that this driver created for a claim that is no longer in the journal.

    An older version of the driver, running in parallel during an update, removes claims but not their partitions.
    """

    uid: ClaimUid
    position: int
    partition: AssignedPartition


class Conflict(Struct, frozen=True, kw_only=True):
    """``wanted`` cannot be assigned while the ``holders`` have their devices.

    ``other`` is the first device that excludes it; None when the sum of all shares is too large, described by
    ``shortage`` in half a sentence.
    """

    wanted: AssignedDevice
    holders: tuple[ClaimUid, ...]
    other: AssignedDevice | None = None
    shortage: str = ""


class Blocked(Struct, frozen=True, kw_only=True):
    """The reason why a claim could not begin.

    ``by``: entries of claims with conflicting devices, or the claim's own entry. ``orphaned_partitions`` overlap its
    devices. ``conflict``: the first conflict; None for the claim's own entry, and when only orphaned partitions block
    it.
    """

    by: tuple[Entry, ...] = ()
    orphaned_partitions: tuple[OrphanedPartition, ...] = ()
    conflict: Conflict | None = None
