"""Fills a new journal from the CDI files that are there and the claims which the API server knows.

Owns what may be adopted, and when to ask again while something cannot be. Refuses to know why the journal is new.

A partition is adopted as made where the claim's proof says so (`proofs`; a new journal begins with them) and the
instance that is there does not say otherwise; else as one that is used: destroying somebody else's would be worse than
leaving one of ours. What is proven and no claim's is removed once the rebuild is complete, not before.

Until a rebuild is complete, a claim that runs may be unknown to in-use checks, so it is not left to the ten-minute
rounds. While the API server does not answer, asking again costs it nothing and comes every half minute. When it does
answer and a claim still cannot be adopted (its GPU is not back, its device is held), every try lists the whole
cluster's claims, and the pauses grow to ten minutes.
"""

import logging
from dataclasses import replace

from dra_driver.backoff import Backoff
from dra_driver.claims.dependencies import ClaimDependencies, ClaimLister
from dra_driver.claims.entry import Blocked, InstanceIds, gpus_of
from dra_driver.claims.hardware.apply import with_partition_daemons
from dra_driver.claims.hardware.orphans import LOCK_S, reclaim_orphans
from dra_driver.claims.hardware.ownership import is_same
from dra_driver.claims.planning.plan import PreparePlan, plan
from dra_driver.claims.waiting import GpuLockedError
from dra_driver.errors import DeviceInUseError, DeviceLostError, DraError
from dra_driver.gpu.notes import TIME_SLICE
from dra_driver.model.claim import AllocatedClaim
from dra_driver.model.gpu import Snapshot
from dra_driver.model.ids import ClaimUid, GpuUuid
from dra_driver.model.terms import Interval, SharingTerms, Strategy, Terms, terms_of

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


