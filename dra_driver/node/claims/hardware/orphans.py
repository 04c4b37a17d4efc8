"""Restores GPUs that no claim needs in their changed state.

A note, a daemon or a partition is orphaned when the journal says that this driver created it and no claim entry, in any
state, needs it; both are checked under the GPU's lock. Changes without a record are foreign and stay. While a new
journal is being rebuilt, entries are missing, so nothing is reclaimed.

Orphans come from a MIG mode that could not be switched off while a process had the GPU open, and from claims that an
older version of the driver freed, which does not know of partitions and settings.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.hardware.partitions import remove_orphaned_partitions
from dra_driver.node.claims.hardware.settings import STEP_S, GpuSetting, NotedSetting, settings_of
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import ClaimBusyError, Deadline

log = logging.getLogger(__name__)

LOCK_S = 1.0
"""Seconds to wait for a GPU's lock; a GPU in use is left to the next round."""


def restore_gpu_for_claim(
    deps: ClaimDependencies, uid: ClaimUid, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline
) -> None:
    """Restore the GPU for claim ``uid``, which is about to use all or a share of it.

    The caller holds the locks of ``locked``, that GPU's among them, and has recorded the claim. One read of the journal
    when the GPU has no notes. Settings that another claim's share needs stay. Raises `HardwareError`, `StorageError`,
    `GpuLockedError`, and `ClaimBusyError` while it is unknown whose the settings are. Repeatable.
    """
    keys = deps.journal.noted_gpus().get(gpu)
    if not keys:
        return
    settings = [setting for setting in settings_of(deps) if isinstance(setting, NotedSetting)]
    exclusive = [setting for setting in settings if not setting.shared_by_claims]
    for setting in exclusive:
        if setting.note_key in keys:
            setting.restore_for_claim(gpu, locked, deadline)
    if any(assigned.uid != uid for assigned in deps.journal.assignments(gpu)):
        return
    if keys.difference(setting.note_key for setting in exclusive) and deps.journal.rebuild_pending:
        raise ownership_unknown(f"which claim the settings of {gpu} belong to ({', '.join(sorted(keys))})")
    for setting in settings:
        if setting.shared_by_claims and setting.note_key in keys:
            setting.restore_for_claim(gpu, locked, deadline)


def reclaim_orphans(deps: ClaimDependencies, problems: list[str]) -> None:
    """Remove all orphaned partitions, settings and daemons. Skips GPUs that another call has locked.

    Appends a sentence to ``problems`` for each that cannot be removed now. Raises `StorageError` when the journal
    cannot be read.
    """
    if deps.hardware is None or deps.journal.rebuild_pending:
        return
    settings = settings_of(deps)
    for gpu in sorted({orphan.partition.id.gpu_uuid for orphan in deps.journal.orphaned_partitions()}):
        _with_gpus_locked(deps, problems, (gpu,), partial(remove_orphaned_partitions, deps, gpu, within_s=STEP_S))
    for gpu in sorted(deps.journal.noted_gpus()):
        _with_gpus_locked(deps, problems, (gpu,), partial(_reclaim_settings, deps.journal, settings, gpu))
    for setting in settings:
        if setting.has_orphans():
            every = [gpu.uuid for gpu in deps.snapshot().gpus]
            _with_gpus_locked(deps, problems, every, partial(setting.remove_orphans, every))


def ownership_unknown(what: str) -> ClaimBusyError:
    """Something may belong to a claim that was prepared before the journal was lost."""
    return ClaimBusyError(
        f"it is not known yet {what}: the node's journal is new and does not have all claims yet that were prepared "
        "before; the driver's log says what it waits for, and the kubelet tries again"
    )


def _with_gpus_locked(
    deps: ClaimDependencies, problems: list[str], gpus: Sequence[GpuUuid], work: Callable[[], None]
) -> None:
    with deps.gpu_locks.acquire(gpus, LOCK_S) as acquired:
        if not acquired:
            return  # another call changes the GPU; the next round comes
        try:
            work()
        except DraError as error:
            problems.append(f"{', '.join(gpus)} cannot be restored yet: {error}")


def _reclaim_settings(journal: Journal, settings: Sequence[GpuSetting], gpu: GpuUuid) -> None:
    """Restore each noted setting that no claim needs. The caller holds the GPU's lock."""
    assignments, keys = journal.assignments(gpu), journal.noted_gpus().get(gpu, frozenset())
    for setting in settings:
        if isinstance(setting, NotedSetting) and setting.note_key in keys and not setting.is_needed(assignments):
            setting.restore(gpu, (gpu,))
