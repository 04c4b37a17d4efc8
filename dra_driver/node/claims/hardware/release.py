"""Release the hardware state of a claim in reverse order (MPS daemons, time slices, partitions). Restore GPUs without
claims.

A setting, daemon or partition is orphaned when the journal records that this driver created it and no claim entry, in
any state, needs it. Changes without a record stay. While a new journal is being rebuilt, entries are missing: shared
state (a GPU's daemon, time slice, compute mode) stays, and nothing is reclaimed.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from dra_driver.core.errors import DeviceLostError, DraError, DriverUnavailableError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Entry
from dra_driver.node.claims.hardware.partitions import (
    destroy_if_owned,
    remove_orphaned_partitions,
    shared_by_others,
)
from dra_driver.node.claims.hardware.settings import STEP_S, GpuSetting, NotedSetting, ReleaseStep, settings_of
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import ClaimBusyError, Deadline

log = logging.getLogger(__name__)
LOCK_S = 1.0
"""Seconds to wait for a GPU's lock; a GPU in use is left to the next round."""


def release(deps: ClaimDependencies, entry: Entry, *, within_s: float, without_driver: bool = False) -> bool:
    """Run all steps, also those after a step that fails; then raise the first error. Repeatable.

    The caller holds the locks of the entry's GPUs and removes the entry under them: of two claims that end at the same
    time, the second one sees that it is the last. Steps together wait ``within_s``; each still runs once, and steps of
    another process get a second each. Raises `HardwareError`, `StorageError`.

    Returns False when a partition may remain: while a rebuild is pending, if other claims may share it; and when a GPU
    of the claim no longer exists on the node, which needs no release. A listed GPU that does
    not answer raises `DeviceLostError`. ``without_driver``: False also when the NVIDIA driver cannot be used; no
    program computes then, and the recorded rest waits for the driver.
    """
    first: DraError | None = None
    complete = True
    try:
        for gpu, step in _steps(deps, entry, Deadline(deps.clock, deps.clock.now() + within_s)):
            try:
                step()
            except DeviceLostError as error:
                if not _is_gone(deps, gpu):
                    first = first or error
                    continue
                complete = False
                facts = {"claim": str(entry.ref), "reason": error}
                log.warning("GPU of a claim disappeared from the node; releasing the claim without it", extra=facts)
            except DriverUnavailableError as error:
                if not without_driver:
                    first = first or error
                    continue
                complete = False
                facts = {"claim": str(entry.ref), "reason": error}
                log.warning("claim released; restoring its GPUs waits for the NVIDIA driver", extra=facts)
            except DraError as error:
                first = first or error
    finally:
        if any(device.partition is not None for device in entry.devices):
            require_hardware(deps).changed()
    if first is not None:
        raise first
    if deps.journal.rebuild_pending and any(device.is_share and device.partition for device in entry.devices):
        return False  # claims that the journal lacks may share the partition
    return complete


def _steps(deps: ClaimDependencies, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
    """Computed one by one, because each gets the time that the steps before it have left."""
    for setting in reversed(settings_of(deps)):
        yield from setting.release_steps(entry, deadline)
    mig = require_hardware(deps).mig
    for device in reversed(entry.devices):
        if device.changes_hardware and device.partition is not None and device.partition.created_by_driver:
            if device.is_share and (
                deps.journal.rebuild_pending or shared_by_others(deps.journal, device.partition, entry.ref.uid)
            ):
                continue  # the journal hands the partition over to a claim that shares it
            destroy = partial(destroy_if_owned, mig, device.partition, within_s=deadline.left_s())
            yield device.gpu_uuid, destroy


def _is_gone(deps: ClaimDependencies, gpu: GpuUuid) -> bool:
    """Return whether the node's inventory lacks the GPU; False while no GPU at all can be read."""
    snapshot = deps.snapshot()
    return bool(snapshot.gpus or snapshot.left_out) and snapshot.gpu_by_uuid(gpu) is None


def restore_gpu_for_claim(
    deps: ClaimDependencies, uid: ClaimUid, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline
) -> None:
    """Restore the GPU for claim ``uid``, which is about to use all or a share of it. Repeatable.

    The caller holds the locks of ``locked``, that GPU's among them, and has recorded the claim. Settings that another
    claim's share needs stay. Raises `HardwareError`, `StorageError`, `GpuLockedError`, and `ClaimBusyError` while the
    owner of the settings is unknown.
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
        raise ownership_unknown(f"the owner of the settings of {gpu} ({', '.join(sorted(keys))})")
    for setting in settings:
        if setting.shared_by_claims and setting.note_key in keys:
            setting.restore_for_claim(gpu, locked, deadline)


def reclaim_orphans(deps: ClaimDependencies, problems: list[str]) -> None:
    """Remove all orphaned partitions, settings and daemons. Skips GPUs that another call has locked.

    Orphans remain after a MIG mode that could not be disabled, and after claims that an older version of the driver
    freed. Appends a message to ``problems`` for each that cannot be removed now. Raises `StorageError` when the journal
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
    return ClaimBusyError(
        f"cannot determine {what}: the node's new journal lacks claims that were prepared before it; the driver's log "
        "has the reason, and the kubelet tries again",
        reason="OwnershipUnknown",
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
    assignments, keys = journal.assignments(gpu), journal.noted_gpus().get(gpu, frozenset())
    for setting in settings:
        if isinstance(setting, NotedSetting) and setting.note_key in keys and not setting.is_needed(assignments):
            setting.restore(gpu, (gpu,))
