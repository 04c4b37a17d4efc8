"""NodeUnprepareResources for one claim.

Owns what makes unprepare succeed whenever it can: it needs neither the claim object nor an entry, and does without a
driver: what is still to be undone then is noted and undone when there is one. Source: the
kubelet's ``pkg/kubelet/cm/dra/manager.go``, which calls it for claims that were never prepared and for claims that no
longer exist. A failure keeps the pod in ``Terminating`` and is tried again after 10 to 60 seconds.
"""

import logging

from dra_driver.claims.dependencies import ClaimDependencies
from dra_driver.claims.waiting import CallBudget, ClaimBusyError
from dra_driver.claims.workflow.teardown import teardown
from dra_driver.model.claim import ClaimRef

log = logging.getLogger(__name__)


def unprepare_claim(deps: ClaimDependencies, ref: ClaimRef, *, budget: CallBudget) -> None:
    """Free what the claim holds on this node; nothing to free is success.

    Waits until ``budget.deadline`` for others at most. Raises `StorageError`, `HardwareError` or `GpuLockedError` (the
    claim keeps its devices, call again) or `ClaimBusyError` when an earlier call for the same claim does not end. If
    the process dies inside, the rest is done by the next call or at the next start. Thread-safe.
    """
    with deps.locks.acquire(ref.uid, budget.deadline - deps.clock.now()) as acquired:
        if not acquired:
            raise ClaimBusyError(
                f"claim {ref} is still being worked on by an earlier call after {deps.retry_policy.call_s:g} s; "
                "it is tried again"
            )
        if teardown(deps, ref.uid, within_s=budget.deadline - deps.clock.now(), without_driver=True):
            deps.count("unprepared")
            log.info("claim unprepared", extra={"claim": str(ref)})
        else:
            log.info("claim was not prepared, nothing to unprepare", extra={"claim": str(ref)})
