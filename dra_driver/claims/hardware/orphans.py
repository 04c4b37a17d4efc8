"""Brings GPUs back to what they were where nobody needs anything else of them.

Owns the judgement that a note, a daemon or a partition is nobody's: it is ours by the journal's word, and no entry of
the journal, in whatever state, has to do with it, seen under the GPU's lock. Nothing else is ever touched: what no note
tells of is not ours. Refuses to know how things are taken back (``mig/``, ``sharing/``).

While a new journal is not rebuilt yet, "no entry" says nothing, so nothing is taken back.

What is left over comes from a MIG mode that could not be switched off while somebody had the GPU open, and from claims
that an older version of the driver freed, which knows of none of this.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from dra_driver.claims.dependencies import ClaimDependencies, HardwareDependencies
from dra_driver.claims.entry import Assignment
from dra_driver.claims.hardware.ownership import destroy_if_owned
from dra_driver.claims.waiting import ClaimBusyError, GpuLockedError
from dra_driver.errors import DraError
from dra_driver.gpu.notes import COMPUTE_MODE, MIG_MODE, TIME_SLICE
from dra_driver.model.ids import ClaimUid, GpuUuid
from dra_driver.model.terms import Strategy

log = logging.getLogger(__name__)

LOST_AT_REBOOT = (COMPUTE_MODE, TIME_SLICE)
"""Notes about settings that no GPU keeps over a reboot. MIG mode may be kept, so it is looked at."""
STEP_S = 5.0
LOCK_S = 1.0


def restore_gpu_for_claim(
    deps: ClaimDependencies, uid: ClaimUid, gpu: GpuUuid, locked: Collection[GpuUuid], *, within_s: float
) -> None:
    """Have the GPU as claim ``uid``, which begins to have all or a share of it, may expect it.

    The caller holds the locks of ``locked``, that GPU's among them, and the claim is noted. Costs nothing where nothing
    is noted about the GPU. What another claim's share needs stays. Raises `HardwareError`, `StorageError`,
    `GpuLockedError`, and `ClaimBusyError` while it is not known whose the settings are; repeatable.
    """
    keys = deps.journal.noted_gpus().get(gpu)
    if not keys:
        return
    hardware = deps.require_hardware()
    if MIG_MODE in keys:
        try:
            hardware.mig.ensure_whole(gpu, within_s=within_s)
        finally:
            hardware.changed()
    if any(assigned.uid != uid for assigned in deps.journal.assignments(gpu)):
        return
    if keys - {MIG_MODE} and deps.journal.rebuild_pending:
        raise ownership_unknown(f"whose settings {gpu} has ({', '.join(sorted(keys))})")
    if TIME_SLICE in keys:
        hardware.slicer.reset(gpu, within_s=STEP_S)
    if COMPUTE_MODE in keys:
        _stop_orphaned_daemons(deps, hardware, locked, gpu)


def reclaim_orphans(deps: ClaimDependencies, problems: list[str]) -> None:
    """Look at everything that is noted, and take back what is nobody's. Waits for no GPU that is being worked on.

    What cannot be done now is a sentence in ``problems``. Raises `StorageError` when the journal cannot be read.
    """
    hardware = deps.hardware
    if hardware is None or deps.journal.rebuild_pending:
        return
    for gpu in sorted({orphan.partition.id.gpu_uuid for orphan in deps.journal.orphaned_partitions()}):
        _with_gpus_locked(deps, problems, (gpu,), partial(remove_orphaned_partitions, deps, gpu, within_s=STEP_S))
    for gpu in sorted(deps.journal.noted_gpus()):
        _with_gpus_locked(deps, problems, (gpu,), partial(_reclaim_settings, deps, hardware, gpu))
    if tuple(_orphaned_daemons(deps, hardware)):
        every = [gpu.uuid for gpu in deps.snapshot().gpus]  # a MIG device's daemon does not say which GPU is behind it
        _with_gpus_locked(deps, problems, every, lambda: _stop_orphaned_daemons(deps, hardware, every))


def remove_orphaned_partitions(
    deps: ClaimDependencies, gpu: GpuUuid, *, within_s: float, of: ClaimUid | None = None
) -> None:
    """Remove the GPU's partitions that no claim has any more, or of those only claim ``of``'s.

    The caller holds the GPU's lock, and knows that the journal is complete or that the claim is over. Raises as
    `MigWork`. All of them together are waited for ``within_s``.
    """
    hardware, deadline = deps.require_hardware(), deps.clock.now() + within_s
    for orphan in deps.journal.orphaned_partitions():
        if orphan.partition.id.gpu_uuid != gpu or (of is not None and orphan.uid != of):
            continue
        try:
            destroy_if_owned(deps, orphan.partition, within_s=deadline - deps.clock.now())
        finally:
            hardware.changed()
        deps.journal.forget_orphaned_partition(orphan)
        log.warning("a partition of nobody is removed", extra={"partition": str(orphan.partition.id)})


def ownership_unknown(what: str) -> ClaimBusyError:
    """Something may belong to a claim that was prepared before the journal was lost."""
    return ClaimBusyError(
        f"{what} is not known yet: the node's journal is new, and not all claims that were prepared before are known "
        "to it again; the driver's log says what it waits for, and the kubelet tries again"
    )


def _with_gpus_locked(
    deps: ClaimDependencies, problems: list[str], gpus: Sequence[GpuUuid], work: Callable[[], None]
) -> None:
    with deps.gpu_locks.acquire(gpus, LOCK_S) as acquired:
        if not acquired:
            return  # somebody is at it; there is a next time
        try:
            work()
        except DraError as error:
            problems.append(f"{', '.join(gpus)} is not settled yet: {error}")


def _reclaim_settings(deps: ClaimDependencies, hardware: HardwareDependencies, gpu: GpuUuid) -> None:
    """Each note that no claim has to do with. The caller holds the GPU's lock."""
    assignments, keys = deps.journal.assignments(gpu), deps.journal.noted_gpus().get(gpu, frozenset())
    if (
        MIG_MODE in keys
        and not any(assigned.device.partition for assigned in assignments)
        and hardware.mig.restore_mode(gpu)
    ):
        hardware.changed()
    if TIME_SLICE in keys and not uses_strategy(assignments, Strategy.TIME_SLICING):
        hardware.slicer.reset(gpu, within_s=STEP_S)
    if COMPUTE_MODE in keys and not any(assigned.device.sharing for assigned in assignments):
        _stop_orphaned_daemons(deps, hardware, (gpu,), gpu)


