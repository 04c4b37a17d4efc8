"""The node's claims: what the kubelet's calls and the process around them use.

Owns the rule that every claim of a call gets an answer of its own. Refuses to know gRPC and how one claim is prepared.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from dra_driver.claims.dependencies import ClaimDependencies, ClaimLister
from dra_driver.claims.hardware.orphans import reclaim_orphans
from dra_driver.claims.waiting import CallBudget
from dra_driver.claims.workflow.prepare import Preparer
from dra_driver.claims.workflow.rebuild import Rebuild
from dra_driver.claims.workflow.recover import Recovery, recover, rewrite_files
from dra_driver.claims.workflow.stale_claims import StaleClaimCollector
from dra_driver.claims.workflow.unprepare import unprepare_claim
from dra_driver.errors import DraError, RetryableError
from dra_driver.model.claim import ClaimRef, PreparedDevice
from dra_driver.model.ids import ClaimUid
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Prepared = tuple[PreparedDevice, ...]


class ClaimService:
    """Prepare, unprepare, recover and collect over one set of dependencies.

    Order: ``recover`` before the first call of the kubelet; then from one thread ``maintain`` every ten minutes,
    ``reclaim_orphans`` every half minute and ``finish_rebuild`` every few seconds; ``rewrite_missing_files`` every few
    seconds from the same or another one; ``prepare`` and ``unprepare`` from any number of threads. Nothing to stop:
    calls end by themselves within `waiting.RetryPolicy.call_s`.
    """

    def __init__(self, deps: ClaimDependencies, *, lister: ClaimLister | None = None) -> None:
        self._deps = deps
        self._lister = lister
        self._preparer = Preparer(deps)
        self._stale_claims = StaleClaimCollector(deps)
        self._rebuild = Rebuild(deps, lister)
        self._file_problems: tuple[str, ...] = ()
        self._orphan_problems: tuple[str, ...] = ()

    def prepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> dict[ClaimUid, Prepared | DraError]:
        """Each claim's devices, or its error. Idempotent per claim; see `prepare.Preparer.prepare`.

        One after the other within one budget of time: `waiting.RetryPolicy.call_s`, or less when the caller waits only
        ``within_s`` more. A claim whose turn comes after that is answered with an error and not touched.
        """
        budget = self._budget(within_s)
        return self._answers(partial(self._preparer.prepare, budget=budget), refs, "prepared", budget)

    def unprepare(self, refs: Sequence[ClaimRef], *, within_s: float | None = None) -> dict[ClaimUid, DraError | None]:
        """None for each claim that holds nothing any more, else its error. Idempotent; time as in ``prepare``."""
        budget = self._budget(within_s)
        return self._answers(partial(unprepare_claim, self._deps, budget=budget), refs, "unprepared", budget)

    def recover(self) -> Recovery:
        """Make journal and files agree with reality; never raises for the world's faults. See `recover.recover`."""
        return recover(self._deps, self._lister)

    def rewrite_missing_files(self) -> tuple[str, ...]:
        """Write prepared claims' CDI files that vanished, for containers that restart before their next prepare.

        Local, and cheap while nothing is missing. Never raises for the world's faults: what cannot be written is
        returned as sentences, and logged when they are new.
        """
        problems: list[str] = []
        try:
            for uid in rewrite_files(self._deps, problems):
                log.warning("CDI file of a prepared claim was missing and is written again", extra={"uid": uid})
        except DraError as error:
            problems.append(str(error))
        before, self._file_problems = self._file_problems, tuple(problems)
        for problem in self._file_problems:
            if problem not in before:
                log.warning("a CDI file cannot be put right, tried again soon", extra={"reason": problem})
        return self._file_problems

    @property
    def rebuild_pending(self) -> bool:
        """Whether a new journal does not know yet what was prepared before it. Raises `StorageError`."""
        return self._deps.journal.rebuild_pending

    def finish_rebuild(self) -> None:
        """Rebuild a new journal if that is pending and due, see `rebuild.Rebuild`. Never raises for the world's faults.

        Asks the API server, so it may take half a minute or more; for the thread that ``maintain`` uses.
        """
        self._rebuild.try_if_due()

    def reclaim_orphans(self) -> None:
        """Bring GPUs back to what they were where nobody needs anything else, see `settle`.

        For every half minute, and cheap while nothing is noted: a MIG mode that could not be switched off because
        somebody had the GPU open keeps the whole GPU from being used. Never raises for the world's faults: what cannot
        be done is logged when it is new.
        """
        problems: list[str] = []
        try:
            reclaim_orphans(self._deps, problems)
        except DraError as error:
            problems.append(str(error))
        before, self._orphan_problems = self._orphan_problems, tuple(problems)
        for problem in self._orphan_problems:
            if problem not in before:
                log.warning("a GPU is not what it was yet, tried again soon", extra={"reason": problem})

    def maintain(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """What is due every ten minutes: recover what could not be recovered, free what the kubelet forgot, tidy up.

        Never raises for the world's faults: they are logged, and met again next time.
        """
        try:
            for problem in self.recover().problems:
                log.warning("claims are not fully recovered, tried again later", extra={"reason": problem})
            self._stale_claims.collect(stopping)
            self._deps.journal.tidy()
        except DraError as error:
            log.warning("claims could not be maintained, tried again later", extra={"reason": str(error)})

    def _budget(self, within_s: float | None) -> CallBudget:
        return self._deps.retry_policy.budget(self._deps.clock.now(), within_s)

    def _answers(
        self, work: Callable[[ClaimRef], Answer], refs: Sequence[ClaimRef], what: str, budget: CallBudget
    ) -> dict[ClaimUid, Answer | DraError]:
        answers: dict[ClaimUid, Answer | DraError] = {}
        for ref in refs:
            in_time = self._deps.clock.now() < budget.deadline
            answers[ref.uid] = _guarded(work, ref, what) if in_time else _late(ref, what)
        return answers


def _late(ref: ClaimRef, what: str) -> DraError:
    return RetryableError(
        f"claim {ref} was not {what}: the time of this call was over before it was this claim's turn (many calls at "
        "once, or other claims of the pod that had to wait); the kubelet tries again"
    )


def _guarded(work: Callable[[ClaimRef], Answer], ref: ClaimRef, what: str) -> Answer | DraError:
    try:
        return work(ref)
    except DraError as error:
        return error
    except Exception as error:  # one claim's defect must not take its neighbours' answers with it
        log.exception("unexpected failure", extra={"claim": str(ref)})
        metrics.internal_error("claims")
        return DraError(
            f"claim {ref} could not be {what}: unexpected {type(error).__name__}; the driver's log has the details"
        )
