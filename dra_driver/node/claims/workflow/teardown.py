"""Undo a claim's changes from any state, repeatably, and resolve device conflicts by tearing down abandoned claims.

In reverse order of prepare: record the intent, remove the CDI file, release the GPUs, remove the entry. A process that
dies in between leaves an entry in state ``unpreparing``; the next unprepare, a claim that needs the device, or
`recover` continues. Callers hold the claim's lock, and no GPU's.
"""

import logging
from collections.abc import Collection

from dra_driver.core.errors import DeviceInUseError, GpuBusyError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken, Blocked, Entry, State, gpus_of
from dra_driver.node.claims.hardware.partitions import remove_orphaned_partitions
from dra_driver.node.claims.hardware.release import ownership_unknown, release
from dra_driver.node.claims.hardware.settings import settings_of
from dra_driver.node.claims.planning.plan import PreparePlan
from dra_driver.node.claims.waiting import CallBudget, ClaimBusyError, GpuLockedError

log = logging.getLogger(__name__)

LEAST_S = 3.0
"""Seconds to wait for a GPU without a limit from the caller, or after a call's time has ended: incomplete work blocks
other claims."""
MOST_S = 15.0
"""Seconds after which the rest is left to the next attempt, so that this worker is free (of the kubelet's 45 s)."""
STEP_S = 5.0
"""Seconds to wait for one leftover, and before that for its GPUs; the call tries again while its time lasts."""


def teardown(
    deps: ClaimDependencies,
    uid: ClaimUid,
    *,
    only: AttemptToken | None = None,
    within_s: float = LEAST_S,
    without_driver: bool = False,
) -> bool:
    """Remove the claim's CDI file, release its GPUs, and remove its entry, durably; False when it had no entry.

    With ``only``, an entry of another attempt stays: False. Waits for GPUs for about ``within_s``, at most `MOST_S`.
    ``without_driver`` as in `release`. Raises `StorageError`, `HardwareError` (mostly `GpuBusyError`: a process still
    runs in a partition) and `GpuLockedError`; the claim then stays in state ``unpreparing`` and keeps its devices.
    """
    attempt = deps.journal.start_unprepare(uid, only=only)
    if attempt is None:
        if only is None:
            _teardown_without_entry(deps, uid, max(0.0, min(within_s, MOST_S)))
        remove_file_without_entry(deps, uid)
        return False
    deps.writer.remove_claim(uid)
    entry = deps.journal.entry(uid)
    if entry is not None and entry.changes_hardware:
        forgotten = _teardown_hardware(deps, entry, attempt, max(0.0, min(within_s, MOST_S)), without_driver)
    else:
        forgotten = deps.journal.forget(uid, attempt)
    if not forgotten:
        # Another process has taken the entry over. It continues, and its CDI file stays.
        remove_file_without_entry(deps, uid)
    deps.clock.wake_all()
    return True


def _teardown_hardware(
    deps: ClaimDependencies, entry: Entry, attempt: AttemptToken, within_s: float, without_driver: bool
) -> bool:
    gpus = gpus_of(entry.devices)
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise _locked(f"claim {entry.ref}", gpus, within_s)
        # Read again: during the wait, another run may have torn the claim down and prepared it again.
        now = deps.journal.entry(entry.ref.uid)
        if now is None or now.attempt != attempt:
            return False
        complete = release(deps, now, within_s=within_s, without_driver=without_driver)
        return deps.journal.forget(entry.ref.uid, attempt, partitions_left=not complete)


def _teardown_without_entry(deps: ClaimDependencies, uid: ClaimUid, within_s: float) -> None:
    """Release the remains of a claim without an entry: the journal was lost, or an older driver version freed it.

    First settings of this claim only, then its partitions. `reclaim_orphans` restores settings shared with other
    claims.
    """
    orphans = [orphan for orphan in deps.journal.orphaned_partitions() if orphan.uid == uid]
    if deps.hardware is None or not orphans:
        return
    gpus = {orphan.partition.id.gpu_uuid for orphan in orphans}
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise _locked(f"claim {uid}", gpus, within_s)
        for setting in settings_of(deps):
            setting.release_without_entry(uid, within_s=within_s)
        for gpu in sorted(gpus):
            remove_orphaned_partitions(deps, gpu, within_s=within_s, of=uid)


def _locked(claim: str, gpus: Collection[GpuUuid], within_s: float) -> GpuLockedError:
    return GpuLockedError(
        f"{claim} cannot be torn down: another call has locked {', '.join(sorted(gpus))} for more than "
        f"{within_s:.0f} s; the driver tries again"
    )