def uses_strategy(assignments: tuple[Assignment, ...], strategy: Strategy) -> bool:
    """Whether any of the GPU's claims shares it, as a whole, that way."""
    return any(
        assigned.device.sharing is not None
        and assigned.device.sharing.strategy is strategy
        and assigned.device.partition is None
        for assigned in assignments
    )


def _orphaned_daemons(deps: ClaimDependencies, hardware: HardwareDependencies) -> Iterator[str]:
    # Listed before the journal is read: an intent is noted before its daemon is asked for, so a daemon of this list
    # that no entry knows was forgotten, not just begun. (Whether it is begun again is seen under the lock.)
    listed = hardware.mps.daemons()
    if listed:
        needed = {
            assigned.device.sharing.daemon.id
            for assigned in deps.journal.assignments()
            if assigned.device.sharing is not None and assigned.device.sharing.daemon is not None
        }
        yield from (daemon for daemon in listed if daemon not in needed)


def _stop_orphaned_daemons(
    deps: ClaimDependencies, hardware: HardwareDependencies, locked: Collection[GpuUuid], gpu: GpuUuid | None = None
) -> None:
    """End daemons that no entry needs, of one GPU or of all, and give that GPU's compute mode back."""
    for daemon_id in _orphaned_daemons(deps, hardware):
        daemon = hardware.mps.daemon(daemon_id)
        if gpu is not None and daemon is not None and gpu not in daemon.gpus:
            continue
        # Ending it changes the mode of all its GPUs, and another claim may be about to begin on one of those.
        others = set(daemon.gpus if daemon else ()).difference(locked)
        with deps.gpu_locks.acquire(others, 0.0) as acquired:  # never waits: whoever has them may want ours
            if not acquired:
                raise GpuLockedError(f"MPS daemon {daemon_id} of nobody cannot be ended: another call is at its GPUs")
            hardware.mps.release(daemon_id, (), within_s=STEP_S)
    if gpu is not None:
        hardware.mps.release(gpu, (gpu,), within_s=STEP_S)
