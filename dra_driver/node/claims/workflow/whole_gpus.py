"""Prepare and unprepare claims for whole GPUs in their present state, all claims of a call together.

    prepare:    GET the claims in parallel, make the plans
                journal: in one durable transaction, write their files and record them as prepared
    unprepare:  journal: in one durable transaction, remove the files and the entries

Most claims use this path. Nothing here waits, changes hardware or resolves a conflict: unusual or failing claims are
left to `prepare.Preparer` and `unprepare`. A process that dies in between leaves files without an entry; `recover`
removes them, and the kubelet, which got no answer, prepares or unprepares again.
"""

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct, field

from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.hardware.apply import needs_fabric_check
from dra_driver.node.claims.planning.plan import PreparePlan, names_of, plan_claim
from dra_driver.node.claims.waiting import CallBudget
from dra_driver.node.claims.workflow.cdi_document import document_of
from dra_driver.node.claims.workflow.metadata import metadata_of

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
        if unread := [ref for ref in free if ref.uid in new]:
            answers = deps.reader.ask_all(unread, within_s=left_s)
            try:
                deps.provider.ensure_base()  # if it fails no container can start
            finally:
                found.read.update(answers())
            if plans := _plans(deps, found.read.values()):
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

    def write_files(uid: ClaimUid) -> None:
        document, metadata = files[uid]
        deps.writer.write_metadata(uid, metadata)
        deps.writer.write_claim(uid, document)

    # After a failure, `Preparer` replaces or removes the files, `unprepare` removes them, or the next start.
    recorded = deps.journal.record_prepared([(plan.ref, plan.assigned) for plan in plans], write_files)
    for plan in plans:
        if plan.ref.uid in recorded:
            answers[plan.ref.uid] = plan.prepared
            deps.count("prepared")
            log.info("claim prepared", extra={"claim": str(plan.ref), "devices": names_of(plan.devices)})


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
