"""Plan the preparation of one claim: check its allocation, find its GPUs and partitions, choose CDI names. No I/O.

A partition is created for the claim, unless a complete instance of another manager is at exactly that placement: it is
published under the same name and used as it is. The journal decides whether a device is free.
"""

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ClaimError, DeviceLostError, UnknownDeviceError
from dra_driver.core.model import mig
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, PreparedDevice
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.hardware.cdi import CdiNames
from dra_driver.kube.published import memory_view
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, AssignedSharing, Entry, InstanceIds
from dra_driver.node.claims.planning.conflicts import self_conflict
from dra_driver.node.claims.planning.sharing_plan import Granted, PartitionGroup, decode_all, share_of, sharing_plan

MAX_DEVICES = 32
"""Results of one claim (resource/v1 ``AllocationResultsMaxSize``)."""
_WHOLE_GPU = re.compile(r"gpu-[0-9]+")
_MAX_SHOWN = 16


class PlannedDevice(AssignedDevice, frozen=True, kw_only=True):
    """One result of the allocation with its GPU and its CDI names.

    Two results of one claim have the same ``cdi_device`` when both mean the same device (admin access and a normal
    request).
    """

    gpu: Gpu
    cdi_device: str
    cdi_ids: tuple[str, ...]

    @property
    def assigned(self) -> AssignedDevice:
        return AssignedDevice(**{name: getattr(self, name) for name in AssignedDevice.__struct_fields__})


class PreparePlan(Struct, frozen=True, kw_only=True):
    """All devices of one claim, in the order of the allocation.

    ``partition_groups`` are partitions whose MPS daemons are named after the partitions exist. ``claim`` is None for a
    plan of the journal.
    """

    ref: ClaimRef
    devices: tuple[PlannedDevice, ...]
    claim: AllocatedClaim | None = None
    partition_groups: tuple[PartitionGroup, ...] = ()

    @property
    def prepared(self) -> tuple[PreparedDevice, ...]:
        """The answer to the kubelet: one entry per result, because results are its keys of health and pod resources."""
        return tuple(_prepared(device, device.cdi_ids) for device in self.devices)

    @property
    def assigned(self) -> tuple[AssignedDevice, ...]:
        return tuple(device.assigned for device in self.devices)

    @property
    def changes_hardware(self) -> bool:
        return any(device.changes_hardware for device in self.devices)

    @property
    def partitions(self) -> list[tuple[int, AssignedPartition]]:
        """The partitions without admin access, with their positions."""
        parts = [None if device.admin_access else device.partition for device in self.devices]
        return [(position, part) for position, part in enumerate(parts) if part is not None]

    def with_device(self, position: int, **changes: object) -> "PreparePlan":
        changed = replace(self.devices[position], **changes)
        return replace(self, devices=(*self.devices[:position], changed, *self.devices[position + 1 :]))


def plan_claim(
    claim: AllocatedClaim, snapshot: Snapshot, names: CdiNames, pool: PoolName, terms: Terms | None = None
) -> PreparePlan:
    """Plan ``claim`` on the node whose pool is ``pool``. ``terms`` None are the default terms.

    Raises `UnknownDeviceError` (another pool, a device that does not exist here or cannot be created), `ClaimError` (no
    or too many results, devices that exclude each other, an unsupported kind of device or mode of a GPU, a share of a
    GPU that is not shared) or `InvalidParametersError` (a config that is invalid, does not fit, or contradicts the
    policy).
    """
    _check_results(claim, pool)
    configs = decode_all(claim.ref, claim.configs)
    granted = [_granted(claim.ref, result, snapshot, terms or {}) for result in claim.results]
    sharing = sharing_plan(claim.ref, granted, configs)
    devices = [
        _device(claim.ref, _assigned(each, shared), each.gpu, names)
        for each, shared in zip(granted, sharing.devices, strict=True)
    ]
    found = PreparePlan(ref=claim.ref, devices=tuple(devices), claim=claim, partition_groups=sharing.partition_groups)
    if wrong := self_conflict(found.assigned):
        raise ClaimError(f"claim {claim.ref} has {wrong}, so the allocation is broken: delete the claim")
    return found


def restore_plan(entry: Entry, snapshot: Snapshot, names: CdiNames) -> PreparePlan:
    """Return the plan that was carried out for a claim in the journal, checked against the GPUs of the snapshot.

    A GPU is found by its UUID: with a new minor, the claim keeps it under the name of the allocation. Raises
    `DeviceLostError` when a GPU no longer exists. `verify_prepared` checks partitions.
    """
    devices = (
        _device(entry.ref, assigned, same_gpu(entry.ref, assigned, snapshot), names) for assigned in entry.devices
    )
    return PreparePlan(ref=entry.ref, devices=tuple(devices))


def recorded_answer(entry: Entry, names: CdiNames) -> tuple[PreparedDevice, ...]:
    """Return `restore_plan`'s answer from the journal entry only, without reading GPUs."""
    return tuple(_prepared(assigned, _cdi_ids(entry.ref, assigned, names)) for assigned in entry.devices)


