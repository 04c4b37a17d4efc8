"""Makes GPUs into what a claim was promised: partitions cut, time slices set, MPS daemons running.

Owns the order of the steps and what is noted between them. Refuses to know how each is done (``mig/``, ``sharing/``),
and CDI. The caller holds the locks of the claim's GPUs from `inspect_partitions` until the claim is noted as prepared.

    1. `inspect_partitions`: is an instance at the place already? Then it is somebody else's and is used, not made
    2. the caller notes the intent, durably
    3. `apply_plan`: whole GPUs joined, partitions cut; noted: what they are called; time slices; MPS daemons

A failure leaves whatever was done so far to the caller's `teardown`. What was not made is noted as such first: an
instance that appears in its place later would be somebody else's, and must not be taken for ours.
"""

from collections.abc import Iterator
from dataclasses import replace

from dra_driver.claims.dependencies import ClaimDependencies, HardwareDependencies
from dra_driver.claims.entry import AssignedPartition, AttemptToken, InstanceIds, State, gpus_of
from dra_driver.claims.hardware.orphans import STEP_S, remove_orphaned_partitions, restore_gpu_for_claim
from dra_driver.claims.planning.plan import PreparePlan
from dra_driver.claims.planning.sharing_plan import partition_daemons
from dra_driver.claims.waiting import CallBudget
from dra_driver.errors import DraError, GpuBusyError, HardwareError, NoRoomError, RetryableError
from dra_driver.gpu.notes import TIME_SLICE
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import MigInstance
from dra_driver.model.terms import Form, Interval, Strategy

CREATE_S = 5.0
"""For how long a busy GPU is tried within one attempt; the call itself tries again while it has time (`waiting`)."""
DAEMON_S = 25.0
"""For how long an MPS daemon may take to be ready. Starting one takes about a second, on a busy node several."""
UNDO_RESERVE_S = 5.0
"""Of a call's time, what is kept for taking back what was done."""


def inspect_partitions(deps: ClaimDependencies, todo: PreparePlan) -> PreparePlan:
    """The plan with, for each partition, whether it is there already. Changes nothing.

    Raises `NoRoomError` for an instance of somebody else's that no program can use. An instance that is ours is in the
    journal, so the claim will be blocked by whoever has it, whatever is found here.
    """
    for position, device in enumerate(todo.devices):
        part = device.partition
        if part is None or device.admin_access:
            continue
        there = deps.require_hardware().mig.find(part.id)
        live = InstanceIds.of(there) if there else None
        if there is not None and live is None and not _is_created_by_driver(deps, part):
            raise NoRoomError(
                f"{device.device} of claim {todo.ref} cannot be made: GPU instance {there.gi_id} is in its place, half "
                "made or cut into smaller compute instances by somebody else; remove it (nvidia-smi mig -dci, -dgi) or "
                "delete the pod"
            )
        todo = todo.with_device(position, partition=replace(part, created_by_driver=live is None, live=live))
    return todo


def apply_plan(deps: ClaimDependencies, todo: PreparePlan, attempt: AttemptToken, budget: CallBudget) -> PreparePlan:
    """Carry out the plan, which `inspect_partitions` has been at and which is noted under ``attempt``.

    Returns it with all ids.

    Raises `HardwareError`, `StorageError`, `RetryableError` when the entry was taken over meanwhile.
    """
    hardware, work, locked = deps.require_hardware(), _Work(deps, budget), gpus_of(todo.assigned)
    for device in todo.devices:
        if device.assigned.form is not Form.PARTITION and not device.admin_access:
            restore_gpu_for_claim(deps, todo.ref.uid, device.gpu.uuid, locked, within_s=work.within(CREATE_S))
    todo = _create_partitions(hardware, work, todo, attempt)
    if todo.partition_groups:
        todo = with_partition_daemons(todo)
        if not deps.journal.amend(todo.ref.uid, attempt, todo.assigned):
            raise taken_over(todo)
    _apply_sharing(hardware, work, todo)
    return todo


def with_partition_daemons(todo: PreparePlan) -> PreparePlan:
    """The plan with the daemons of its partitions, which are all there. Raises `InvalidParametersError`."""
    for group in todo.partition_groups:
        parts = [todo.devices[position].partition for position in group.positions]
        uuids = [part.live.uuid for part in parts if part is not None and part.live is not None]
        for position, daemon in partition_daemons(todo.ref.uid, group, uuids):
            sharing = todo.devices[position].sharing
            if sharing is not None:
                todo = todo.with_device(position, sharing=replace(sharing, daemon=daemon))
    return todo


def taken_over(todo: PreparePlan) -> RetryableError:
    """Another run of the driver was told to unprepare the claim."""
    return RetryableError(
        f"claim {todo.ref} was unprepared by another run of the driver while it was being prepared; "
        "the kubelet tries again if the pod still needs it"
    )