class Rebuild:
    """Tries a pending rebuild again, at growing distances. For one thread; the first pause begins with the object."""

    def __init__(self, deps: ClaimDependencies, lister: ClaimLister | None) -> None:
        self._deps = deps
        self._lister = lister
        self._backoff = Backoff(first_s=2 * FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._due = deps.clock.now() + FIRST_PAUSE_S
        self._said: str | None = None

    def try_if_due(self) -> None:
        """Does nothing unless a rebuild is pending and its pause is over. Never raises for the world's faults."""
        if self._deps.clock.now() < self._due:
            return
        pause_s = FIRST_PAUSE_S
        try:
            if problems := self._try():
                self._say(problems[0])
                pause_s = self._backoff.next_s()
        except DraError as error:
            self._say(str(error))
        self._due = self._deps.clock.now() + pause_s

    def _try(self) -> list[str]:
        """What could not be adopted although the API server answered."""
        if not self._deps.journal.rebuild_pending:
            return []
        problems: list[str] = []
        adopted = rebuild(self._deps, self._lister, problems)
        if not problems:
            reclaim_orphans(self._deps, problems)
        log.info("journal rebuilt" if not problems else "journal rebuilt in part", extra={"adopted": len(adopted)})
        return problems

    def _say(self, problem: str) -> None:
        if problem != self._said:
            log.warning("what runs on this node is not fully known yet, tried again", extra={"reason": problem})
        self._said = problem


def rebuild(deps: ClaimDependencies, lister: ClaimLister | None, problems: list[str]) -> tuple[ClaimUid, ...]:
    """Fill a new journal from the CDI files and the claims that the API server says they belong to.

    A claim is adopted as prepared when it has a CDI file of ours or partitions that were made to the end, is allocated
    from this pool and fits the hardware. Claims with neither are not: whether they were prepared is not known, and the
    kubelet calls again. Until every trace is explained, files and hardware stay as they are, and in-use checks know
    only what was adopted or prepared since.
    """
    if not deps.journal.rebuild_pending:
        return ()
    unexplained = _traces(deps) - deps.journal.uids()
    failures: list[str] = []
    adopted: list[ClaimUid] = []
    if unexplained and lister is None:
        failures.append("the journal is new and claims were prepared before it; which ones is asked later")
    elif unexplained and lister is not None:
        claims = [claim for claim in lister.allocated(deps.pool) if claim.ref.uid in unexplained]
        adopted = [claim.ref.uid for claim in claims if _adopt(deps, claim, failures)]
    if not failures:
        deps.journal.note_rebuilt()
    problems += failures
    return tuple(adopted)


def _traces(deps: ClaimDependencies) -> frozenset[ClaimUid]:
    """Claims that something tells of: a CDI file, or partitions that were made, with all ids."""
    made = (orphan.uid for orphan in deps.journal.orphaned_partitions() if orphan.partition.live is not None)
    return frozenset(deps.writer.claim_uids()).union(made)


def _adopt(deps: ClaimDependencies, claim: AllocatedClaim, failures: list[str]) -> bool:
    with deps.locks.acquire(claim.ref.uid, 0.0) as acquired:
        if not acquired:
            return False  # it is being prepared or unprepared right now, which makes its entry known
        try:
            return adopt(deps, claim)
        except DraError as error:
            failures.append(f"claim {claim.ref} was prepared before, but cannot be taken over: {error}")
            return False


def adopt(deps: ClaimDependencies, claim: AllocatedClaim) -> bool:
    """Take the claim into the journal as prepared; False when it is there, or nothing tells that it was prepared.

    The caller holds the claim's lock. Raises as `plan`, `DeviceInUseError` when another claim has a device of it, and
    `GpuLockedError`. To begin it anew instead would be wrong: a failure then takes away what its containers use.
    """
    uid = claim.ref.uid
    if deps.journal.entry(uid) is not None or uid not in _traces(deps):
        return False
    if uid not in deps.writer.claim_uids() and not _is_whole(deps, claim):
        return False
    blocked = _adopt_as_found(deps, claim)
    if blocked is not None:
        holder = (
            f"is held by claim {blocked.by[0].ref}"
            if blocked.by
            else f"has {blocked.orphaned_partitions[0].partition.id}"
        )
        raise DeviceInUseError(f"claim {claim.ref} was prepared before the journal was lost, but its device {holder}")
    deps.count("adopted")
    return True


def _is_whole(deps: ClaimDependencies, claim: AllocatedClaim) -> bool:
    """Whether all that is proven of a claim without a file is there; else it was on its way to be so, or to be gone."""
    mine = [orphan.partition for orphan in deps.journal.orphaned_partitions() if orphan.uid == claim.ref.uid]
    found = [deps.require_hardware().mig.find(partition.id) for partition in mine]
    return all(
        there is not None and InstanceIds.of(there) == partition.live
        for there, partition in zip(found, mine, strict=True)
    )


def _adopt_as_found(deps: ClaimDependencies, claim: AllocatedClaim) -> Blocked | None:
    snapshot = deps.snapshot()
    todo = plan(claim, snapshot, deps.names, deps.pool, _terms_as_found(deps, snapshot))
    if not todo.changes_hardware:
        return deps.journal.adopt(claim.ref, todo.assigned)
    with deps.gpu_locks.acquire(gpus_of(todo.assigned), LOCK_S) as acquired:
        if not acquired:
            raise GpuLockedError("a GPU of it is being changed by another call; it is tried again")
        return deps.journal.adopt(claim.ref, _as_found(deps, todo).assigned)


def _terms_as_found(deps: ClaimDependencies, snapshot: Snapshot) -> Terms:
    """The terms in force, but sharing as it is carried out: a policy may have changed while claims kept the old one."""
    terms = dict(deps.terms())
    for gpu in snapshot.gpus if deps.hardware is not None else ():
        now, found = terms_of(terms, gpu.uuid), _sharing_as_found(deps, gpu.uuid)
        if found is not None and (now.sharing is None or now.sharing.strategy is not found.strategy):
            terms[gpu.uuid] = replace(now, sharing=found)
    return terms


def _sharing_as_found(deps: ClaimDependencies, gpu: GpuUuid) -> SharingTerms | None:
    if deps.require_hardware().mps.daemon(gpu) is not None:  # only shares have a daemon of that name
        return SharingTerms(strategy=Strategy.MPS)
    noted = deps.journal.gpu_note(gpu, TIME_SLICE)
    if noted is None or noted not in set(Interval):
        return None
    return SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval(noted))


def _as_found(deps: ClaimDependencies, todo: PreparePlan) -> PreparePlan:
    """The plan with what was made for the claim, as far as hardware and proofs tell; gone partitions as they were.

    The caller holds the locks of the GPUs. Raises `HardwareError`, and `DeviceLostError` for a partition that is not
    there and of which nothing is proven.
    """
    mine = {
        orphan.partition.id: orphan.partition
        for orphan in deps.journal.orphaned_partitions()
        if orphan.uid == todo.ref.uid
    }
    for position, device in enumerate(todo.devices):
        part = device.partition
        if part is None or device.admin_access:
            continue
        there, proven = deps.require_hardware().mig.find(part.id), mine.get(part.id)
        live = InstanceIds.of(there) if there else None
        made = proven is not None and (there is None or is_same(there, proven))
        if made and proven is not None:
            live = proven.live or live
        if live is None:
            raise DeviceLostError(f"partition {device.device} is not there any more")
        todo = todo.with_device(position, partition=replace(part, created_by_driver=made, live=live))
    return with_partition_daemons(todo)
