"""What the work on claims is done with: everything that is handed in, in one place.

Owns the narrow interfaces that this room needs of others. Refuses to know who implements them.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dra_driver.cdi.names import CdiNames
from dra_driver.cdi.spec import CdiSpec, ContainerEdits
from dra_driver.claims.entry import Attempt, Blocked, Entry, HeldDevice, OwnerId
from dra_driver.claims.waiting import Bell, ClaimLocks, Patience, RealBell
from dra_driver.model.claim import AllocatedClaim, ClaimRef
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import ClaimUid, PoolName

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


class ClaimJournal(Protocol):
    """The part of `journal.Journal` that the work needs; there for tests that stop it between two steps."""

    @property
    def boot_id(self) -> str: ...
    @property
    def rebuild_pending(self) -> bool: ...
    def entry(self, uid: ClaimUid) -> Entry | None: ...
    def entries(self) -> tuple[Entry, ...]: ...
    def uids(self) -> frozenset[ClaimUid]: ...
    def begin(self, ref: ClaimRef, devices: Sequence[HeldDevice], *, durable: bool = False) -> Attempt | Blocked: ...
    def finish(self, uid: ClaimUid, attempt: Attempt) -> bool: ...
    def start_unprepare(
        self, uid: ClaimUid, *, only: Attempt | None = None, durable: bool = False
    ) -> Attempt | None: ...
    def forget(self, uid: ClaimUid, attempt: Attempt) -> bool: ...
    def adopt(self, ref: ClaimRef, devices: Sequence[HeldDevice]) -> Blocked | None: ...
    def drop_older_boots(self) -> tuple[ClaimUid, ...]: ...
    def note_rebuilt(self) -> None: ...
    def exclusive(self) -> AbstractContextManager[None]: ...
    def tidy(self) -> None: ...


class OwnerBook(Protocol):
    """Which runs of the node process are alive."""

    @property
    def own(self) -> OwnerId: ...
    def is_alive(self, owner: OwnerId) -> bool: ...


def _uncounted(_event: Event) -> None:
    """Counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Handed to every function of this room that changes the world. ``pool`` is this node's pool name."""

    pool: PoolName
    names: CdiNames
    reader: ClaimReader
    journal: ClaimJournal
    writer: CdiWriter
    provider: CdiProvider
    owners: OwnerBook
    snapshot: Callable[[], Snapshot]
    count: Callable[[Event], None] = _uncounted
    bell: Bell = field(default_factory=RealBell)
    locks: ClaimLocks = field(default_factory=ClaimLocks)
    patience: Patience = field(default_factory=Patience)