class _Work:
    """How much of the call's time each step may take."""

    def __init__(self, deps: ClaimDependencies, budget: CallBudget) -> None:
        self.deps = deps
        self._budget = budget

    def within(self, most_s: float) -> float:
        left_s = self._budget.deadline - UNDO_RESERVE_S - self.deps.clock.now()
        return max(0.0, min(most_s, left_s))


def _create_partitions(
    hardware: HardwareDependencies, work: _Work, todo: PreparePlan, attempt: AttemptToken
) -> PreparePlan:
    """Make the partitions that are not there, in the order of the allocation."""
    to_make = [at for at, part in _partitions(todo) if part.created_by_driver]
    for count, position in enumerate(to_make):
        part = todo.devices[position].partition
        if part is None:
            continue
        try:
            made = _create_partition(hardware, work, part)
        except DraError as error:
            left_over = isinstance(error, HardwareError) and error.left_over
            _mark_not_created(work.deps, todo, attempt, to_make[count + 1 if left_over else count :])
            raise
        finally:
            hardware.changed()
        todo = todo.with_device(position, partition=replace(part, live=InstanceIds.of(made)))
    return todo


def _create_partition(hardware: HardwareDependencies, work: _Work, part: AssignedPartition) -> MigInstance:
    """Make it; where there is no room for it, once more when what nobody has any more is out of the way.

    Whatever overlaps it went before. What does not may still have the engines that it needs, as one ``+me`` has those
    of another, and the scheduler takes both for free.
    """
    try:
        return hardware.mig.create(part.id, part.size, within_s=work.within(CREATE_S))
    except NoRoomError as error:
        gpu, journal = part.id.gpu_uuid, work.deps.journal
        of_nobody = [orphan for orphan in journal.orphaned_partitions() if orphan.partition.id.gpu_uuid == gpu]
        if error.left_over or not of_nobody or journal.rebuild_pending:
            raise
        try:
            remove_orphaned_partitions(work.deps, gpu, within_s=work.within(STEP_S))
        except HardwareError as busy:
            raise GpuBusyError(
                f"{error}; {of_nobody[0].partition.id} of an ended claim is still there: {busy}"
            ) from busy
    return hardware.mig.create(part.id, part.size, within_s=work.within(CREATE_S))


def _mark_not_created(deps: ClaimDependencies, todo: PreparePlan, attempt: AttemptToken, positions: list[int]) -> None:
    """Note that these partitions were not made after all. When that fails they stay noted as ours, and are looked for.

    The entry then says more than is true, which only matters to an instance that somebody else makes in that place
    before it is undone.
    """
    for position in positions:
        part = todo.devices[position].partition
        if part is not None:
            todo = todo.with_device(position, partition=replace(part, created_by_driver=False))
    try:
        deps.journal.amend(todo.ref.uid, attempt, todo.assigned)
    except DraError:
        return  # the first error is the one to report


def _apply_sharing(hardware: HardwareDependencies, work: _Work, todo: PreparePlan) -> None:
    for device in todo.devices:
        sharing = device.sharing
        if sharing is None or sharing.strategy is not Strategy.TIME_SLICING:
            continue
        if not _has_interval(work.deps, todo, device.gpu.uuid, sharing.interval):
            hardware.slicer.set(device.gpu.uuid, sharing.interval, within_s=work.within(CREATE_S))
    daemons = [d.sharing.daemon for d in todo.devices if d.sharing is not None and d.sharing.daemon is not None]
    for daemon in {daemon.id: daemon for daemon in daemons}.values():
        hardware.mps.ensure(daemon, within_s=work.within(DAEMON_S))


def _has_interval(deps: ClaimDependencies, todo: PreparePlan, gpu: GpuUuid, interval: Interval) -> bool:
    """Whether another claim's share has the interval already. The command takes up to a second on hardware."""
    if deps.journal.gpu_note(gpu, TIME_SLICE) != interval:
        return False
    others = (
        deps.journal.entry(assigned.uid) for assigned in deps.journal.assignments(gpu) if assigned.uid != todo.ref.uid
    )
    return any(other is not None and other.state is State.PREPARED for other in others)


def _partitions(todo: PreparePlan) -> Iterator[tuple[int, AssignedPartition]]:
    for position, device in enumerate(todo.devices):
        if device.partition is not None and not device.admin_access:
            yield position, device.partition


def _is_created_by_driver(deps: ClaimDependencies, part: AssignedPartition) -> bool:
    """Whether some claim, or none any more, had the partition made: then that is what is in the way."""
    assignments = deps.journal.assignments(part.id.gpu_uuid)
    assigned = [assigned.device.partition for assigned in assignments] + [
        orphan.partition for orphan in deps.journal.orphaned_partitions()
    ]
    return any(each is not None and each.created_by_driver and each.id == part.id for each in assigned)
