"""NodeUnprepareResources for one claim.

Unprepare succeeds whenever it can. It needs neither the claim object nor an entry, and works without the NVIDIA driver:
what remains is recorded and released when the driver is back. Source: the kubelet's ``pkg/kubelet/cm/dra/manager.go``,
which calls it for claims that were never prepared and for claims that no longer exist. A failure keeps the pod in
``Terminating``, and the kubelet tries again after 10 to 60 seconds.
"""

import logging

from dra_driver.core.model.claim import ClaimRef
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.waiting import CallBudget, ClaimBusyError
from dra_driver.node.claims.workflow.teardown import teardown

log = logging.getLogger(__name__)


def unprepare_claim(deps: ClaimDependencies, ref: ClaimRef, *, budget: CallBudget) -> None:
    """Free what the claim has on this node; a claim that has nothing is success.

    Waits until ``budget.deadline`` for other calls. Raises `StorageError`, `HardwareError` or `GpuLockedError` (the
    claim keeps its devices, call again), or `ClaimBusyError` when an earlier call for the same claim does not end. If
    the process dies inside, the next call or the next start continues. Thread-safe.
    """
    with deps.locks.acquire(ref.uid, budget.deadline - deps.clock.now()) as acquired, deps.gate.work():
        if not acquired:
            raise ClaimBusyError(
                f"claim {ref} is still being worked on by an earlier call after {deps.retry_policy.call_s:g} s; "
                "the kubelet tries again"
            )
        if teardown(deps, ref.uid, within_s=budget.deadline - deps.clock.now(), without_driver=True):
            deps.count("unprepared")
            log.info("claim unprepared", extra={"claim": str(ref)})
        else:
            log.info("claim was not prepared, nothing to unprepare", extra={"claim": str(ref)})
