"""Takes back what was done for a claim, from any state, as often as needed.

Owns the reverse order: note it, remove the CDI file, take back what was made of GPUs, forget. Refuses to know why.
Every step is repeatable, and a run that dies between two of them leaves an entry in state ``unpreparing``, which the
next unprepare, a claim that wants the device, or `recover` carries on with.

Callers hold the claim's lock, and no GPU's.
"""

from collections.abc import Collection

from dra_driver.claims.dependencies import ClaimDependencies
from dra_driver.claims.entry import AttemptToken, Entry, State, gpus_of
from dra_driver.claims.hardware.orphans import remove_orphaned_partitions
from dra_driver.claims.hardware.release import release
from dra_driver.claims.waiting import GpuLockedError
from dra_driver.model.ids import ClaimUid, GpuUuid

LEAST_S = 3.0
"""How long waiting for a GPU takes when nothing else is said, or when a call's time is over: what is half made is in
somebody's way."""
MOST_S = 15.0
"""What is not free by then is left to the next try, so that this worker serves others (of the kubelet's 45 s)."""


def teardown(
    deps: ClaimDependencies,
    uid: ClaimUid,
    *,
    only: AttemptToken | None = None,
    within_s: float = LEAST_S,
    without_driver: bool = False,
) -> bool:
    """Remove the claim's CDI file, what was made of GPUs for it, and its entry, durably; False when there was no entry.

    With ``only``, an entry that is another attempt's is left alone: False. Waits for GPUs for about ``within_s``, at
    most `MOST_S`. ``without_driver`` as in `release`. Raises `StorageError`, `HardwareError` (above all
    `GpuBusyError`: a process still runs in a partition) and `GpuLockedError`; the claim then stays in state
    ``unpreparing``, its devices held.
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
        # Another process took the entry over in between: it is its work now, and its file if it wrote one.
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
        # Read again: while this waited, another run may have undone the claim and made it anew.
        now = deps.journal.entry(entry.ref.uid)
        if now is None or now.attempt != attempt:
            return False
        done = release(deps, now, within_s=within_s, without_driver=without_driver)
        return deps.journal.forget(entry.ref.uid, attempt, partitions_left=not done)


def _teardown_without_entry(deps: ClaimDependencies, uid: ClaimUid, within_s: float) -> None:
    """Take back what is left of a claim without an entry: the journal was lost, or an older version freed it.

    Its partitions, and first the daemons that are for it alone; what it shared with others is for `settle`.
    """
    orphaned_partitions = [orphan for orphan in deps.journal.orphaned_partitions() if orphan.uid == uid]
    hardware = deps.hardware
    if hardware is None or not orphaned_partitions:
        return
    gpus = {orphan.partition.id.gpu_uuid for orphan in orphaned_partitions}
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise _locked(f"claim {uid}", gpus, within_s)
        for daemon in [each for each in hardware.mps.daemons() if each.startswith(f"{uid}-")]:
            hardware.mps.release(daemon, (), within_s=within_s)
        for gpu in sorted(gpus):
            remove_orphaned_partitions(deps, gpu, within_s=within_s, of=uid)


def _locked(claim: str, gpus: Collection[GpuUuid], within_s: float) -> GpuLockedError:
    return GpuLockedError(
        f"{claim} cannot be undone: {', '.join(sorted(gpus))} is being changed by another call, waited for "
        f"{within_s:.0f} s; it is tried again"
    )


def remove_file_without_entry(deps: ClaimDependencies, uid: ClaimUid) -> None:
    """Remove the claim's CDI file if the claim has no entry. Raises `StorageError`.

    Within one journal lock, because another process may be about to begin the same claim and write its file.
    """
    with deps.journal.exclusive():
        if deps.journal.entry(uid) is None:
            deps.writer.remove_claim(uid)


def is_abandoned(deps: ClaimDependencies, entry: Entry) -> bool:
    """Whether nobody works on an entry any more and no container needs it: half done by a run that is dead, or of an
    earlier boot. Its claim's lock has to be held for entries of this run."""
    if is_of_earlier_boot(deps, entry):
        return True
    if entry.state is State.PREPARED:
        return False
    return entry.attempt.owner == deps.owners.own or not deps.owners.is_alive(entry.attempt.owner)


def is_of_earlier_boot(deps: ClaimDependencies, entry: Entry) -> bool:
    """Whether the node was started anew since: no container of then runs. False while either boot is unknown."""
    return bool(deps.journal.boot_id) and entry.boot_id not in ("", deps.journal.boot_id)
