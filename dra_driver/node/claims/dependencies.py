"""Interfaces of what the claim workflow gets from other components, and the building blocks of its Protocols.

A function of ``workflow/`` or ``hardware/`` takes one argument ``deps`` whose Protocol names only what the function and
its callees use. `assembly.ClaimDependencies` satisfies all of these Protocols; mypy --strict proves it.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from dra_driver.core.errors import DraError, NotPermittedError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.cdi import CdiSpec, ContainerEdits
from dra_driver.hardware.device_nodes.keeper import WantedNode
from dra_driver.hardware.sharing.daemon import MpsDaemon
from dra_driver.node.claims.entry import OwnerId
from dra_driver.node.claims.gpu_locks import GpuLocks
from dra_driver.node.claims.prepare_gate import PrepareGate
from dra_driver.node.claims.waiting import ClaimLocks, WakeableClock

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
    """Reads one claim from the API server. Errors: `ClaimError` and its subclasses, `KubernetesApiError`.

    With ``within_s`` the call returns or raises within so many seconds. ``read_all`` reads claims side by side and
    returns errors in place of raising them.
    """

    def read(self, ref: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim: ...
    def read_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> dict[ClaimUid, AllocatedClaim | DraError]: ...


class CdiFileRemover(Protocol):
    """Removes a claim's CDI file. Repeatable; raises `StorageError`."""

    def remove_claim(self, uid: str) -> bool: ...


class CdiFileLister(Protocol):
    """Lists the claims that have a CDI file. Raises `StorageError`."""

    def claim_uids(self) -> Collection[ClaimUid]: ...


class ClaimCdiFiles(CdiFileRemover, CdiFileLister, Protocol):
    """Claims' CDI files. All methods may be repeated, and raise `StorageError`."""

    def write_claim(self, uid: str, spec: CdiSpec) -> bool: ...
    def remove_orphans(self, keep: Collection[str]) -> Sequence[ClaimUid]: ...


class CdiEdits(Protocol):
    """Container edits of GPUs and partitions. Errors: `DriverUnavailableError`, `ConfigurationError`."""

    def edits_for(self, gpu: Gpu) -> ContainerEdits: ...
    def edits_for_partition(self, gpu: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits: ...
    def edits_of_share(self) -> ContainerEdits: ...
    def edits_of_claim(self, claim: ClaimUid) -> ContainerEdits: ...


class CdiSources(CdiEdits, Protocol):
    """Container edits, and the base document. Errors: as `CdiEdits`, and `StorageError`.

    ``driver_identity`` is equal while the edits stay the same; None before the driver was found.
    """

    @property
    def driver_identity(self) -> Hashable | None: ...
    def ensure_base(self) -> bool: ...


class DeviceNodes(Protocol):
    """Nodes on the host, see `device_nodes.keeper.NodeKeeper`. Errors: `DeviceNodeError`, `DeviceLostError`."""

    def ensure(self, nodes: Iterable[WantedNode]) -> None: ...


class NoDeviceNodes:
    """Leaves the host's nodes alone."""

    def ensure(self, nodes: Iterable[WantedNode]) -> None:
        """Nothing."""


class MigControl(Protocol):
    """Partitions and MIG mode, see `mig.manager.MigManager`. The caller holds the GPU's lock.

    Errors: `HardwareError`, `StorageError`.
    """

    def create(self, wanted: PartitionId, size: int, *, within_s: float) -> MigInstance: ...
    def destroy(self, partition: PartitionId, *, within_s: float) -> None: ...
    def find(self, partition: PartitionId) -> MigInstance | None: ...
    def restore_mode(self, gpu: GpuUuid) -> bool: ...
    def ensure_whole(self, gpu: GpuUuid, *, within_s: float) -> None: ...


class TimeSliceControl(Protocol):
    """Time slices of whole GPUs, see `sharing.timeslice.TimeSlicer`. The caller holds the GPU's lock."""

    def set(self, gpu: GpuUuid, interval: Interval, *, within_s: float) -> None: ...
    def reset(self, gpu: GpuUuid, *, within_s: float) -> None: ...


class MpsClientFolders(Protocol):
    """The folders through which clients connect to a daemon, as paths for the container runtime."""

    @property
    def pipe(self) -> Path: ...
    @property
    def shm(self) -> Path: ...


class MpsControl(Protocol):
    """MPS daemons, see `sharing.mps.MpsClient`. The caller holds the locks of the daemon's GPUs."""

    def ensure(self, daemon: MpsDaemon, *, within_s: float) -> None: ...
    def release(self, daemon_id: str, gpus: Sequence[GpuUuid], *, within_s: float) -> None: ...
    def daemons(self) -> Sequence[str]: ...
    def daemon(self, daemon_id: str) -> MpsDaemon | None: ...
    def directories(self, daemon_id: str) -> MpsClientFolders: ...


def _no_fabric(_gpu: GpuUuid) -> None:
    """No board has NVSwitches."""


class HardwareDependencies(Struct, frozen=True, kw_only=True):
    """What changes GPUs. ``changed`` is called after every change that a new snapshot would show; ``fabric`` reads the
    state of a GPU in the NVLink fabric (`gpu.backend.GpuControl`)."""

    mig: MigControl
    slicer: TimeSliceControl
    mps: MpsControl
    changed: Callable[[], None]
    fabric: Callable[[GpuUuid], Fabric | None] = _no_fabric


class RunLiveness(Protocol):
    """Which runs of the node process are alive, see `processes.ProcessRegistry`."""

    @property
    def own(self) -> OwnerId: ...
    def is_alive(self, owner: OwnerId) -> bool: ...


# Building blocks: a Protocol of a function group inherits those that it needs and adds its part of the journal.


class HasHardware(Protocol):
    """``hardware`` is None in a process that may not change GPUs: it prepares whole GPUs only."""

    @property
    def hardware(self) -> HardwareDependencies | None: ...


class HasClock(Protocol):
    @property
    def clock(self) -> WakeableClock: ...


class HasGpuLocks(Protocol):
    @property
    def gpu_locks(self) -> GpuLocks: ...


class HasGate(Protocol):
    @property
    def gate(self) -> PrepareGate: ...


class HasClaimLocks(Protocol):
    @property
    def locks(self) -> ClaimLocks: ...


class HasSnapshot(Protocol):
    @property
    def snapshot(self) -> Callable[[], Snapshot]: ...


class HasCount(Protocol):
    @property
    def count(self) -> Callable[[Event], None]: ...


def require_hardware(deps: HasHardware) -> HardwareDependencies:
    """What changes GPUs. Raises `NotPermittedError` in a process that was started without it."""
    if deps.hardware is None:
        raise NotPermittedError(
            "this node process was started without permission to change GPUs, so it prepares only whole GPUs in their "
            "present state; check how the node process is started"
        )
    return deps.hardware