def _prepared(device: AssignedDevice, cdi_ids: tuple[str, ...]) -> PreparedDevice:
    return PreparedDevice(
        request_names=(device.request,),
        pool=device.pool,
        device=device.device,
        cdi_device_ids=cdi_ids,
        share_id=device.share_id,
    )


def _check_results(claim: AllocatedClaim, pool: PoolName) -> None:
    if not 0 < len(claim.results) <= MAX_DEVICES:
        raise ClaimError(
            f"claim {claim.ref} has {len(claim.results)} devices of this driver, expected 1 to {MAX_DEVICES}"
        )
    seen: set[tuple[str, str | None]] = set()
    for result in claim.results:
        if result.pool != pool:
            raise UnknownDeviceError(
                f"device {result.device} of claim {claim.ref} is allocated from pool {result.pool}, but this node's "
                f"pool is {pool}: the claim belongs to another node, or the driver was renamed since; delete the pod"
            )
        key = (result.device, result.share_id)
        if not result.admin_access and key in seen:
            raise ClaimError(
                f"claim {claim.ref} lists device {result.device} twice without admin access; "
                "a device can be allocated once only, so the allocation is broken: delete the claim"
            )
        if not result.admin_access:
            seen.add(key)


def _granted(ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot, terms: Terms) -> Granted:
    gpu, partition = identify(ref, result, snapshot)
    of_gpu = terms_of(terms, gpu.uuid)
    share = None
    if result.share_id is not None and not result.admin_access:
        device = gpu
        if partition is not None:
            there = instance_at(gpu, partition.id)
            profile = gpu.profile(partition.id.profile_id) or (there.profile if there is not None else None)
            device = memory_view(gpu, profile)
            of_gpu = replace(of_gpu, sharing=of_gpu.sharing_of(partition.id))
        share = share_of(ref, result, device, of_gpu)
    return Granted(result=result, gpu=gpu, partition=partition, share=share, terms=of_gpu.sharing if share else None)


def _assigned(each: Granted, sharing: AssignedSharing | None) -> AssignedDevice:
    return AssignedDevice(
        request=each.result.base_request,
        pool=each.result.pool,
        device=each.result.device,
        share_id=each.result.share_id,
        admin_access=each.result.admin_access,
        gpu_uuid=each.gpu.uuid,
        partition=each.partition,
        sharing=sharing,
    )


def _device(ref: ClaimRef, assigned: AssignedDevice, gpu: Gpu, names: CdiNames) -> PlannedDevice:
    return PlannedDevice(
        **{name: getattr(assigned, name) for name in AssignedDevice.__struct_fields__},
        gpu=gpu,
        cdi_device=names.claim_device(ref.uid, assigned.device, assigned.share_id),
        cdi_ids=_cdi_ids(ref, assigned, names),
    )


def _cdi_ids(ref: ClaimRef, assigned: AssignedDevice, names: CdiNames) -> tuple[str, ...]:
    """The device's own id first; for a share, last.

    The kubelet reports the health of a device under its first id (KEP-4680: ``resourceID``, the key of
    ``allocatedResourcesStatus[].resources``): under a common id, one of two GPUs would hide the second. A share hides
    files of the common edits (`cdi.masks`), so its own edits come later. Runtimes apply a repeated id once, at its
    first place (containerd internal/cri/opts/spec_linux_opts.go, WithCDI).
    """
    own = names.claim_id(ref.uid, assigned.device, assigned.share_id)
    return (names.common_id, own) if assigned.share_id is not None else (own, names.common_id)


def names_of(devices: Sequence[PlannedDevice]) -> list[str]:
    return [device.device for device in devices]


def identify(ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot) -> tuple[Gpu, AssignedPartition | None]:
    """Return the GPU behind ``result``, and its partition; None for the whole GPU and its monitoring device.

    Raises `UnknownDeviceError`. Raises `ClaimError` for an unsupported kind of device, for a whole GPU in MIG mode, for
    a monitoring device without admin access, and for a missing partition with admin access, which creates nothing.
    """
    part = mig.parse_partition_name(result.device)
    monitored = result.device.removesuffix(mig.MONITOR_SUFFIX)
    if monitored != result.device and not result.admin_access:
        raise ClaimError(
            f"device {result.device} of claim {ref} is for admin access only, and its request has no adminAccess: "
            "request class gpu.nvidia.com for a GPU, and remove the toleration of taint gpu.dra-driver.io/monitor",
            reason="AdminAccessRequired",
        )
    gpu = snapshot.gpu(_gpu_name(part) if part else DeviceName(monitored))
    if gpu is None:
        raise _unknown(ref, result, snapshot, f"device {result.device}")
    if part is not None:
        return gpu, _partition(ref, result, gpu, part)
    if gpu.mig_enabled and not gpu.mig_mode_owned and not result.admin_access:
        raise ClaimError(
            f"{result.device} of claim {ref} is in MIG mode, in which a whole GPU runs nothing; "
            f"disable MIG mode (nvidia-smi -i {gpu.pci_bus_id or gpu.minor} -mig 0) or delete the pod"
        )
    return gpu, None


