"""Chooses a node for a pod from one snapshot of the cluster. Writes nothing.

`allocation` decides what fits on one node. The message for a pod that fits nowhere has the form of FitError.Error() in
kubernetes/kubernetes pkg/scheduler/framework.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dra_driver.scheduler.allocation import (
    Allocator,
    ExtendedClaim,
    NodeUsage,
    Question,
    extended_claim,
    node_matches,
    resource_classes,
    unfit_reason,
    usage_by_node,
)
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store


class UnschedulableError(Exception):
    """The pod fits on no node now. The message goes into its PodScheduled condition."""


class NodeChoice(Struct, frozen=True, kw_only=True):
    """The node chosen for a pod, with an allocation for each of its unallocated claims, in their order.

    ``extended`` is the claim to create for extended resources that devices provide on this node, None without any;
    ``extended_allocation`` is its allocation.
    """

    node: str
    allocations: Sequence[Obj]
    extended: ExtendedClaim | None = None
    extended_allocation: Obj | None = None


class SchedulingSnapshot:
    """Nodes, pods, claims, slices and classes, read once for one scheduling attempt."""

    def __init__(self, store: Store) -> None:
        claims, slices, classes, pods, nodes = (
            [record.obj for record in store.read_all(kind)[0]]
            for kind in (RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, PODS, NODES)
        )
        self._nodes = nodes
        self._usage = usage_by_node(pods)
        self._allocator = Allocator(slices=slices, classes=classes, allocated=claims)
        self._by_resource = resource_classes(classes)

    def choose(self, pod: Obj, claims: Sequence[Obj], unallocated: Sequence[Obj]) -> NodeChoice:
        """Of the nodes that fit, the one with the fewest pods. Raises UnschedulableError, or allocation's errors."""
        reasons: Counter[str] = Counter()
        questions = _AllocationQuestions(self._allocator, unallocated)
        for node in sorted(self._nodes, key=lambda item: (self._usage_of(item).pods, item["metadata"]["name"])):
            extended = extended_claim(pod, node, self._by_resource)
            reason = self._why_not(pod, node, claims, extended)
            if not reason:
                allocations = questions.about(extended).on(node).allocations
                if allocations is not None:
                    name = node["metadata"]["name"]
                    if extended is None:
                        return NodeChoice(node=name, allocations=allocations)
                    *rest, last = allocations
                    return NodeChoice(node=name, allocations=rest, extended=extended, extended_allocation=last)
                reason = "cannot allocate all claims"
            reasons[reason] += 1
        raise UnschedulableError(_summary(len(self._nodes), reasons))

    def _why_not(self, pod: Obj, node: Obj, claims: Sequence[Obj], extended: ExtendedClaim | None) -> str:
        served = {mapping["resourceName"] for mapping in extended.mappings} if extended else ()
        reason = unfit_reason(pod, node, self._usage_of(node), served)
        if not reason and not all(_is_reachable(claim, node) for claim in claims):
            reason = "resourceclaim not available on the node"
        return reason

    def _usage_of(self, node: Obj) -> NodeUsage:
        return self._usage.get(node["metadata"]["name"]) or NodeUsage()


class _AllocationQuestions:
    """The pod's claims as allocator questions, one per different extended claim.

    The extended claim depends on which resources the node offers itself; most nodes share one question.
    """

    def __init__(self, allocator: Allocator, unallocated: Sequence[Obj]) -> None:
        self._allocator = allocator
        self._unallocated = unallocated
        self._asked: dict[str, Question] = {}

    def about(self, extended: ExtendedClaim | None) -> Question:
        more: Sequence[Mapping[str, object]] = [extended.claim] if extended else []
        key = str(extended.claim["spec"]) if extended else ""
        if key not in self._asked:
            self._asked[key] = self._allocator.question([*self._unallocated, *more])
        return self._asked[key]


def _is_reachable(claim: Obj, node: Obj) -> bool:
    selector = dig(claim, "status", "allocation", "nodeSelector")
    return selector is None or node_matches(selector, node)


def _summary(nodes: int, reasons: Counter[str]) -> str:
    """``0/2 nodes are available: 2 cannot allocate all claims. …``"""
    if not nodes:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    helpless = f"0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    return f"0/{nodes} nodes are available: {listed}. still not schedulable, preemption: {helpless}"