def remove_file_without_entry(deps: ClaimDependencies, uid: ClaimUid) -> None:
    """Remove the claim's CDI file if the claim has no entry. Raises `StorageError`.

    Under the journal's lock, because another process may be about to begin the same claim and write its file.
    """
    with deps.journal.exclusive():
        if deps.journal.entry(uid) is None:
            deps.writer.remove_claim(uid)


def is_abandoned(deps: ClaimDependencies, entry: Entry) -> bool:
    """Return whether no run works on the entry and no container needs it: incomplete work of a dead run, or of an
    earlier boot. For entries of this run the caller holds the claim's lock."""
    if is_of_earlier_boot(deps, entry):
        return True
    if entry.state is State.PREPARED:
        return False
    return entry.attempt.owner == deps.owners.own or not deps.owners.is_alive(entry.attempt.owner)


def is_of_earlier_boot(deps: ClaimDependencies, entry: Entry) -> bool:
    """Return whether the node has rebooted since the entry's boot. False while either boot is unknown."""
    return bool(deps.journal.boot_id) and entry.boot_id not in ("", deps.journal.boot_id)


def unprepare_claim(deps: ClaimDependencies, ref: ClaimRef, *, budget: CallBudget) -> None:
    """Free the claim's devices on this node (NodeUnprepareResources); a claim without any is success. Thread-safe.

    Needs neither the claim object nor an entry, and works without the NVIDIA driver, which releases the recorded rest
    later. The kubelet (``pkg/kubelet/cm/dra/manager.go``) also calls it for claims that were never prepared or no
    longer exist. A failure keeps the pod in ``Terminating``, and the kubelet retries after 10 to 60 seconds.

    Waits until ``budget.deadline`` for other calls. Raises `StorageError`, `HardwareError` or `GpuLockedError` (the
    claim keeps its devices, call again), or `ClaimBusyError` when an earlier call for the same claim does not end.
    """
    with deps.locks.acquire(ref.uid, budget.deadline - deps.clock.now()) as acquired, deps.gate.work():
        if not acquired:
            raise ClaimBusyError(
                f"claim {ref} is still in use by an earlier call after {deps.retry_policy.call_s:g} s; "
                "the kubelet tries again",
                reason="ClaimLocked",
            )
        if teardown(deps, ref.uid, within_s=budget.deadline - deps.clock.now(), without_driver=True):
            deps.count("unprepared")
            log.info("claim unprepared", extra={"claim": str(ref)})
        else:
            log.info("claim was not prepared, nothing to unprepare", extra={"claim": str(ref)})


def resolve_conflicts(deps: ClaimDependencies, todo: PreparePlan, blocked: Blocked, *, within_s: float) -> None:
    """Tear down what dead runs left of the blockers; return when that may have helped. Does not wait for a claim in
    use.

    The caller holds no GPU's lock. Raises `ClaimBusyError` for the claim's own entry and while a new journal does not
    know a partition's claim, `DeviceInUseError` when no blocker is abandoned, and errors of the teardown.
    """
    if blocked.by and blocked.by[0].ref.uid == todo.ref.uid:
        raise busy(blocked.by[0])
    if blocked.orphaned_partitions and deps.journal.rebuild_pending:
        partition = blocked.orphaned_partitions[0].partition.id
        raise ownership_unknown(f"the claim of {partition}, which overlaps a device of claim {todo.ref}")
    within_s = min(within_s, STEP_S)
    for gpu in sorted({orphan.partition.id.gpu_uuid for orphan in blocked.orphaned_partitions}):
        with deps.gpu_locks.acquire((gpu,), within_s) as acquired:
            if not acquired:
                raise ClaimBusyError(f"{gpu}, which claim {todo.ref} needs, is being changed; the kubelet tries again")
            remove_orphaned_partitions(deps, gpu, within_s=within_s)
    if blocked.by and not [entry for entry in blocked.by if _teardown_if_abandoned(deps, entry, within_s)]:
        raise in_use(todo, blocked)


def busy(entry: Entry) -> ClaimBusyError:
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
            f"the share of {wanted} for claim {todo.ref} {conflict.shortage}, next to the shares of {claims}; "
            "it fits when the kubelet has unprepared some of them, after their pods have ended"
        )
    how = "" if other.device == wanted else f", which has no room for it beside {other.device}:"
    what = "is already" if not how else "which is"
    return DeviceInUseError(
        f"device {wanted} of claim {todo.ref}{how} {what} {holder.state} for claim {holder.ref}; "
        "it becomes free when the kubelet unprepares that claim, after its pod has ended"
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