def same_gpu(ref: ClaimRef, assigned: AssignedDevice, snapshot: Snapshot) -> Gpu:
    """Return the GPU on which ``assigned`` was prepared, also when its minor, and so its name, has changed.

    Raises `DeviceLostError` when the GPU no longer exists. Looks up partitions of admin access in the snapshot; other
    partitions are read from the hardware, under the GPU's lock.
    """
    gpu = snapshot.gpu_by_uuid(assigned.gpu_uuid)
    if gpu is None:
        name = DeviceName(mig.parent_name(assigned.device))
        other = snapshot.gpu(name)
        now = f"{name} is {other.uuid} now" if other else f"this node has {existing(snapshot)}"
        raise DeviceLostError(
            f"claim {ref} was prepared with {assigned.device}, GPU {assigned.gpu_uuid}, which no "
            f"longer exists: {now}; delete the pod so that it gets another GPU"
        )
    if assigned.partition is not None and assigned.admin_access:
        found = instance_at(gpu, assigned.partition.id)
        check_alive(ref, assigned, InstanceIds.of(found) if found else None)
    return gpu


def check_alive(ref: ClaimRef, assigned: AssignedDevice, found: InstanceIds | None) -> None:
    """Raise `DeviceLostError` unless ``found`` is the partition that the claim was prepared with."""
    was = assigned.partition.live if assigned.partition else None
    if was is None or found == was:
        return
    now = f"MIG device {found.uuid} is in its place" if found else "no MIG device is in its place"
    raise DeviceLostError(
        f"claim {ref} was prepared with {assigned.device}, MIG device {was.uuid}, which no longer "
        f"exists: {now}; it was destroyed outside of the driver while in use; delete the pod so that it gets "
        "another one"
    )


def instance_at(gpu: Gpu, partition: mig.PartitionId) -> mig.MigInstance | None:
    """The snapshot's instance with exactly this profile and start."""
    place = partition.profile_id, partition.start
    return next((one for one in gpu.mig_instances if (one.profile_id, one.start) == place), None)


def existing(snapshot: Snapshot) -> str:
    """The GPUs of this node and why others are missing, short enough for an event."""
    names = [gpu.device_name for gpu in snapshot.gpus]
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    left_out = "".join(f"; {gpu.label} is excluded: {gpu.reason}" for gpu in snapshot.left_out[:4])
    return (shown or "no usable GPU") + left_out


def _partition(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, part: mig.PartitionName) -> AssignedPartition:
    place = mig.PartitionId(gpu.uuid, part.profile_id, part.start)
    there = instance_at(gpu, place)
    live = InstanceIds.of(there) if there else None
    if there is not None and live is not None and (result.admin_access or not there.owned):
        return AssignedPartition(
            id=place, profile_name=there.profile_name, size=there.size, created_by_driver=False, live=live
        )
    if result.admin_access:
        raise ClaimError(
            f"device {result.device} of claim {ref} does not exist on {gpu.device_name} now, and admin "
            "access does not create one: request it as a normal device, or request the whole GPU",
            reason="PartitionMissing",
        )
    return _placement(ref, result, gpu, place)


def _placement(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, place: mig.PartitionId) -> AssignedPartition:
    """A partition that can be created. Raises `UnknownDeviceError` when the GPU does not offer it."""
    profile = gpu.profile(place.profile_id)
    if profile is not None and place.start in profile.starts:
        return AssignedPartition(
            id=place, profile_name=profile.name, size=profile.memory_slices, created_by_driver=True
        )
    if profile is not None:
        offered = f"its {profile.name} begins at memory slices {', '.join(map(str, profile.starts)) or '(none)'}"
    else:
        offers = ", ".join(f"{p.name} ({p.profile_id})" for p in gpu.mig_profiles)
        offered = f"it has no MIG profile {place.profile_id}; it has {offers or 'none'}"
    raise UnknownDeviceError(
        f"device {result.device} of claim {ref} cannot be created on {gpu.device_name} "
        f"({gpu.product_name or 'unknown model'}): {offered}; delete the pod so that it is scheduled again"
    )


def _unknown(ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot, what: str) -> ClaimError:
    if (
        not _WHOLE_GPU.fullmatch(result.device.removesuffix(mig.MONITOR_SUFFIX))
        and mig.parse_partition_name(result.device) is None
    ):
        return ClaimError(
            f"{what} of claim {ref} is of a kind that this version of the driver does not prepare; "
            f"it prepares whole GPUs and MIG partitions: {existing(snapshot)}",
            reason="UnsupportedDevice",
        )
    return UnknownDeviceError(
        f"{what} of claim {ref} is not on this node, which has {existing(snapshot)}; "
        "delete the pod so that it is scheduled again"
    )


def _gpu_name(part: mig.PartitionName) -> DeviceName:
    return DeviceName(f"gpu-{part.minor}")
