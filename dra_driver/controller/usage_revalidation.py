"""The last look before a pod leaves because of its claim's use: GpuNode, claim and pod are read once more.

A GpuNode is believed about its own node alone: the claim has to be allocated there, the pod has to be one that the
claim is reserved for, and it has to run there.
"""

from msgspec import Struct

from dra_driver.controller.eviction_api import EvictionOutcome, EvictionRequests, has_ended
from dra_driver.controller.pending_evictions import PodRef, pods_of, results_of
from dra_driver.controller.usage_requests import UsageEvictionRequest, node_use, usage_cases
from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.kube.shapes import read


class EvictionCandidates(Struct, frozen=True, kw_only=True):
    """The pods of a case that may be evicted, in their order, or the ``outcome`` that forbids it."""

    pods: tuple[PodRef, ...] = ()
    outcome: EvictionOutcome | None = None


def gone(reason: str) -> EvictionOutcome:
    return EvictionOutcome(result="gone", reason=reason)


def still_requested(api: EvictionRequests, case: UsageEvictionRequest) -> EvictionOutcome | None:
    """None if the node still asks. Raises KubernetesApiError when that cannot be read."""
    try:
        found = node_use(api.get(paths.gpu_nodes(case.node)))
    except NotFoundError as error:
        return gone(str(error))
    asked = usage_cases([found] if found is not None else [], over_grant=True, idle=True)
    return None if any(each.key == case.key for each in asked) else gone(f"node {case.node} no longer asks for it")


def candidates(api: EvictionRequests, case: UsageEvictionRequest, driver: str) -> EvictionCandidates:
    """Who may be evicted. Raises KubernetesApiError when that cannot be read."""
    try:
        claim = read(ResourceClaim, api.get(paths.resource_claim(case.namespace, case.claim)))
    except NotFoundError as error:
        return EvictionCandidates(outcome=gone(str(error)))
    except ValueError as error:
        return EvictionCandidates(outcome=gone(f"the claim cannot be read: {error}"))
    if not _is_of_node(claim, case, driver):
        return EvictionCandidates(outcome=gone(f"the claim is not allocated on node {case.node}"))
    users = pods_of(claim)
    named = [pod for pod in case.pods if pod in users] if case.kind == "over-grant" else users
    running: list[PodRef] = []
    for pod in named:
        outcome = _forbids(api, pod, case)
        if outcome is None:
            running.append(pod)
        elif outcome.result != "gone":
            return EvictionCandidates(outcome=outcome)  # a claim that keeps one of its pods is kept
    return (
        EvictionCandidates(pods=tuple(running))
        if running
        else EvictionCandidates(outcome=gone("no pod of the claim is left"))
    )


def _is_of_node(claim: ResourceClaim, case: UsageEvictionRequest, driver: str) -> bool:
    pool = f"{case.node}/{driver}"  # as slices.pool_name makes it
    mine = [each for each in results_of(claim) if each.driver == driver and each.pool == pool]
    return claim.metadata.uid == case.claim_uid and any(case.device in {"", each.device} for each in mine)


def _forbids(api: EvictionRequests, ref: PodRef, case: UsageEvictionRequest) -> EvictionOutcome | None:
    try:
        pod = read(Pod, api.get(paths.pod(ref.namespace, ref.name)))
    except NotFoundError as error:
        return gone(str(error))
    except ValueError as error:
        return EvictionOutcome(result="failed", reason=f"cannot read the pod {ref}: {error}")
    if pod.metadata.uid != ref.uid or pod.metadata.deletion_timestamp:
        return gone("the pod was replaced or is being deleted")
    if has_ended(pod) or pod.spec.node_name != case.node:
        return gone(f"the pod does not run on node {case.node}")
    if pod.metadata.annotations.get(NO_EVICTION) == "true":
        return EvictionOutcome(result="opted-out", reason=f"the pod {ref} has the annotation {NO_EVICTION}")
    if case.kind == "idle" and not any(owner.controller for owner in pod.metadata.owner_references):
        return EvictionOutcome(result="opted-out", reason=f"the pod {ref} has no controller that would make it again")
    return None
