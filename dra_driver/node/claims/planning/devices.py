"""Finds the GPU, or the part of it, that an allocated device's name means on this node. Pure.

A partition is created for the claim unless it exists: a complete instance of another manager at exactly that placement
is used as it is (it is published under the same name). The hardware is checked again when the claim is prepared.
"""

import re
from collections.abc import Iterator

from dra_driver.core.errors import ClaimError, DeviceLostError, UnknownDeviceError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.mig import MigInstance, PartitionId, PartitionName, parse_partition_name
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, InstanceIds

_WHOLE_GPU = re.compile(r"gpu-[0-9]+")
_MAX_SHOWN = 16


def identify(ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot) -> tuple[Gpu, AssignedPartition | None]:
    """The GPU behind ``result``, and its partition; None for the whole GPU.

    Raises `UnknownDeviceError`. Raises `ClaimError` for a kind of device that is not supported, for a whole GPU in MIG
    mode, and for a partition with admin access that does not exist: admin access creates nothing.
    """
    part = parse_partition_name(result.device)
    gpu = snapshot.gpu(_gpu_name(part) if part else result.device)
    if gpu is None:
        raise _unknown(ref, result, snapshot, f"device {result.device}")
    if part is not None:
        return gpu, _partition(ref, result, gpu, part)
    if gpu.mig_enabled and not gpu.mig_mode_owned and not result.admin_access:
        raise ClaimError(
            f"{result.device} of claim {ref} is in MIG mode, in which a whole GPU runs nothing; "
            f"turn MIG mode off (nvidia-smi -i {gpu.pci_bus_id or gpu.minor} -mig 0) or delete the pod"
        )
    return gpu, None


def same_gpu(ref: ClaimRef, assigned: AssignedDevice, snapshot: Snapshot) -> Gpu:
    """The GPU on which ``assigned`` was prepared, also when it has got another minor, and with it another name, since.

    Raises `DeviceLostError` when the GPU is gone. Looks up partitions of admin access in the snapshot; the others are
    looked up on the hardware, under the GPU's lock.
    """
    gpu = snapshot.gpu_by_uuid(assigned.gpu_uuid)
    if gpu is None:
        part = parse_partition_name(assigned.device)
        name = _gpu_name(part) if part else assigned.device
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


def instance_at(gpu: Gpu, partition: PartitionId) -> MigInstance | None:
    """The snapshot's instance with exactly this profile and start."""
    places = ((one.profile_id, one.start) for one in gpu.mig_instances)
    found = (
        one for one, at in zip(gpu.mig_instances, places, strict=True) if at == (partition.profile_id, partition.start)
    )
    return next(found, None)


def existing(snapshot: Snapshot) -> str:
    """The GPUs of this node and why others are missing, short enough for an event."""
    names = [gpu.device_name for gpu in snapshot.gpus]
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    return (shown or "no usable GPU") + "".join(_left_out(snapshot))


def _partition(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, part: PartitionName) -> AssignedPartition:
    place = PartitionId(gpu.uuid, part.profile_id, part.start)
    there = instance_at(gpu, place)
    live = InstanceIds.of(there) if there else None
    if there is not None and live is not None and (result.admin_access or not there.owned):
        return AssignedPartition(
            id=place, profile_name=there.profile_name, size=there.size, created_by_driver=False, live=live
        )
    if result.admin_access:
        raise ClaimError(
            f"device {result.device} of claim {ref} does not exist on {gpu.device_name} now, and admin "
            "access creates nothing: ask for it without admin access, or for the whole GPU with it"
        )
    return _placement(ref, result, gpu, place)


def _placement(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, place: PartitionId) -> AssignedPartition:
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
    if not _WHOLE_GPU.fullmatch(result.device) and parse_partition_name(result.device) is None:
        return ClaimError(
            f"{what} of claim {ref} is of a kind that this version of the driver does not prepare; "
            f"it prepares whole GPUs and MIG partitions: {existing(snapshot)}"
        )
    return UnknownDeviceError(
        f"{what} of claim {ref} is not on this node, which has {existing(snapshot)}; "
        "delete the pod so that it is scheduled again"
    )


def _gpu_name(part: PartitionName) -> DeviceName:
    return DeviceName(f"gpu-{part.minor}")


def _left_out(snapshot: Snapshot) -> Iterator[str]:
    for gpu in snapshot.left_out[:4]:
        yield f"; {gpu.label} is left out: {gpu.reason}"
