"""Brings the partitions to which a claim has admin access up to date in a snapshot.

Another claim may have created the partition a moment ago, after the snapshot was taken; partitions that a claim creates
or holds are looked up under their GPU's lock in any case. The GPU's lock is taken, so that a creation in progress ends
before the look.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.mig import MigInstance, PartitionId, parse_partition_name
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AssignedDevice
from dra_driver.node.claims.waiting import GpuLockedError


def places_of_claim(claim: AllocatedClaim, snapshot: Snapshot) -> list[PartitionId]:
    """The places of partitions with admin access. Pure."""
    found = []
    for result in claim.results if any(result.admin_access for result in claim.results) else ():
        part = parse_partition_name(result.device) if result.admin_access else None
        gpu = snapshot.gpu(DeviceName(f"gpu-{part.minor}")) if part is not None else None
        if part is not None and gpu is not None:
            found.append(PartitionId(gpu.uuid, part.profile_id, part.start))
    return found


def places_of_devices(devices: Iterable[AssignedDevice]) -> list[PartitionId]:
    """The same for a claim in the journal. Pure."""
    return [device.partition.id for device in devices if device.admin_access and device.partition is not None]


def fresh_snapshot(
    deps: ClaimDependencies, ref: ClaimRef, places: Iterable[PartitionId], snapshot: Snapshot, *, within_s: float
) -> Snapshot:
    """The snapshot with what is at these places now.

    Raises `GpuLockedError` after ``within_s`` seconds, and `HardwareError`.
    """
    wanted = [place for place in places if snapshot.gpu_by_uuid(place.gpu_uuid) is not None]
    if not wanted or deps.hardware is None:
        return snapshot
    gpus = sorted({place.gpu_uuid for place in wanted})
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise GpuLockedError(
                f"claim {ref} has admin access to a partition of {', '.join(gpus)}, which another call has locked for "
                f"more than {within_s:.0f} s; the driver tries again"
            )
        found = {place: deps.hardware.mig.find(place) for place in wanted}
    return replace(snapshot, gpus=tuple(_with(gpu, found) for gpu in snapshot.gpus))


def _with(gpu: Gpu, found: dict[PartitionId, MigInstance | None]) -> Gpu:
    asked = {(place.profile_id, place.start): one for place, one in found.items() if place.gpu_uuid == gpu.uuid}
    if not asked:
        return gpu
    known = {(one.profile_id, one.start): one for one in gpu.mig_instances}
    merged = known | {at: _kept(known.get(at), one) for at, one in asked.items() if one is not None}
    left = [one for at, one in merged.items() if at not in asked or asked[at] is not None]
    return replace(gpu, mig_instances=tuple(sorted(left, key=lambda one: one.start)))


def _kept(before: MigInstance | None, now: MigInstance) -> MigInstance:
    """``now``, with what the snapshot says about who created it: the hardware does not know that."""
    return replace(now, owned=before.owned) if before is not None else now
