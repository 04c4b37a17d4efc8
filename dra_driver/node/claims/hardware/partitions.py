"""Inspect, create and remove the partitions of claims.

An instance that exists before the claim's intent is recorded is used and never destroyed. A partition that could not be
created is recorded as not created, so that an instance that appears there later is not taken for the driver's own.
"""

import logging
from collections.abc import Iterable

from msgspec.structs import replace

from dra_driver.core.errors import DraError, GpuBusyError, HardwareError, NoRoomError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import AssignedPartition, AttemptToken, InstanceIds
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.planning.plan import PreparePlan
from dra_driver.node.claims.waiting import Deadline

log = logging.getLogger(__name__)

STEP_S = 5.0
"""Seconds to try a busy GPU within one attempt; the call itself tries again while it has time (`waiting`)."""


def inspect_partitions(deps: ClaimDependencies, todo: PreparePlan) -> PreparePlan:
    """Return the plan with, for each partition, whether it exists already. Changes nothing.

    Raises `NoRoomError` for an unusable instance that the driver did not create. For an instance of this driver, the
    journal's ``begin`` reports its claim.
    """
    seen: set[PartitionId] = set()  # two shares of one partition in one claim: the first creates it
    for position, part in todo.partitions:
        found = require_hardware(deps).mig.find(part.id)
        live = InstanceIds.of(found) if found else None
        if found is not None and live is None and not _is_recorded_as_created(deps.journal, part):
            raise NoRoomError(
                f"{todo.devices[position].device} of claim {todo.ref} cannot be created: GPU instance {found.gi_id} is "
                "in its place, incomplete or divided into smaller compute instances, and was not created by this "
                "driver; remove it (nvidia-smi mig -dci, -dgi) or delete the pod"
            )
        creates = live is None and part.id not in seen
        seen.add(part.id)
        todo = todo.with_device(position, partition=replace(part, created_by_driver=creates, live=live))
    return todo


def create_partitions(
    deps: ClaimDependencies, todo: PreparePlan, attempt: AttemptToken, deadline: Deadline
) -> PreparePlan:
    """Create the missing partitions in the order of the allocation. Returns the plan with their ids."""
    hardware = require_hardware(deps)
    to_create = [(position, part) for position, part in todo.partitions if part.created_by_driver]
    for count, (_, part) in enumerate(to_create):
        try:
            created = _create_partition(deps, part, deadline)
        except DraError as error:
            left_over = isinstance(error, HardwareError) and error.left_over
            _mark_not_created(deps.journal, todo, attempt, to_create[count + 1 if left_over else count :])
            raise
        finally:
            hardware.changed()
        live = InstanceIds.of(created)
        for at, same in [(at, each) for at, each in todo.partitions if each.id == part.id]:
            todo = todo.with_device(at, partition=replace(same, live=live))
    return todo


def shared_by_others(journal: Journal, partition: AssignedPartition, uid: ClaimUid) -> bool:
    """Return whether another claim, in any state, has the partition."""
    others = (assigned for assigned in journal.assignments(partition.id.gpu_uuid) if assigned.uid != uid)
    return any(other.device.partition is not None and other.device.partition.id == partition.id for other in others)


def remove_orphaned_partitions(
    deps: ClaimDependencies, gpu: GpuUuid, *, within_s: float, of: ClaimUid | None = None
) -> None:
    """Remove the GPU's partitions whose claim has no entry; with ``of``, only partitions of that claim. A partition
    that another claim shares stays, with that claim.

    The caller holds the GPU's lock, and knows that the journal is complete or that the claim has ended. Waits
    ``within_s`` for all of them together. Raises as `MigManager`.
    """
    hardware, deadline = require_hardware(deps), Deadline(deps.clock, deps.clock.now() + within_s)
    for orphan in deps.journal.orphaned_partitions():
        if orphan.partition.id.gpu_uuid != gpu or (of is not None and orphan.uid != of):
            continue
        if shared_by_others(deps.journal, orphan.partition, orphan.uid):
            deps.journal.forget_orphaned_partition(orphan)  # hands it over
            continue
        try:
            destroy_if_owned(hardware.mig, orphan.partition, within_s=deadline.left_s())
        finally:
            hardware.changed()
        deps.journal.forget_orphaned_partition(orphan)
        log.warning("orphaned partition removed", extra={"partition": str(orphan.partition.id)})


def _create_partition(deps: ClaimDependencies, part: AssignedPartition, deadline: Deadline) -> MigInstance:
    """Create it; after `NoRoomError` remove the GPU's orphaned partitions and retry once.

    Overlapping orphans are already removed, but another orphan may have engines that it needs (``+me`` profiles). The
    scheduler counts both as free.
    """
    mig = require_hardware(deps).mig
    try:
        return mig.create(part.id, part.size, within_s=deadline.left_s())
    except NoRoomError as error:
        gpu = part.id.gpu_uuid
        orphans = [orphan for orphan in deps.journal.orphaned_partitions() if orphan.partition.id.gpu_uuid == gpu]
        if error.left_over or not orphans or deps.journal.rebuild_pending:
            raise
        try:
            remove_orphaned_partitions(deps, gpu, within_s=deadline.left_s(most_s=STEP_S))
        except HardwareError as busy:
            raise GpuBusyError(
                f"{error}; {orphans[0].partition.id} of a claim that has ended cannot be removed yet: {busy}",
                reason="OrphanBusy",
            ) from busy
    return mig.create(part.id, part.size, within_s=deadline.left_s())


def _mark_not_created(
    journal: Journal, todo: PreparePlan, attempt: AttemptToken, parts: Iterable[tuple[int, AssignedPartition]]
) -> None:
    """Record that these partitions were not created. If that fails, teardown looks for them, which matters only to an
    instance that another manager creates there before the teardown."""
    for position, part in parts:
        todo = todo.with_device(position, partition=replace(part, created_by_driver=False))
    try:
        journal.amend(todo.ref.uid, attempt, todo.assigned)
    except DraError:
        return  # the first error is the one to report


def _is_recorded_as_created(journal: Journal, part: AssignedPartition) -> bool:
    """Return whether the driver created this partition for a claim, with an entry or without."""
    recorded = [assigned.device.partition for assigned in journal.assignments(part.id.gpu_uuid)]
    recorded += [orphan.partition for orphan in journal.orphaned_partitions()]
    return any(each is not None and each.created_by_driver and each.id == part.id for each in recorded)


def is_same(found: MigInstance, recorded: AssignedPartition) -> bool:
    """Return whether ``found`` can be ``recorded``. An incomplete instance has no UUID to compare.

    MIG UUIDs derive from the ids of GPU, GPU instance and compute instance, so they repeat with the ids. Different
    UUIDs prove that the driver's instance no longer exists.
    """
    ids, device = recorded.live, found.device
    return ids is None or (found.gi_id == ids.gi_id and (device is None or device.uuid == ids.uuid))


def destroy_if_owned(mig: MigManager, partition: AssignedPartition, *, within_s: float) -> None:
    """Destroy the partition. An instance of another manager in its place stays, and MIG mode with it.

    The caller holds the GPU's lock. Raises as `MigManager.destroy`.
    """
    found = mig.find(partition.id)
    if found is not None and not is_same(found, partition):
        facts = {"partition": str(partition.id), "gi": found.gi_id}
        log.warning("another manager's instance replaced the partition; leaving the instance", extra=facts)
        return
    mig.destroy(partition.id, within_s=within_s)
