"""Which holdings of one GPU exclude each other.

Pure. Owns the rule that a GPU is one thing at a time: whole to one claim, or cut into partitions that do not overlap,
or shared one way by shares that together fit. The scheduler keeps to the same rule through counters and consumable
capacity (KEP-4815, KEP-5075); this is the last line, for the moments in which its picture and the node's differ.
Refuses to know where holdings are kept. Admin access excludes nobody and is never looked at.
"""

from collections.abc import Iterable, Iterator, Sequence

from dra_driver.claims.entry import AssignedDevice, AssignedPartition, AssignedSharing, Assignment, Conflict
from dra_driver.model.ids import GpuUuid
from dra_driver.model.terms import Form
from dra_driver.published.names import ALL_PERCENT
from dra_driver.quantity import Quantity


def conflicts(wanted: Sequence[AssignedDevice], assignments: Sequence[Assignment]) -> Iterator[Conflict]:
    """What of ``wanted``, one claim's devices, cannot be had beside ``assignments``, other claims'."""
    devices = [device for device in wanted if not device.admin_access]
    for device in devices:
        rivals = [assigned for assigned in assignments if _excludes(device, assigned.device)]
        if rivals:
            yield Conflict(wanted=device, holders=tuple(assigned.uid for assigned in rivals), other=rivals[0].device)
        elif device.form is Form.SHARE:
            yield from _too_much(device, devices, assignments)


def self_conflict(wanted: Sequence[AssignedDevice]) -> str | None:
    """Why one claim's own devices cannot be had together, in words that follow "has"; None when they all go together.

    Shares count too: nothing that others give back would make a claim fit that asks for more than there is.
    """
    devices = [device for device in wanted if not device.admin_access]
    for position, device in enumerate(devices):
        before = devices[:position]
        for other in before:
            if _excludes(device, other):
                return f"{other.device} and {device.device}, which exclude each other on GPU hardware"
        if device.form is Form.SHARE and (why := _shortage(_sharing(device), _shares_of(device.gpu_uuid, before))):
            return f"a share of {device.device} that {why}, its own shares alone counted"
    return None


def overlaps(wanted: Sequence[AssignedDevice], partition: AssignedPartition) -> bool:
    """Whether a partition that nobody has any more has to go before ``wanted`` can be had."""
    on_its_gpu = [each for each in wanted if not each.admin_access and each.gpu_uuid == partition.id.gpu_uuid]
    return any(each.partition is None or each.partition.overlaps(partition) for each in on_its_gpu)


def _excludes(one: AssignedDevice, other: AssignedDevice) -> bool:
    if one.gpu_uuid != other.gpu_uuid:
        # The same name for another GPU: the one of before is gone and its claim has not been unprepared yet.
        same_name = (one.pool, one.device) == (other.pool, other.device)
        return same_name and (not one.share_id or not other.share_id or one.share_id == other.share_id)
    if one.partition is not None and other.partition is not None:
        return one.partition.overlaps(other.partition)
    if one.form is Form.SHARE and other.form is Form.SHARE:
        return one.share_id == other.share_id or _sharing(one).strategy is not _sharing(other).strategy
    return True


def _too_much(
    wanted: AssignedDevice, own: Sequence[AssignedDevice], assignments: Sequence[Assignment]
) -> Iterator[Conflict]:
    """A conflict when the GPU's shares, those that the claim wants beside it included, come to more than there is."""
    others = [assigned for assigned in assignments if assigned.device.gpu_uuid == wanted.gpu_uuid]
    beside = [*(assigned.device for assigned in others), *(each for each in own if each is not wanted)]
    if why := _shortage(_sharing(wanted), _shares_of(wanted.gpu_uuid, beside)):
        yield Conflict(wanted=wanted, holders=tuple(assigned.uid for assigned in others), shortage=why)


def _shares_of(gpu: GpuUuid, devices: Iterable[AssignedDevice]) -> list[AssignedSharing]:
    return [_sharing(each) for each in devices if each.gpu_uuid == gpu and each.form is Form.SHARE]


def _shortage(wanted: AssignedSharing, beside: Sequence[AssignedSharing]) -> str | None:
    share, others = wanted.share, [each.share for each in beside if each.share is not None]
    if share is None:
        return None
    if share.memory is not None and share.total_memory is not None:
        left = share.total_memory - sum(other.memory or 0 for other in others)
        if share.memory > left:
            total = _bytes(share.total_memory)
            return f"asks for {_bytes(share.memory)} of memory where {_bytes(left)} of {total} are left"
    left = ALL_PERCENT - sum(other.percent for other in others)
    if share.percent > left:
        return f"asks for {share.percent} percent of compute where {max(0, left)} of {ALL_PERCENT} are left"
    if share.max_shares is not None:
        left = share.max_shares - sum(other.count for other in others)
        if share.count > max(0, left):
            return f"asks for {share.count} of {share.max_shares} shares where {max(0, left)} are left"
    return None


def _sharing(device: AssignedDevice) -> AssignedSharing:
    if device.sharing is None:
        raise ValueError(f"{device.device} is no share")  # a caller's mistake: it asks the form first
    return device.sharing


def _bytes(count: int) -> str:
    return str(Quantity.from_bytes(max(0, count)))
