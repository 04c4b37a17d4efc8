"""Read which claims nodes want evicted, limit them, and check each again before a pod is evicted.

A node requests it in the ``status.usage`` of its GpuNode, which only that node can write (admission policy), and only
for claims on that node: the claim must be allocated there and reserved for the pod, and the pod must run
there. An entry without a pod is not a case.

The eviction limit is shared with taints (`eviction_api`), because a wrong overhead, policy or number shows everywhere
at the same time. A case counts there once the API server confirmed its claim, node and pod.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from dra_driver.config.status import node_status_of
from dra_driver.controller.eviction_api import BrakeRules, EvictionOutcome, EvictionRequests, exceeds, has_ended
from dra_driver.controller.pending_evictions import PodRef, pods_of, results_of
from dra_driver.core.errors import NotFoundError
from dra_driver.core.model.gpu_node import ReportedIdle, ReportedOverGrant, ReportedUsage
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, PodProtection
from dra_driver.kube import paths
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.kube.shapes import read

CaseKind = Literal["over-grant", "idle"]
FRESH_S: Final = 180.0
"""Seconds for which an entry counts after its node renewed it; nodes renew every 20 to 60 s."""


class NodeUse(Struct, frozen=True, kw_only=True):
    """The number of GPUs of one GpuNode, and their reported use."""

    name: str
    gpus: int
    reported: ReportedUsage


class UsageEvictionRequest(Struct, frozen=True, kw_only=True):
    """A claim of ``node`` whose pods will be evicted ``wait_s`` after the announcement. ``device`` and ``pods`` (most
    memory first) are of a claim over its grant; an idle claim has "" and the pods that it is reserved for."""

    kind: CaseKind
    node: str
    namespace: str
    claim: str
    claim_uid: str
    device: str
    pods: tuple[PodRef, ...]
    wait_s: float
    why: str
    past_protection: bool = False
    """Neither the annotation of a pod nor a budget keeps it, as the policy says."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.kind, self.node, self.claim_uid, self.device)


CaseKey = tuple[str, str, str, str]


def node_use(item: Mapping[str, object]) -> NodeUse | None:
    status, metadata = node_status_of(item), item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if status is None or not isinstance(name, str):
        return None
    return NodeUse(name=name, gpus=len(status.gpus), reported=status.usage)


def usage_cases(nodes: Iterable[NodeUse], *, over_grant: bool, idle: bool) -> list[UsageEvictionRequest]:
    """All cases of the enabled kinds, each once, in the order of names."""
    found: dict[CaseKey, UsageEvictionRequest] = {}
    for node in nodes:
        for case in _cases(node, over_grant=over_grant, idle=idle):
            found.setdefault(case.key, case)
    return sorted(found.values(), key=lambda case: (case.namespace, case.claim, case.key))


def is_braked(
    cases: Iterable[UsageEvictionRequest],
    verified: Mapping[CaseKey, float],
    gpus: Mapping[str, int],
    rules: BrakeRules,
    now_s: float,
) -> bool:
    """Return whether too many cases of one kind are new, by the times in ``verified``; others do not count. Each device
    or idle claim counts as one GPU of ``gpus`` (by node), for the window and at least twice its wait."""
    recent: dict[CaseKind, set[tuple[str, str]]] = {}
    for case in cases:
        at_s = verified.get(case.key)
        if at_s is not None and now_s - at_s < max(rules.window_s, 2 * case.wait_s):
            recent.setdefault(case.kind, set()).add((case.node, case.device or case.claim_uid))
    return any(exceeds(Counter(node for node, _ in found), gpus, rules.percent) for found in recent.values())


def _cases(node: NodeUse, *, over_grant: bool, idle: bool) -> Iterator[UsageEvictionRequest]:
    for reported in node.reported.over_grant if over_grant else ():
        if reported.action is OverGrantAction.EVICT and reported.pods:
            yield _of_over_grant(node.name, reported)
    for each in node.reported.idle if idle else ():
        if each.action is IdleAction.RECLAIM:
            yield _of_idle(node.name, each)


def _of_over_grant(node: str, reported: ReportedOverGrant) -> UsageEvictionRequest:
    return UsageEvictionRequest(
        kind="over-grant",
        node=node,
        namespace=reported.namespace,
        claim=reported.claim,
        claim_uid=reported.claim_uid,
        device=reported.gpu,
        pods=tuple(PodRef(namespace=reported.namespace, name=pod.name, uid=pod.uid) for pod in reported.pods),
        wait_s=float(reported.grace_s),
        why=f"claim {reported.claim} uses {reported.used} of {reported.gpu} on node {node}; granted {reported.granted}",
        past_protection=reported.pod_protection is PodProtection.IGNORE,
    )


def _of_idle(node: str, reported: ReportedIdle) -> UsageEvictionRequest:
    return UsageEvictionRequest(
        kind="idle",
        node=node,
        namespace=reported.namespace,
        claim=reported.claim,
        claim_uid=reported.claim_uid,
        device="",
        pods=(),
        wait_s=reported.after_min * 60.0,
        why=f"claim {reported.claim} has been idle on node {node} since {reported.since}",
    )


class EvictionCandidates(Struct, frozen=True, kw_only=True):
    """The pods of a case that may be evicted, in their order, or the ``outcome`` that forbids it."""

    pods: tuple[PodRef, ...] = ()
    outcome: EvictionOutcome | None = None

    @property
    def is_verified(self) -> bool:
        """Return whether the claim is allocated on the node and one of its pods runs there."""
        return self.outcome is None or self.outcome.result == "opted-out"


def gone(reason: str) -> EvictionOutcome:
    return EvictionOutcome(result="gone", reason=reason)


def still_requested(api: EvictionRequests, case: UsageEvictionRequest) -> EvictionOutcome | None:
    """None if the node still requests it. Raises KubernetesApiError when that cannot be read."""
    try:
        found = node_use(api.get(paths.gpu_nodes(case.node)))
    except NotFoundError as error:
        return gone(str(error))
    asked = usage_cases([found] if found is not None else [], over_grant=True, idle=True)
    if any((each.key, each.past_protection) == (case.key, case.past_protection) for each in asked):
        return None
    return gone(f"node {case.node} no longer asks for it")


def candidates(api: EvictionRequests, case: UsageEvictionRequest, driver: str) -> EvictionCandidates:
    """The pods that may be evicted. Raises KubernetesApiError when that cannot be read."""
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
    if pod.metadata.annotations.get(NO_EVICTION) == "true" and not case.past_protection:
        return EvictionOutcome(result="opted-out", reason=f"the pod {ref} has the annotation {NO_EVICTION}")
    if case.kind == "idle" and not any(owner.controller for owner in pod.metadata.owner_references):
        return EvictionOutcome(result="opted-out", reason=f"the pod {ref} has no controller that would make it again")
    return None
