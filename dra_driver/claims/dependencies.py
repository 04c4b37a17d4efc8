"""What the work on claims is done with: everything that is handed in, in one place.

Owns the narrow interfaces that this room needs of others. Refuses to know who implements them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from dra_driver.cdi.names import CdiNames
from dra_driver.cdi.spec import CdiSpec, ContainerEdits
from dra_driver.claims.entry import AssignedDevice, Assignment, AttemptToken, Blocked, Entry, OrphanedPartition, OwnerId
from dra_driver.claims.gpu_locks import GpuLocks
from dra_driver.claims.waiting import ClaimLocks, MonotonicClock, RetryPolicy, WakeableClock
from dra_driver.errors import NotPermittedError
from dra_driver.model.claim import AllocatedClaim, ClaimRef
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import ClaimUid, GpuUuid, PoolName
from dra_driver.model.mig import MigInstance, PartitionId
from dra_driver.model.terms import Interval, Terms
from dra_driver.sharing.daemon import MpsDaemon

Event = Literal[
    "prepared",
    "repeated",
    "waited",
    "file-rewritten",
    "unprepared",
    "undone",
    "orphan-removed",
    "collected",
    "adopted",
]
"""What can be counted; a closed set, fit for a metric's label."""


class ClaimReader(Protocol):
    """One read of a claim from the API server. Errors: `ClaimError` and its subclasses, `KubernetesApiError`.

    With ``within_s`` it comes back, one way or the other, within so many seconds.
    """

    def read(self, ref: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim: ...


class ClaimLister(Protocol):
    """All claims that are allocated from a pool and reserved; asked once, when a journal has to be rebuilt."""

    def allocated(self, pool: PoolName) -> Sequence[AllocatedClaim]: ...


class CdiWriter(Protocol):
    """A claim's CDI file. All methods may be repeated, and raise `StorageError`."""

    def write_claim(self, uid: str, spec: CdiSpec) -> bool: ...
    def remove_claim(self, uid: str) -> bool: ...
    def claim_uids(self) -> Collection[ClaimUid]: ...
    def remove_orphans(self, keep: Collection[str]) -> Sequence[ClaimUid]: ...


class CdiProvider(Protocol):
    """Edits for GPUs, and the base document. Errors: `DriverUnavailableError`, `ConfigurationError`, `StorageError`."""

    def ensure_base(self) -> bool: ...
    def edits_for(self, gpu: Gpu) -> ContainerEdits: ...
    def edits_for_partition(self, gpu: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits: ...


class MigWork(Protocol):
    """Partitions, see `mig.manager.MigManager`. The caller holds the GPU's lock. Errors: `HardwareError`,
    `StorageError`."""

    def create(self, wanted: PartitionId, size: int, *, within_s: float) -> MigInstance: ...
    def destroy(self, partition: PartitionId, *, within_s: float) -> None: ...
    def find(self, partition: PartitionId) -> MigInstance | None: ...
    def restore_mode(self, gpu: GpuUuid) -> bool: ...
    def ensure_whole(self, gpu: GpuUuid, *, within_s: float) -> None: ...


class TimeSlices(Protocol):
    """Time slices of whole GPUs, see `sharing.timeslice.TimeSlicer`. The caller holds the GPU's lock."""

    def set(self, gpu: GpuUuid, interval: Interval, *, within_s: float) -> None: ...
    def reset(self, gpu: GpuUuid, *, within_s: float) -> None: ...


class MpsFolders(Protocol):
    """Where the clients of a daemon meet it, as paths for the container runtime."""

    @property
    def pipe(self) -> Path: ...
    @property
    def shm(self) -> Path: ...


class MpsWork(Protocol):
    """MPS daemons, see `sharing.mps.MpsClient`. The caller holds the locks of the daemon's GPUs."""

    def ensure(self, daemon: MpsDaemon, *, within_s: float) -> None: ...
    def release(self, daemon_id: str, gpus: Sequence[GpuUuid], *, within_s: float) -> None: ...
    def daemons(self) -> Sequence[str]: ...
    def daemon(self, daemon_id: str) -> MpsDaemon | None: ...
    def directories(self, daemon_id: str) -> MpsFolders: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareDependencies:
    """What changes GPUs. ``changed`` is called after every change that a new snapshot would show."""

    mig: MigWork
    slicer: TimeSlices
    mps: MpsWork
    changed: Callable[[], None]


class ClaimJournal(Protocol):
    """The part of `journal.Journal` that the work needs; there for tests that stop it between two steps."""

    @property
    def boot_id(self) -> str: ...
    @property
    def rebuild_pending(self) -> bool: ...
    def entry(self, uid: ClaimUid) -> Entry | None: ...
    def entries(self) -> tuple[Entry, ...]: ...
    def uids(self) -> frozenset[ClaimUid]: ...
    def assignments(self, gpu: GpuUuid | None = None) -> tuple[Assignment, ...]: ...
    def begin(
        self, ref: ClaimRef, devices: Sequence[AssignedDevice], *, durable: bool = False
    ) -> AttemptToken | Blocked: ...
    def amend(self, uid: ClaimUid, attempt: AttemptToken, devices: Sequence[AssignedDevice]) -> bool: ...
    def finish(self, uid: ClaimUid, attempt: AttemptToken, devices: Sequence[AssignedDevice] = ()) -> bool: ...
    def start_unprepare(
        self, uid: ClaimUid, *, only: AttemptToken | None = None, durable: bool = False
    ) -> AttemptToken | None: ...
    def forget(self, uid: ClaimUid, attempt: AttemptToken, *, partitions_left: bool = False) -> bool: ...
    def adopt(self, ref: ClaimRef, devices: Sequence[AssignedDevice]) -> Blocked | None: ...
    def drop_older_boots(self) -> tuple[ClaimUid, ...]: ...
    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None: ...
    def noted_gpus(self) -> Mapping[GpuUuid, frozenset[str]]: ...
    def drop_older_notes(self, keys: Sequence[str]) -> None: ...
    def orphaned_partitions(self) -> tuple[OrphanedPartition, ...]: ...
    def forget_orphaned_partition(self, orphan: OrphanedPartition) -> None: ...
    def note_rebuilt(self) -> None: ...
    def write_all_backups(self) -> None: ...
    def exclusive(self) -> AbstractContextManager[None]: ...
    def tidy(self) -> None: ...


class OwnerBook(Protocol):
    """Which runs of the node process are alive."""

    @property
    def own(self) -> OwnerId: ...
    def is_alive(self, owner: OwnerId) -> bool: ...


def _no_terms() -> Terms:
    """Default terms for every GPU."""
    return {}


def _uncounted(_event: Event) -> None:
    """Counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDependencies:
    """Handed to every function of this room that changes the world. ``pool`` is this node's pool name.

    Without ``hardware`` only what takes no change of a GPU is prepared. ``terms`` are those in force.
    """

    pool: PoolName
    names: CdiNames
    reader: ClaimReader
    journal: ClaimJournal
    writer: CdiWriter
    provider: CdiProvider
    owners: OwnerBook
    snapshot: Callable[[], Snapshot]
    gpu_locks: GpuLocks
    hardware: HardwareDependencies | None = None
    terms: Callable[[], Terms] = _no_terms
    count: Callable[[Event], None] = _uncounted
    clock: WakeableClock = field(default_factory=MonotonicClock)
    locks: ClaimLocks = field(default_factory=ClaimLocks)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)

    def require_hardware(self) -> HardwareDependencies:
        """What changes GPUs. Raises `NotPermittedError` where this process was given nothing of the kind."""
        if self.hardware is None:
            raise NotPermittedError(
                "this node process was started without the means to change GPUs, so it prepares whole GPUs only, as "
                "they are; look at how it is started"
            )
        return self.hardware
