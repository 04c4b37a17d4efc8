"""Detect assignments of one GPU that exclude each other. No I/O.

A GPU is assigned whole to one claim, or as partitions that do not overlap, or as shares of one strategy that fit
together; so is a partition. The scheduler enforces the same with counters and consumable capacity (KEP-4815, KEP-5075);
this check is for moments in which its state and the node's differ. Admin access never conflicts.
"""

from collections.abc import Iterable, Iterator, Sequence

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.quantity import Quantity
from dra_driver.kube.published import ALL_PERCENT
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, AssignedSharing, Assignment, Conflict


def conflicts(wanted: Sequence[AssignedDevice], assignments: Sequence[Assignment]) -> Iterator[Conflict]:
    """The devices of ``wanted``, one claim's devices, that exclude ``assignments`` of other claims."""
    devices = [device for device in wanted if not device.admin_access]
    for device in devices:
        rivals = [
            assigned
            for assigned in assignments
            if _excludes(device, assigned.device) or not _exists_for_both(device, assigned.device)
        ]
        if rivals:
            yield Conflict(wanted=device, holders=tuple(assigned.uid for assigned in rivals), other=rivals[0].device)
        elif device.is_share:
            yield from _too_much(device, devices, assignments)


def self_conflict(wanted: Sequence[AssignedDevice]) -> str | None:
    """The conflict between the claim's own devices, to follow "claim x has"; or None.

    Includes shares: a claim that requests more than the GPU has never fits.
    """
    devices = [device for device in wanted if not device.admin_access]
    for position, device in enumerate(devices):
        before = devices[:position]
        for other in before:
            if _excludes(device, other):
                return f"{other.device} and {device.device}, which exclude each other on GPU hardware"
        if device.is_share and (why := _shortage(_sharing(device), _shares_of(device, before))):
            return f"a share of {device.device} that {why}, counting only its own shares"
    return None


def overlaps(wanted: Sequence[AssignedDevice], partition: AssignedPartition) -> bool:
    """Return whether the orphaned ``partition`` must be destroyed before ``wanted`` can be assigned."""
    on_its_gpu = [each for each in wanted if not each.admin_access and each.gpu_uuid == partition.id.gpu_uuid]
    return any(each.partition is None or each.partition.overlaps(partition) for each in on_its_gpu)


def _excludes(one: AssignedDevice, other: AssignedDevice) -> bool:
    if one.gpu_uuid != other.gpu_uuid:
        # The same name for another GPU: the GPU was replaced, and the claim of the old one is not unprepared yet.
        same_name = (one.pool, one.device) == (other.pool, other.device)
        return same_name and (not one.share_id or not other.share_id or one.share_id == other.share_id)
    if one.is_share and other.is_share and _place(one) == _place(other):
        return one.share_id == other.share_id or _sharing(one).strategy is not _sharing(other).strategy
    if one.partition is not None and other.partition is not None:
        return one.partition.overlaps(other.partition)
    return True


def _exists_for_both(one: AssignedDevice, other: AssignedDevice) -> bool:
    """Return whether both, if they are shares of one partition, mean the same existing instance."""
    if one.partition is None or other.partition is None or one.partition.id != other.partition.id:
        return True
    return one.partition.live is not None and one.partition.live == other.partition.live


def _place(device: AssignedDevice) -> tuple[GpuUuid, PartitionId | None]:
    """Shares of one place add up."""
    return device.gpu_uuid, device.partition.id if device.partition is not None else None


def _too_much(
    wanted: AssignedDevice, own: Sequence[AssignedDevice], assignments: Sequence[Assignment]
) -> Iterator[Conflict]:
    """A conflict when this share and all other shares of its device, also the claim's own, exceed the device."""
    others = [assigned for assigned in assignments if _place(assigned.device) == _place(wanted)]
    beside = [*(assigned.device for assigned in others), *(each for each in own if each is not wanted)]
    if why := _shortage(_sharing(wanted), _shares_of(wanted, beside)):
        yield Conflict(wanted=wanted, holders=tuple(assigned.uid for assigned in others), shortage=why)


def _shares_of(wanted: AssignedDevice, devices: Iterable[AssignedDevice]) -> list[AssignedSharing]:
    return [_sharing(each) for each in devices if each.is_share and _place(each) == _place(wanted)]


def _shortage(wanted: AssignedSharing, beside: Sequence[AssignedSharing]) -> str | None:
    share, others = wanted.share, [each.share for each in beside if each.share is not None]
    if share is None:
        return None
    if share.memory is not None and share.total_memory is not None:
        left = share.total_memory - sum(other.memory or 0 for other in others)
        if share.memory > left:
            total = _bytes(share.total_memory)
            return f"requests {_bytes(share.memory)} of memory where {_bytes(left)} of {total} are left"
    left = ALL_PERCENT - sum(other.percent for other in others)
    if share.percent > left:
        return f"requests {share.percent} percent of compute where {max(0, left)} of {ALL_PERCENT} are left"
    if share.max_shares is not None:
        left = share.max_shares - sum(other.count for other in others)
        if share.count > max(0, left):
            return f"requests {share.count} of {share.max_shares} shares where {max(0, left)} are left"
    return None


def _sharing(device: AssignedDevice) -> AssignedSharing:
    if device.sharing is None:
        raise ValueError(f"{device.device} is not a share")  # a caller's mistake: it must check the form first
    return device.sharing


def _bytes(count: int) -> str:
    return str(Quantity.from_bytes(max(0, count)))
