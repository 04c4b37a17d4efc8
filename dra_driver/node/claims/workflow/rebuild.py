"""Rebuild a new journal from the node's CDI files and partitions and from claims in the API server.

A partition is adopted as created by this driver where the GPU state backup says so and the present instance does not
contradict it; otherwise the claim only uses it, because destroying another manager's partition would be worse than
leaving one behind. Backed-up state without a claim is removed after the rebuild is complete.

Claims are read one by one, by the names in `journal.backups`: listing all claims of the cluster would need a permission
and unbounded memory.
"""

import logging
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.backoff import Backoff
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Interval, SharingTerms, Strategy, Terms, terms_of
from dra_driver.hardware.gpu.backend import TIME_SLICE
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Blocked, InstanceIds, OrphanedPartition, gpus_of
from dra_driver.node.claims.hardware.apply import with_partition_daemons
from dra_driver.node.claims.hardware.partitions import is_same
from dra_driver.node.claims.hardware.release import LOCK_S, reclaim_orphans
from dra_driver.node.claims.planning.plan import PreparePlan, plan_claim
from dra_driver.node.claims.waiting import GpuLockedError
from dra_driver.node.claims.workflow.metadata import metadata_of

log = logging.getLogger(__name__)

READ_AT_ONCE = 8
"""A claim has up to 1.5 MiB."""
READ_S = 10.0
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


