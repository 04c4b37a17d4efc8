"""Evaluates every node: does it take the subject, and if not, why was each device rejected?

Per node the checks run in this order: the pod's own requirements, the location of its allocated claims, then the
allocation of its other claims.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.subject import (
    Subject,
    SubjectClaim,
    Wire,
    allocation_of,
    claim_for,
    is_offered,
    name_of,
)
from dra_driver.scheduler.allocation import (
    AllocationOutcome,
    Allocator,
    ConstraintBroken,
    CounterShort,
    DeviceId,
    Event,
    InUse,
    NodeUsage,
    PoolDevice,
    PoolLeftOut,
    Question,
    node_matches,
    unfit_reason,
)
from dra_driver.scheduler.allocation import Cause as DeviceCause

MAX_DETAILED: Final = 150_000
"""Limit of devices inspected one by one, over all nodes and requests; the verdict covers all devices."""

_EMPTY: Final = NodeUsage()


class NodeResult(Struct, frozen=True, kw_only=True):
    """Result for one node. ``message`` is empty when it fits. ``allocations`` has one entry per claim of ``claims``.

    Results of `Evaluation.nodes` with the same ``like``, unless it is None, differ in the names of nodes and pools
    alone; only the first of them has ``allocations``.
    """

    name: str
    wire: Wire
    message: str
    by_devices: bool = False
    claims: Sequence[Wire] = ()
    labels: Sequence[str] = ()
    allocations: Sequence[Wire] = ()
    like: Hashable | None = None

    @property
    def fits(self) -> bool:
        return not self.message


class Observed(Struct):
    """Events of one allocation attempt: the cause per request and device, and the pools that were left out."""

    causes: dict[tuple[int, str], dict[DeviceId, DeviceCause]] = field(default_factory=dict)
    left_out: dict[tuple[str, str], PoolLeftOut] = field(default_factory=dict)

    def record(self, event: Event, /) -> None:
        """Of several causes for one device, keeps the one that does not depend on the other devices tried."""
        if isinstance(event, PoolLeftOut):
            self.left_out[event.driver, event.pool] = event
            return
        causes = self.causes.setdefault((event.claim, event.request), {})
        known = causes.get(event.device)
        if known is None or (_is_transient(known) and not _is_transient(event.cause)):
            causes[event.device] = event.cause


class Evaluation:
    """Evaluates one subject on nodes. ``allocated`` are claims whose devices determine where the pod can run."""

    def __init__(
        self,
        state: ClusterState,
        subject: Subject,
        allocator: Allocator,
        *,
        usage: Mapping[str, NodeUsage],
        allocated: Sequence[SubjectClaim],
        unallocated: Sequence[SubjectClaim],
    ) -> None:
        self._state = state
        self._subject = subject
        self._allocator = allocator
        self._usage = usage
        self._allocated_claims = allocated
        self._unallocated = unallocated
        self._questions: dict[tuple[str, ...], Question] = {}

    def nodes(self) -> list[NodeResult]:
        """Evaluates all nodes, in the order of the API server.

        Raises AllocationError and the errors of `cel` when the scheduler would reject the pod on every node.
        """
        known: dict[Hashable, NodeResult] = {}
        return [self._node(node, known) for node in self._state.nodes]

    def node(self, node: Wire, *, ignoring_pod: bool = False) -> NodeResult:
        return self._node(node, None, ignoring_pod=ignoring_pod)

    def _node(self, node: Wire, known: dict[Hashable, NodeResult] | None, *, ignoring_pod: bool = False) -> NodeResult:
        """Evaluates one node, with results of nodes like it from ``known``."""
        claims, labels, served = self._claims_on(node)
        result: dict[str, Any] = {"name": name_of(node), "wire": node, "claims": claims, "labels": labels}
        if not ignoring_pod and (pod := self._subject.pod) is not None:
            message = unfit_reason(pod, node, self._usage.get(name_of(node), _EMPTY), served)
            if message:
                return NodeResult(message=message, **result)
        for item in self._allocated_claims:
            selector = (allocation_of(item.claim or {}) or {}).get("nodeSelector")
            if selector is not None and not node_matches(selector, node):
                message = f"{item.label} is allocated to devices that this node cannot reach"
                return NodeResult(message=message, by_devices=True, **result)
        if not claims:
            return NodeResult(message="", **result)
        question = self._question(claims)
        content_key = question.content_key(node) if known is not None else None
        if known is None or content_key is None:
            return _result_of(question.on(node), result)
        like = (id(question), content_key)
        if like in known:
            return replace(known[like], allocations=(), **result)
        known[like] = replace(_result_of(question.on(node), result), like=like)
        return known[like]

    def devices_fit(self, result: NodeResult) -> bool:
        """Whether the devices fit and only the pod's own requirements exclude the node."""
        try:
            return bool(result.claims) and self.node(result.wire, ignoring_pod=True).fits
        except (AllocationError, CelSyntaxError, CelEvaluationError):
            return False

    def observed(self, result: NodeResult) -> Observed:
        seen = Observed()
        # Recording slows the search down, so it may reach its time limit; the events recorded until then are valid.
        with suppress(AllocationError, CelSyntaxError, CelEvaluationError):
            self._question(result.claims).on(result.wire, seen)
        return seen

    def own_pools(self, result: NodeResult) -> list[tuple[str, str]]:
        """Driver and name of the node's own pools, sorted."""
        return self._allocator.own_pools(result.wire)

    def devices(self, result: NodeResult) -> Iterator[PoolDevice]:
        for pool in self._allocator.reachable(result.wire).pools:
            yield from pool.devices

    def _claims_on(self, node: Wire) -> tuple[list[Wire], list[str], frozenset[str]]:
        """The claims to allocate with their labels, and the extended resources that one of them stands for."""
        claims = [item.claim for item in self._unallocated if item.claim is not None]
        labels = [item.label for item in self._unallocated if item.claim is not None]
        pod, wanted = self._subject.pod, self._subject.extended_requests
        extended = claim_for(pod, wanted, node) if pod is not None else None
        if extended is None:
            return claims, labels, frozenset()
        served = (item.resource for item in wanted if item.class_name and not is_offered(node, item.resource))
        return [*claims, extended], [*labels, "extended resources"], frozenset(served)

    def _question(self, claims: Sequence[Wire]) -> Question:
        """Returns one question per set of requests: the claim for extended resources differs between nodes."""
        key = tuple(
            str(request.get("name"))
            for claim in claims[len(self._unallocated) :]
            for request in claim["spec"]["devices"]["requests"]
        )
        if key not in self._questions:
            self._questions[key] = self._allocator.question(claims)
        return self._questions[key]


def _result_of(outcome: AllocationOutcome, result: Mapping[str, Any]) -> NodeResult:
    if outcome.allocations is None:
        return NodeResult(message="cannot allocate all claims", by_devices=True, **result)
    return NodeResult(message="", allocations=outcome.allocations, **result)


def _is_transient(cause: DeviceCause) -> bool:
    return isinstance(cause, CounterShort | ConstraintBroken) or (isinstance(cause, InUse) and not cause.holders)
