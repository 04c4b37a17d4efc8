"""Build a claim's CDI document: from its plan, or for a prepared claim after verifying that its devices still exist."""

from collections.abc import Iterable

from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.mig import MigInstance, PartitionId, parse_partition_name
from dra_driver.hardware.cdi import CdiSpec, ContainerEdits, claim_spec, mps_edits
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.kube.published import ALL_PERCENT, MIB
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import AssignedDevice, AssignedSharing, Entry, InstanceIds, gpus_of
from dra_driver.node.claims.hardware.settings import settings_of
from dra_driver.node.claims.planning.plan import PlannedDevice, PreparePlan, check_alive, restore_plan
from dra_driver.node.claims.waiting import Deadline, GpuLockedError
from dra_driver.node.claims.workflow.metadata import metadata_mounts


def document_of(deps: ClaimDependencies, todo: PreparePlan) -> CdiSpec:
    """Build the document and ensure its nodes on the host. Base document, partitions and daemons must exist already.

    A device that the claim has both normally and with admin access is listed once, under their common name. Raises as
    `CdiSources`, `DeviceNodes` and `MpsControl.directories`.
    """
    own = {device.cdi_device for device in todo.devices if not device.admin_access}
    named = [device for device in todo.devices if not device.admin_access or device.cdi_device not in own]
    of_claim = deps.provider.edits_of_claim(todo.ref.uid)
    metadata = metadata_mounts(deps, todo)
    edits = [_edits(deps, each) + metadata.get(each.cdi_device, ContainerEdits()) + of_claim for each in named]
    document = claim_spec(deps.names, [(each.cdi_device, found) for each, found in zip(named, edits, strict=True)])
    deps.device_nodes.ensure(node for device in document.devices for node in device.container_edits.device_nodes)
    return document


def _edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    edits = _device_edits(deps, device)
    if device.sharing is not None and device.sharing.share is not None:
        edits += deps.provider.edits_of_share()
    if device.sharing is not None and device.sharing.daemon is not None:
        edits += _mps_edits(deps, device.sharing, device.sharing.daemon)
    return edits


def _device_edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    if device.partition is None:
        return deps.provider.edits_for(device.gpu)
    live = device.partition.live
    if live is None:
        raise DeviceLostError(f"partition {device.device} was not created, so it has no CDI edits; the kubelet retries")
    return deps.provider.edits_for_partition(device.gpu, gi_id=live.gi_id, ci_id=live.ci_id, uuid=live.uuid)


def _mps_edits(deps: ClaimDependencies, sharing: AssignedSharing, daemon: MpsDaemon) -> ContainerEdits:
    """A share has its own limits; otherwise the daemon's defaults apply. All of the compute needs no limit."""
    folders, share = require_hardware(deps).mps.directories(daemon.id), sharing.share
    memory = share.memory if share else None
    return mps_edits(
        folders.pipe,
        folders.shm,
        memory_limit_mib=None if memory is None else memory // MIB,
        percentage=share.percent if share and 0 < share.percent < ALL_PERCENT else None,
    )


def places_of_claim(claim: AllocatedClaim, snapshot: Snapshot) -> list[PartitionId]:
    """The places of partitions with admin access. No I/O."""
    found = []
    for result in claim.results if any(result.admin_access for result in claim.results) else ():
        part = parse_partition_name(result.device) if result.admin_access else None
        gpu = snapshot.gpu(DeviceName(f"gpu-{part.minor}")) if part is not None else None
        if part is not None and gpu is not None:
            found.append(PartitionId(gpu.uuid, part.profile_id, part.start))
    return found


def places_of_devices(devices: Iterable[AssignedDevice]) -> list[PartitionId]:
    return [device.partition.id for device in devices if device.admin_access and device.partition is not None]


def fresh_snapshot(
    deps: ClaimDependencies, ref: ClaimRef, places: Iterable[PartitionId], snapshot: Snapshot, *, within_s: float
) -> Snapshot:
    """Return the snapshot with the present instances at these places of admin access.

    Another claim may have created one after the snapshot was taken; the GPU's lock lets a creation in progress end
    first. Raises `GpuLockedError` after ``within_s`` seconds, and `HardwareError`.
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
    """``now``, with its creator according to the snapshot: the hardware does not know it."""
    return replace(now, owned=before.owned) if before is not None else now


def verify_prepared(
    deps: ClaimDependencies, entry: Entry, snapshot: Snapshot, *, within_s: float
) -> tuple[PreparePlan, CdiSpec]:
    """Return the prepared plan and its CDI document. Starts MPS daemons that do not run.

    Waits for GPUs, and for daemons that have to start, for ``within_s`` each. Raises `DeviceLostError` when a device no
    longer exists: its claim stays as it is until the pod is deleted. Also raises `MpsUnavailableError`,
    `GpuLockedError` and as `document_of`.
    """
    snapshot = fresh_snapshot(deps, entry.ref, places_of_devices(entry.devices), snapshot, within_s=within_s)
    prepared = restore_plan(entry, snapshot, deps.names)
    if not prepared.changes_hardware:
        return prepared, document_of(deps, prepared)
    gpus = gpus_of(entry.devices)
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise GpuLockedError(
                f"claim {entry.ref} cannot be verified: another call has locked {', '.join(gpus)} for more than "
                f"{within_s:.0f} s; the driver tries again"
            )
        _verify_hardware(deps, prepared, within_s)
        return prepared, document_of(deps, prepared)


def _verify_hardware(deps: ClaimDependencies, prepared: PreparePlan, within_s: float) -> None:
    mig = require_hardware(deps).mig
    for position, part in prepared.partitions:
        found = mig.find(part.id)
        check_alive(prepared.ref, prepared.devices[position], InstanceIds.of(found) if found else None)
    deadline = Deadline(deps.clock, deps.clock.now() + within_s)
    for setting in settings_of(deps):
        setting.verify(prepared, deadline)
