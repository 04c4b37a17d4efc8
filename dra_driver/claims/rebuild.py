"""Fills a new journal from the CDI files that are there and the claims which the API server knows.

Owns what may be adopted, and when to ask again while something cannot be. Refuses to know why the journal is new.

A partition is adopted as one that is used and not made: whose it is was in the journal alone, and destroying somebody
else's is worse than leaving one of ours, which the slices then show as what it is. So is MIG mode, which stays on.

Until a rebuild is complete, a claim that runs may be unknown to in-use checks, so it is not left to the ten-minute
rounds. While the API server does not answer, asking again costs it nothing and comes every half minute. When it does
answer and a claim still cannot be adopted (its GPU is not back, its device is held), every try lists the whole
cluster's claims, and the pauses grow to ten minutes.
"""

import logging

from dra_driver.claims.make import with_daemons
from dra_driver.claims.plan import ClaimPlan, plan
from dra_driver.claims.tools import ClaimLister, Tools
from dra_driver.errors import DeviceLostError, DraError
from dra_driver.model.claim import AllocatedClaim
from dra_driver.model.ids import ClaimUid

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


class Rebuild:
    """Tries a pending rebuild again, at growing distances. For one thread; the first pause begins with the object."""

    def __init__(self, tools: Tools, lister: ClaimLister | None) -> None:
        self._tools = tools
        self._lister = lister
        self._pause_s = FIRST_PAUSE_S
        self._due = tools.bell.now() + FIRST_PAUSE_S
        self._said: str | None = None

    def try_if_due(self) -> None:
        """Does nothing unless a rebuild is pending and its pause is over. Never raises for the world's faults."""
        if self._tools.bell.now() < self._due:
            return
        pause_s = FIRST_PAUSE_S
        try:
            if problems := self._try():
                self._say(problems[0])
                pause_s = self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        except DraError as error:
            self._say(str(error))
        self._due = self._tools.bell.now() + pause_s

    def _try(self) -> list[str]:
        """What could not be adopted although the API server answered."""
        if not self._tools.journal.rebuild_pending:
            return []
        problems: list[str] = []
        adopted = rebuild(self._tools, self._lister, problems)
        log.info("journal rebuilt" if not problems else "journal rebuilt in part", extra={"adopted": len(adopted)})
        return problems

    def _say(self, problem: str) -> None:
        if problem != self._said:
            log.warning("what runs on this node is not fully known yet, tried again", extra={"reason": problem})
        self._said = problem


def rebuild(tools: Tools, lister: ClaimLister | None, problems: list[str]) -> tuple[ClaimUid, ...]:
    """Fill a new journal from the CDI files and the claims that the API server says they belong to.

    A claim is adopted as prepared when it has a CDI file of ours, is allocated from this pool and fits the hardware.
    Claims without a file are not: whether they were prepared is not known, and the kubelet calls again. Until every
    file is explained, files stay, and in-use checks know only what was adopted or prepared since.
    """
    if not tools.journal.rebuild_pending:
        return ()
    unexplained = frozenset(tools.writer.claim_uids()) - tools.journal.uids()
    failures: list[str] = []
    adopted: list[ClaimUid] = []
    if unexplained and lister is None:
        failures.append("the journal is new and claims have CDI files already; whose they are is asked later")
    elif unexplained and lister is not None:
        claims = [claim for claim in lister.allocated(tools.pool) if claim.ref.uid in unexplained]
        adopted = [claim.ref.uid for claim in claims if _adopt(tools, claim, failures)]
    if not failures:
        tools.journal.note_rebuilt()
    problems += failures
    return tuple(adopted)


def _adopt(tools: Tools, claim: AllocatedClaim, failures: list[str]) -> bool:
    with tools.locks.hold(claim.ref.uid, 0.0) as held:
        if not held:
            return False  # it is being prepared or unprepared right now, which makes its entry known
        if tools.journal.entry(claim.ref.uid) is not None or claim.ref.uid not in tools.writer.claim_uids():
            return False  # it was, while the API server was asked
        try:
            blocked = tools.journal.adopt(claim.ref, _as_found(tools, claim).held)
        except DraError as error:
            failures.append(f"claim {claim.ref} had a CDI file, but cannot be taken over: {error}")
            return False
    if blocked is not None:
        failures.append(f"claim {claim.ref} had a CDI file, but its device is held by claim {blocked.by[0].ref}")
        return False
    tools.count("adopted")
    return True


def _as_found(tools: Tools, claim: AllocatedClaim) -> ClaimPlan:
    """What was prepared for the claim, as far as the hardware tells. Raises as `plan`, and `DeviceLostError`."""
    found = plan(claim, tools.snapshot(), tools.names, tools.pool, tools.terms())
    for device in found.devices:
        if device.partition is not None and device.partition.live is None:
            raise DeviceLostError(f"partition {device.device} is not there any more")
    return with_daemons(found)