class RebuildRetry:
    """Retries a pending rebuild. For one thread.

    In-use checks may miss a running claim until then. An attempt is cheap while the API server does not answer, and
    comes every half minute. While a claim cannot be adopted, every attempt reads the node's claims, and pauses grow to
    10 min.
    """

    def __init__(self, deps: ClaimDependencies) -> None:
        self._deps = deps
        self._backoff = Backoff(first_s=2 * FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._due = deps.clock.now() + FIRST_PAUSE_S
        self._logged: str | None = None

    def try_if_due(self) -> None:
        """Try if a rebuild is pending and due. Logs errors of the `DraError` tree."""
        if self._deps.clock.now() < self._due:
            return
        pause_s = FIRST_PAUSE_S
        try:
            if problems := self._try():
                self._log_once(problems[0])
                pause_s = self._backoff.next_s()
        except errors.DraError as error:
            self._log_once(str(error))
        self._due = self._deps.clock.now() + pause_s

    def _try(self) -> list[str]:
        """Messages about claims that cannot be adopted although the API server answers."""
        if not self._deps.journal.rebuild_pending:
            return []
        problems: list[str] = []
        adopted = rebuild(self._deps, problems)
        if not problems:
            reclaim_orphans(self._deps, problems)
        log.info("journal rebuilt" if not problems else "journal rebuilt in part", extra={"adopted": len(adopted)})
        return problems

    def _log_once(self, problem: str) -> None:
        if problem != self._logged:
            log.warning("journal is not completely rebuilt yet; will retry", extra={"reason": problem})
        self._logged = problem


def rebuild(deps: ClaimDependencies, problems: list[str]) -> tuple[ClaimUid, ...]:
    """Adopt into a new journal the claims that were prepared before; return those adopted now.

    A claim is adopted when it has a CDI file of this driver or completely created partitions, is allocated from this
    pool and fits the hardware. The kubelet calls again for other claims. Until every trace is explained, files and
    hardware stay as they are. Appends messages about claims that cannot be adopted to ``problems``. Raises
    `KubernetesApiError` when the API server does not answer.
    """
    if not deps.journal.rebuild_pending:
        return ()
    unexplained = _claims_with_traces(deps) - deps.journal.uids()
    named = deps.journal.names_of(unexplained)
    failures = [_nameless(deps, uid) for uid in sorted(unexplained - named.keys())]
    adopted = tuple(claim.ref.uid for claim in _read(deps, named, failures) if _adopt_if_idle(deps, claim, failures))
    if not failures:
        deps.journal.note_rebuilt()
    problems += failures
    return adopted


def _read(deps: ClaimDependencies, named: Mapping[ClaimUid, ClaimRef], failures: list[str]) -> Iterator[AllocatedClaim]:
    """The claims that are allocated from this pool. A malformed claim is logged and omitted.

    A claim that the API server cannot serve, such as one that it cannot decrypt, becomes one of ``failures``; when it
    serves none of those read at the same time, the first error is raised.
    """
    refs = [named[uid] for uid in sorted(named)]
    for at in range(0, len(refs), READ_AT_ONCE):
        answers = deps.reader.ask_all(refs[at : at + READ_AT_ONCE], within_s=READ_S)()
        is_served = any(not isinstance(found, errors.KubernetesApiError) for found in answers.values())
        for uid, found in answers.items():
            match found:
                case AllocatedClaim():
                    if any(result.pool == deps.pool for result in found.results):
                        yield found
                case errors.ClaimReplacedError() | errors.ClaimNotAllocatedError():
                    log.info("claim has ended; removing its traces", extra={"reason": str(found)})
                case errors.ClaimError():
                    log.warning("claim is malformed; skipped", extra={"reason": str(found)})
                case errors.KubernetesApiError() if is_served:
                    failures.append(f"claim {named[uid]} was prepared before, but cannot be read: {found}")
                case _:
                    raise found


def _nameless(deps: ClaimDependencies, uid: ClaimUid) -> str:
    has_file = uid in deps.writer.claim_uids()
    trace = f"the CDI file {deps.names.claim_file_name(uid)}" if has_file else "a partition of it"
    return (
        f"a claim with uid {uid} was prepared before the journal was lost, and its name is not recorded, so the API "
        f"server cannot be queried for it: {trace} stays until its pod ends; if no pod has the claim, remove it by hand"
    )


def _claims_with_traces(deps: ClaimDependencies) -> frozenset[ClaimUid]:
    """Claims that have a CDI file, or created partitions with all ids."""
    created = (orphan.uid for orphan in deps.journal.orphaned_partitions() if orphan.partition.live is not None)
    return frozenset(deps.writer.claim_uids()).union(created)


def _adopt_if_idle(deps: ClaimDependencies, claim: AllocatedClaim, failures: list[str]) -> bool:
    with deps.locks.acquire(claim.ref.uid, 0.0) as acquired:
        if not acquired:
            return False  # a call prepares or unprepares it now, which gives it an entry or removes its traces
        try:
            return adopt(deps, claim)
        except errors.DraError as error:
            failures.append(f"claim {claim.ref} was prepared before, but cannot be adopted: {error}")
            return False


def adopt(deps: ClaimDependencies, claim: AllocatedClaim) -> bool:
    """Enter the claim into the journal as prepared; False when it has an entry, or no trace shows that it was prepared.

    The caller holds the claim's lock. Preparing it again instead would be wrong: a failure would tear down devices that
    its containers use. Raises as `plan_claim`, `DeviceInUseError` when another claim has its device, and
    `GpuLockedError`.
    """
    uid = claim.ref.uid
    if deps.journal.entry(uid) is not None or uid not in _claims_with_traces(deps):
        return False
    if uid not in deps.writer.claim_uids() and not _is_complete(deps, claim):
        return False
    blocked = _adopt_as_found(deps, claim)
    if blocked is not None:
        holder = (
            f"is assigned to claim {blocked.by[0].ref}"
            if blocked.by
            else f"overlaps {blocked.orphaned_partitions[0].partition.id}"
        )
        raise errors.DeviceInUseError(
            f"claim {claim.ref} was prepared before the journal was lost, but its device {holder}",
            reason="AdoptionBlocked",
        )
    deps.count("adopted")
    return True


def _partitions_of(deps: ClaimDependencies, uid: ClaimUid) -> list[OrphanedPartition]:
    return [orphan for orphan in deps.journal.orphaned_partitions() if orphan.uid == uid]


def _is_complete(deps: ClaimDependencies, claim: AllocatedClaim) -> bool:
    """Return whether all backed-up partitions of a claim without a file exist; else its last call was interrupted."""
    backed_up = [orphan.partition for orphan in _partitions_of(deps, claim.ref.uid)]
    found = [require_hardware(deps).mig.find(partition.id) for partition in backed_up]
    return all(
        instance is not None and InstanceIds.of(instance) == partition.live
        for instance, partition in zip(found, backed_up, strict=True)
    )


def _adopt_as_found(deps: ClaimDependencies, claim: AllocatedClaim) -> Blocked | None:
    snapshot = deps.snapshot()
    todo = plan_claim(claim, snapshot, deps.names, deps.pool, _terms_as_found(deps, snapshot))
    if not todo.changes_hardware:
        _write_missing_metadata(deps, todo)
        return deps.journal.adopt(claim.ref, todo.assigned)
    with deps.gpu_locks.acquire(gpus_of(todo.assigned), LOCK_S) as acquired:
        if not acquired:
            raise GpuLockedError("one of its GPUs is being changed by another call; the driver tries again")
        todo = _as_found(deps, todo)
        _write_missing_metadata(deps, todo)
        return deps.journal.adopt(claim.ref, todo.assigned)


def _write_missing_metadata(deps: ClaimDependencies, todo: PreparePlan) -> None:
    """An interrupted prepare may have created the partitions and no file yet."""
    uid, files = todo.ref.uid, metadata_of(deps, todo)
    deps.writer.write_metadata(
        uid, {request: data for request, data in files.items() if deps.writer.metadata(uid, request) is None}
    )


def _terms_as_found(deps: ClaimDependencies, snapshot: Snapshot) -> Terms:
    """The terms in force, with sharing as on the GPUs: claims keep theirs when a policy changes."""
    terms = dict(deps.terms())
    for gpu in snapshot.gpus if deps.hardware is not None else ():
        now, found = terms_of(terms, gpu.uuid), _sharing_as_found(deps, gpu.uuid)
        if found is not None and (now.sharing is None or now.sharing.strategy is not found.strategy):
            terms[gpu.uuid] = now = replace(now, sharing=found)
        if gpu.mig_instances:
            terms[gpu.uuid] = replace(now, kept_sharing=_partition_sharing_as_found(deps, gpu))
    return terms


def _partition_sharing_as_found(deps: ClaimDependencies, gpu: Gpu) -> dict[PartitionId, SharingTerms]:
    """Only a shared MIG device's daemon has the device's UUID as id; without one, shares are time-sliced."""
    found = {}
    for instance in gpu.mig_instances:
        is_mps = (
            instance.device is not None and require_hardware(deps).mps.daemon(str(instance.device.uuid)) is not None
        )
        strategy = Strategy.MPS if is_mps else Strategy.TIME_SLICING
        found[PartitionId(gpu.uuid, instance.profile_id, instance.start)] = SharingTerms(strategy=strategy)
    return found


def _sharing_as_found(deps: ClaimDependencies, gpu: GpuUuid) -> SharingTerms | None:
    if require_hardware(deps).mps.daemon(gpu) is not None:  # only a shared GPU's daemon has the GPU's UUID as id
        return SharingTerms(strategy=Strategy.MPS)
    noted = deps.journal.gpu_note(gpu, TIME_SLICE)
    if noted is None or noted not in set(Interval):
        return None
    return SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval(noted))


def _as_found(deps: ClaimDependencies, todo: PreparePlan) -> PreparePlan:
    """The plan with its partitions according to hardware and backups; a missing backed-up partition keeps its ids.

    The caller holds the locks of the GPUs. Raises `HardwareError`, and `DeviceLostError` for a partition that does not
    exist and has no backup.
    """
    backups = {orphan.partition.id: orphan.partition for orphan in _partitions_of(deps, todo.ref.uid)}
    for position, part in todo.partitions:
        instance, backup = require_hardware(deps).mig.find(part.id), backups.get(part.id)
        live = InstanceIds.of(instance) if instance else None
        created = backup is not None and (instance is None or is_same(instance, backup))
        if created and backup is not None:
            live = backup.live or live
        if live is None:
            raise errors.DeviceLostError(f"partition {todo.devices[position].device} no longer exists")
        todo = todo.with_device(position, partition=replace(part, created_by_driver=created, live=live))
    return with_partition_daemons(todo)
