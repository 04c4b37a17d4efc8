"""Prepare and unprepare claims for whole GPUs in their present state, all claims of a call together.

    prepare:    GET the claims in parallel, make the plans, write their metadata files
                journal: record them as prepared, in one durable transaction
                write their CDI files
                check whether another run has taken a claim over
    unprepare:  journal: in one durable transaction, remove the files and the entries

Most claims use this path. Nothing here waits, changes hardware or resolves a conflict: unusual or failing claims are
left to `prepare.Preparer` and `unprepare`. A process that dies in between leaves recorded claims without a file;
`recover` writes it, and the kubelet, which got no answer, prepares or unprepares again.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct, field

from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken
from dra_driver.node.claims.hardware.apply import needs_fabric_check, taken_over
from dra_driver.node.claims.planning.plan import PreparePlan, names_of, plan_claim
from dra_driver.node.claims.waiting import CallBudget
from dra_driver.node.claims.workflow.cdi_document import document_of
from dra_driver.node.claims.workflow.metadata import metadata_of
from dra_driver.node.claims.workflow.teardown import remove_file_without_entry, teardown

log = logging.getLogger(__name__)

Prepared = tuple[PreparedDevice, ...]


class Beginning(Struct, frozen=True, kw_only=True):
    """The final answers of this path, and the claims read for `Preparer`."""

    answers: dict[ClaimUid, Prepared | DraError] = field(default_factory=dict)
    read: dict[ClaimUid, AllocatedClaim | DraError] = field(default_factory=dict)


def prepare_whole_gpus(deps: ClaimDependencies, refs: Sequence[ClaimRef], budget: CallBudget) -> Beginning:
    """Prepare the claims that only need a record and a file. Raises nothing of the `DraError` tree."""
    found = Beginning()
    left_s = budget.deadline - deps.clock.now()
    if left_s < deps.retry_policy.read_s:
        return found
    # `Preparer` handles claims without an answer.
    with ExitStack() as locked, suppress(DraError), deps.gate.work():
        if deps.gate.closed is not None:
            return found
        free = [ref for ref in refs if locked.enter_context(deps.locks.acquire(ref.uid, 0.0))]
        new = deps.journal.unrecorded([ref.uid for ref in free])
        found.read.update(deps.reader.read_all([ref for ref in free if ref.uid in new], within_s=left_s))
        plans = _plans(deps, found.read.values())
        if plans:
            deps.provider.ensure_base()  # if it fails no container can start
            _prepare(deps, plans, found.answers)
    if deps.clock.now() >= budget.deadline:  # no time left for `Preparer`; its error names the reason
        found.answers.update({uid: read for uid, read in found.read.items() if isinstance(read, DraError)})
    return found


def _plans(deps: ClaimDependencies, claims: Collection[AllocatedClaim | DraError]) -> list[PreparePlan]:
    """The plans of claims for whole GPUs. A claim that cannot be planned is omitted."""
    found: list[PreparePlan] = []
    for claim in claims:
        with suppress(DraError):
            if not isinstance(claim, DraError):
                found.append(plan_claim(claim, deps.snapshot(), deps.names, deps.pool, deps.terms()))
    whole = [plan for plan in found if not any(device.partition or device.sharing for device in plan.devices)]
    return [plan for plan in whole if not needs_fabric_check(plan)]


def _prepare(
    deps: ClaimDependencies, plans: Sequence[PreparePlan], answers: dict[ClaimUid, Prepared | DraError]
) -> None:
    """Record the claims and write their files; ``answers`` gets the devices of each prepared claim."""
    files = {plan.ref.uid: (document_of(deps, plan), metadata_of(deps, plan)) for plan in plans}
    tokens: dict[ClaimUid, AttemptToken] = {}
    try:
        # Metadata first: a repeated prepare of a recorded claim does not write it. `Preparer` reports a failure.
        ready = [plan for plan in plans if _is_written(deps, plan, files[plan.ref.uid][1])]
        tokens = deps.journal.record_prepared([(plan.ref, plan.assigned) for plan in ready])
    finally:
        for plan in plans:
            if plan.ref.uid not in tokens:
                with suppress(DraError):  # an orphan is removed at the next start
                    remove_file_without_entry(deps, plan.ref.uid)
    recorded = [plan for plan in plans if plan.ref.uid in tokens]
    for plan in recorded:
        document, metadata = files[plan.ref.uid]
        try:
            deps.writer.write_metadata(plan.ref.uid, metadata)  # again: a second process may have removed an orphan
            deps.writer.write_claim(plan.ref.uid, document)
        except DraError:
            with suppress(DraError):  # `Preparer` starts again, and reports the error
                teardown(deps, plan.ref.uid, only=tokens.pop(plan.ref.uid))
    ours = deps.journal.still_prepared(tokens)
    for plan in recorded:
        uid = plan.ref.uid
        if uid in ours:
            answers[uid] = plan.prepared
            deps.count("prepared")
            log.info("claim prepared", extra={"claim": str(plan.ref), "devices": names_of(plan.devices)})
        elif uid in tokens:
            remove_file_without_entry(deps, uid)
            answers[uid] = taken_over(plan)


def _is_written(deps: ClaimDependencies, plan: PreparePlan, metadata: Mapping[str, bytes]) -> bool:
    """Write the claim's metadata files; False when that fails."""
    try:
        deps.writer.write_metadata(plan.ref.uid, metadata)
    except DraError:
        return False
    return True


def forget_whole_gpus(deps: ClaimDependencies, refs: Sequence[ClaimRef]) -> frozenset[ClaimUid]:
    """Unprepare the claims that only need the removal of file and entry; other claims stay as they are.

    Raises nothing of the `DraError` tree.
    """
    with ExitStack() as locked, suppress(DraError), deps.gate.work():  # `unprepare` reports the error
        free = [ref for ref in refs if locked.enter_context(deps.locks.acquire(ref.uid, 0.0))]
        gone = deps.journal.forget_prepared([ref.uid for ref in free], deps.writer.remove_claim)
        deps.clock.wake_all()
        for ref in free:
            if ref.uid in gone:
                deps.count("unprepared")
                log.info("claim unprepared", extra={"claim": str(ref)})
        return gone
    return frozenset()
