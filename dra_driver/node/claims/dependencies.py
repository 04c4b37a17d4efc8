"""The components that the claim workflow uses, passed as ``deps``. A Protocol has a second implementation in tests."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, Protocol

from msgspec import Struct, field

from dra_driver.core.errors import DraError, NotPermittedError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid, PoolName
from dra_driver.core.model.terms import Terms
from dra_driver.hardware.cdi import CdiNames, CdiWriter, ContainerEdits
from dra_driver.hardware.device_nodes.reconciler import WantedNode
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.hardware.sharing.timeslice import TimeSlicer
from dra_driver.node.claims.entry import OwnerId
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import ClaimLocks, GpuLocks, MonotonicClock, PrepareGate, RetryPolicy, WakeableClock

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
"""Events that are counted; a closed set, used as a metric's label."""


class ClaimReader(Protocol):
    """Reads claims from the API server. Errors: `ClaimError` and its subclasses, `KubernetesApiError`.

    With ``within_s`` a call ends within that many seconds. ``ask_all`` reads in parallel: its result, which must be
    called, waits for the answers and returns errors instead of raising them.
    """

    def read(self, ref: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim: ...
    def ask_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Callable[[], dict[ClaimUid, AllocatedClaim | DraError]]: ...


class CdiSources(Protocol):
    """Container edits and the base document. Errors: `DriverUnavailableError`, `ConfigurationError`, `StorageError`.

    ``driver_identity`` stays equal while the edits do; None before the driver is found.
    """

    @property
    def driver_identity(self) -> Hashable | None: ...
    def ensure_base(self) -> bool: ...
    def edits_for(self, gpu: Gpu) -> ContainerEdits: ...
    def edits_for_partition(self, gpu: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits: ...
    def edits_of_share(self) -> ContainerEdits: ...
    def edits_of_claim(self, claim: ClaimUid) -> ContainerEdits: ...


class DeviceNodes(Protocol):
    """Subset of `DeviceNodeReconciler` that prepare uses. Errors: `DeviceNodeError`, `DeviceLostError`."""

    def ensure(self, nodes: Iterable[WantedNode]) -> None: ...


class NoDeviceNodes:
    """Leaves the host's nodes unchanged."""

    def ensure(self, nodes: Iterable[WantedNode]) -> None: ...


class RunLiveness(Protocol):
    """Liveness of runs of the node process: `processes.ProcessRegistry`."""

    @property
    def own(self) -> OwnerId: ...
    def is_alive(self, owner: OwnerId) -> bool: ...


class HardwareDependencies(Struct, frozen=True, kw_only=True):
    """The components that change GPUs; the caller holds the GPU's lock. Errors: `HardwareError`, `StorageError`.

    ``changed`` is called after each change that a new snapshot shows. ``fabric`` reads a GPU's NVLink fabric state.
    """

    mig: MigManager
    slicer: TimeSlicer
    mps: MpsClient
    changed: Callable[[], None]
    fabric: Callable[[GpuUuid], Fabric | None] = lambda _gpu: None


class ClaimDependencies(Struct, frozen=True, kw_only=True):
    """All components of the claim service.

    ``hardware`` is None in a process that may not change GPUs: it prepares whole GPUs only. ``metadata``: prepares
    write device metadata files.
    """

    pool: PoolName
    names: CdiNames
    reader: ClaimReader
    journal: Journal
    writer: CdiWriter
    metadata: bool = False
    provider: CdiSources
    device_nodes: DeviceNodes = field(default_factory=NoDeviceNodes)
    owners: RunLiveness
    snapshot: Callable[[], Snapshot]
    gpu_locks: GpuLocks
    hardware: HardwareDependencies | None = None
    terms: Callable[[], Terms] = dict
    count: Callable[[Event], None] = lambda _event: None
    clock: WakeableClock = field(default_factory=MonotonicClock)
    locks: ClaimLocks = field(default_factory=ClaimLocks)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    gate: PrepareGate = field(default_factory=PrepareGate)


def require_hardware(deps: ClaimDependencies) -> HardwareDependencies:
    """Return ``deps.hardware``. Raises `NotPermittedError` in a process without it."""
    if deps.hardware is None:
        raise NotPermittedError(
            "this node process was started without permission to change GPUs, so it prepares only whole GPUs in their "
            "present state; check how the node process is started",
            reason="HardwareNotPermitted",
        )
    return deps.hardware
