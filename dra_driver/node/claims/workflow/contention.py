"""Resolves device conflicts: tears down abandoned claims and orphaned partitions, or reports the device's claim.

Does not wait for a claim that is in use; the caller tries again while its time lasts.
"""

import logging

from dra_driver.core.errors import DeviceInUseError, GpuBusyError
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import Blocked, Entry
from dra_driver.node.claims.hardware.orphans import ownership_unknown
from dra_driver.node.claims.hardware.partitions import remove_orphaned_partitions
from dra_driver.node.claims.planning.plan import PreparePlan
from dra_driver.node.claims.waiting import ClaimBusyError
from dra_driver.node.claims.workflow.teardown import is_abandoned, teardown

log = logging.getLogger(__name__)

STEP_S = 5.0
"""Seconds to wait for one leftover, and before that for its GPUs; the call tries again while its time lasts."""


def resolve_conflicts(deps: ClaimDependencies, todo: PreparePlan, blocked: Blocked, *, within_s: float) -> None:
    """Tear down what dead runs left of the blockers; return when that may have helped.

    The caller holds no GPU's lock. Raises `ClaimBusyError` for the claim's own entry and while a new journal does not
    know which claim a partition belongs to, `DeviceInUseError` naming the claim that has a device when no blocker is
    abandoned, and what tearing one down raises.
    """
    if blocked.by and blocked.by[0].ref.uid == todo.ref.uid:
        raise busy(blocked.by[0])
    if blocked.orphaned_partitions and deps.journal.rebuild_pending:
        partition = blocked.orphaned_partitions[0].partition.id
        raise ownership_unknown(f"which claim {partition} belongs to, which overlaps a device of claim {todo.ref}")
    within_s = min(within_s, STEP_S)
    for gpu in sorted({orphan.partition.id.gpu_uuid for orphan in blocked.orphaned_partitions}):
        with deps.gpu_locks.acquire((gpu,), within_s) as acquired:
            if not acquired:
                raise ClaimBusyError(f"{gpu}, which claim {todo.ref} needs, is being changed; the kubelet tries again")
            remove_orphaned_partitions(deps, gpu, within_s=within_s)
    if blocked.by and not [entry for entry in blocked.by if _teardown_if_abandoned(deps, entry, within_s)]:
        raise in_use(todo, blocked)


def busy(entry: Entry) -> ClaimBusyError:
    """Another run of the driver works on the claim."""
    return ClaimBusyError(f"claim {entry.ref} is {entry.state} in another run of the driver; the kubelet tries again")


def in_use(todo: PreparePlan, blocked: Blocked) -> DeviceInUseError:
    conflict, holder = blocked.conflict, blocked.by[0]
    if conflict is None:
        return DeviceInUseError(
            f"a device of claim {todo.ref} was taken by claim {holder.ref}; the kubelet tries again"
        )
    wanted, other = conflict.wanted.device, conflict.other
    if other is None:
        claims = f"claim {holder.ref}" + (f" and {len(blocked.by) - 1} more" if len(blocked.by) > 1 else "")
        return DeviceInUseError(
            f"the share of {wanted} for claim {todo.ref} {conflict.shortage}, beside the shares of {claims}; "
            "it fits when the kubelet has unprepared some of them, which it does after their pods have ended"
        )
    how = "" if other.device == wanted else f", which has no room for it beside {other.device}:"
    what = "is already" if not how else "that one is"
    return DeviceInUseError(
        f"device {wanted} of claim {todo.ref}{how} {what} {holder.state} for claim {holder.ref}; "
        "it is free when the kubelet has unprepared that claim, which it does after its pod has ended"
    )


def _teardown_if_abandoned(deps: ClaimDependencies, blocker: Entry, within_s: float) -> bool:
    """Tear down another claim's entry if it is abandoned; False when it is in use."""
    if not is_abandoned(deps, blocker):
        return False
    with deps.locks.acquire(blocker.ref.uid, 0.0) as acquired:  # does not wait: two claims could wait for each other
        now = deps.journal.entry(blocker.ref.uid) if acquired else blocker
        if now is None:
            return True
        if not acquired or not is_abandoned(deps, now):
            return False
        try:
            teardown(deps, now.ref.uid, only=now.attempt, within_s=within_s)
        except GpuBusyError as error:
            raise GpuBusyError(f"devices that claim {now.ref} no longer needs cannot be freed yet: {error}") from error
    deps.count("undone")
    log.warning("abandoned claim torn down", extra={"claim": str(blocker.ref)})
    return True
