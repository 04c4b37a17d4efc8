"""The explanation of one subject: what is outside of allocation first, then every node, then the devices.

Owns the order of these steps and the verdict. What it says about devices is the allocator's own record
(``weighing.py``, ``reasons.py``); the rest is in ``outside.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from dra_driver.allocation import Allocator, Behaviour
from dra_driver.allocation.pod_fit import Room, rooms, unweighed
from dra_driver.errors import AllocationError, CelEvaluationError, CelSyntaxError, ConfigurationError
from dra_driver.explain import non_allocation_causes as outside
from dra_driver.explain.causes import Cause, Code
from dra_driver.explain.defaults import claim_completed, completed
from dra_driver.explain.details import Details, look_closely, node_detail
from dra_driver.explain.evaluation import NodeResult, Weighing
from dra_driver.explain.extended import claim_for
from dra_driver.explain.faults import fault_in_the_way
from dra_driver.explain.gates import dropped_fields
from dra_driver.explain.holders import Holders
from dra_driver.explain.objects import Wire, allocation_of, is_reserved_for, label_of, name_of, spec_of, users_of
from dra_driver.explain.past_scheduling import settled
from dra_driver.explain.report import Answer, NodeDetail, Report, Verdict
from dra_driver.explain.requests import AskSpec, asks_of, by_name
from dra_driver.explain.scheduler import Scheduler
from dra_driver.explain.subject import Subject, Wanted, subject_of
from dra_driver.kube.state import ClusterState, with_objects

_MOST_NODES: Final = 10

# Parts of the scheduler's messages about what is not weighed here.
_BEYOND: Final = ("affinity rules", "topology spread", "volume", "persistentvolumeclaim", "Insufficient ephemeral")


@dataclass(frozen=True, slots=True)
class _Explained:
    """A report and the node that would take the subject, if one would."""

    report: Report
    place: NodeResult | None


def explain(state: ClusterState, subject: Subject, *, node: str = "", scheduler: Scheduler | None = None) -> Report:
    """Why the subject waits, or that it does not have to. ``node`` asks for the devices of that node one by one.

    Raises ConfigurationError when there is no such node. Bounded by the allocator's limits for each node.
    """
    return _explained(completed(state), subject, node, scheduler or Scheduler()).report


def explain_pods(
    state: ClusterState, pods: Sequence[Wire], *, node: str = "", scheduler: Scheduler | None = None
) -> list[Report]:
    """What if these pods were created, one after the other: each meets the cluster with those before it placed."""
    reports = []
    current = completed(state)
    for pod in pods:
        subject = subject_of(current, pod)
        found = _explained(current, subject, node, scheduler or Scheduler())
        reports.append(found.report)
        if found.place is not None:
            current = _with_placed(current, pod, found.place)
    return reports


def _explained(state: ClusterState, subject: Subject, node: str, scheduler: Scheduler) -> _Explained:
    wanted = [
        replace(item, claim=claim_completed(item.claim)) if item.claim is not None else item for item in subject.wanted
    ]
    subject = replace(subject, wanted=wanted)
    report = settled(state, subject)
    if report is not None:
        return _Explained(report, None)
    return _Explanation(state, subject, node, scheduler).run()


def _with_placed(state: ClusterState, pod: Wire, place: NodeResult) -> ClusterState:
    """The state after the scheduler has bound the pod. Its claims are objects then, also those not made yet."""
    made = []
    user = {"resource": "pods", "name": name_of(pod), "uid": ""}
    for claim, allocation in zip(place.claims, place.allocations, strict=False):
        status = {**(claim.get("status") or {}), "allocation": allocation, "reservedFor": [*users_of(claim), user]}
        made.append({**claim, "kind": "ResourceClaim", "status": status})
    placed = {**pod, "kind": "Pod", "spec": {**spec_of(pod), "nodeName": place.name}}
    return with_objects(state, [*made, placed])


class _Explanation:
    """The steps for a subject that waits. Used once."""

    def __init__(self, state: ClusterState, subject: Subject, node: str, scheduler: Scheduler) -> None:
        self._state = state
        self._subject = subject
        self._node = node
        self._scheduler = scheduler
        self._rooms: dict[str, Room] = rooms(state.pods)
        self._holders = Holders(state.claims)
        self._causes: list[Cause] = []
        self._notes: list[str] = outside.gaps_that_matter(state, subject.pod)
        self._weighing: Weighing | None = None
        self._asks: dict[tuple[str, ...], list[AskSpec]] = {}

    def run(self) -> _Explained:
        respected = [item for item in self._subject.wanted if _is_allocated(item)]
        free = [item for item in self._subject.wanted if not _is_allocated(item)]
        self._look_outside(free)
        results: list[NodeResult] = []
        if not any(cause.code in _HOPELESS for cause in self._causes if cause.blocks):
            results = self._weigh(respected, free, self._state.claims)
            if results and not any(result.fits for result in results):
                results = self._weigh_released(respected, free) or results
        details = Details()
        detail = None
        if self._weighing is not None and results:
            details = look_closely(self._weighing, results, self._asks_on, self._holders)
            self._look_for_fault(results, respected, free)
            detail = self._detail(results)
        elif self._node:
            self._find_node()
        self._causes += details.causes
        self._notes += [details.note] if details.note else []
        self._look_at_message(results)
        verdict = self._verdict(results, details)
        fitting = [result for result in results if result.fits]
        report = Report(
            subject=str(self._subject),
            kind=self._subject.kind,
            namespace=self._subject.namespace,
            name=self._subject.name,
            verdict=verdict,
            causes=tuple(self._causes),
            requests=details.asks if not fitting else (),
            nearest_miss=details.miss if not fitting else None,
            nodes=details.nodes,
            fitting_nodes=tuple(result.name for result in fitting[:_MOST_NODES]),
            node=detail,
            scheduler=outside.scheduler_message(self._subject.pod or {}),
            notes=tuple(self._notes),
        )
        placeable = verdict.answer is Answer.FITS and fitting
        place = min(fitting, key=lambda item: self._rooms.get(item.name, Room()).pods) if placeable else None
        return _Explained(report, place)

    # --- the steps ---

    def _look_outside(self, free: Sequence[Wanted]) -> None:
        pod = self._subject.pod
        if pod is not None:
            self._causes += outside.before_scheduling(self._state, pod)
        self._causes += [item.problem for item in self._subject.wanted if item.problem is not None]
        asks = self._all_asks(free)
        self._causes += outside.missing_classes(self._state, asks)
        self._causes += outside.unknown_resources(self._state, self._subject)
        self._causes += outside.silent_drivers(self._state, asks)
        used = {ask.class_name for ask in asks}
        for item in self._state.classes:
            if name_of(item) in used:
                self._causes += dropped_fields("DeviceClass", item)
        for wanted in free:
            self._causes += self._dropped_by_claim(wanted)
        if not self._state.nodes:
            unreadable = next((gap for gap in self._state.gaps if gap.startswith("nodes:")), "")
            self._causes.append(Cause(code=Code.NO_NODES, message=unreadable or "the cluster has no nodes"))

    def _dropped_by_claim(self, wanted: Wanted) -> list[Cause]:
        if wanted.source != "template":
            return list(dropped_fields("ResourceClaim", wanted.claim or {}))
        pod = self._subject.pod or {}
        entries = spec_of(pod).get("resourceClaims") or ()
        names = {e.get("resourceClaimTemplateName") for e in entries if e.get("name") == wanted.entry}
        templates = [
            item
            for item in self._state.templates
            if name_of(item) in names and (item["metadata"].get("namespace") or "default") == self._subject.namespace
        ]
        return [cause for item in templates for cause in dropped_fields("ResourceClaimTemplate", item)]

    def _weigh(self, respected: Sequence[Wanted], free: Sequence[Wanted], claims: Sequence[Wire]) -> list[NodeResult]:
        try:
            self._weighing = self._weighing_of(respected, free, claims, self._scheduler.behaviour)
            return self._weighing.nodes()
        except (CelSyntaxError, CelEvaluationError) as error:
            self._causes.append(_cel_cause(error))
        except AllocationError as error:
            self._causes.append(
                Cause(
                    code=Code.NOT_WEIGHABLE,
                    message=f"the scheduler gives the pod up on all nodes: {error}",
                    fix="correct the claim, or wait until the pool is whole again",
                )
            )
        self._weighing = None
        return []

    def _weighing_of(
        self, respected: Sequence[Wanted], free: Sequence[Wanted], claims: Sequence[Wire], behaviour: Behaviour
    ) -> Weighing:
        allocator = Allocator(
            slices=self._state.slices,
            classes=self._state.classes,
            allocated=claims,
            features=self._scheduler.features,
            behaviour=behaviour,
        )
        return Weighing(self._state, self._subject, allocator, rooms=self._rooms, respected=respected, free=free)

    def _look_for_fault(
        self, results: Sequence[NodeResult], respected: Sequence[Wanted], free: Sequence[Wanted]
    ) -> None:
        """A pod that only a fault of the scheduler keeps waiting would otherwise make no sense at all."""
        if any(result.fits for result in results):
            return

        @cache
        def weighing(behaviour: Behaviour) -> Weighing:
            return self._weighing_of(respected, free, self._state.claims, behaviour)

        found = fault_in_the_way(
            self._scheduler.behaviour,
            results,
            lambda behaviour, result: weighing(behaviour).node(result.wire),
            self._state.slices,
        )
        self._causes += [found] if found is not None else []

    def _weigh_released(self, respected: Sequence[Wanted], free: Sequence[Wanted]) -> list[NodeResult]:
        """The scheduler takes devices back that nobody else uses when they keep a pod from every node.

        PostFilter of kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources.
        """
        pod = self._subject.pod
        kept: list[Wanted] = []
        released: list[Wanted] = []
        for item in respected:
            claim = item.claim or {}
            alone = not users_of(claim) or (len(users_of(claim)) == 1 and is_reserved_for(claim, pod or {}))
            (released if alone and pod is not None else kept).append(item)
        if not released:
            return []
        labels = {label_of(item.claim or {}) for item in released}
        others = [claim for claim in self._state.claims if label_of(claim) not in labels]
        before = self._weighing
        results = self._weigh(kept, [*released, *free], others)
        if not any(result.fits for result in results):
            self._weighing = before
            return []
        names = ", ".join(sorted(labels))
        self._notes.append(f"{names} is allocated where the pod cannot go, and used by nobody: it is allocated anew")
        return results

    def _look_at_message(self, results: Sequence[NodeResult]) -> None:
        """Where our rules end, the scheduler's own words count."""
        pod = self._subject.pod
        if pod is None or not any(result.fits for result in results):
            return
        message = outside.scheduler_message(pod)
        beyond = unweighed(pod)
        if message and any(part in message for part in _BEYOND) and not any(cause.blocks for cause in self._causes):
            self._causes.append(
                Cause(code=Code.NOT_WEIGHED, message=f"not a device matter: the scheduler says: {message}")
            )
        elif beyond:
            self._notes.append(f"not weighed here: {' and '.join(beyond)}")

    def _detail(self, results: Sequence[NodeResult]) -> NodeDetail | None:
        if not self._node:
            return None
        self._find_node()
        result = next(result for result in results if result.name == self._node)
        assert self._weighing is not None  # noqa: S101  results come from it
        return node_detail(self._weighing, result, self._asks_on(result), self._holders)

    def _find_node(self) -> None:
        names = [name_of(item) for item in self._state.nodes]
        if self._node not in names:
            there = ", ".join(sorted(names)[:8]) or "none"
            raise ConfigurationError(f"no node {self._node}; there are {there}{' and more' if len(names) > 8 else ''}")

    # --- requests ---

    def _asks_on(self, result: NodeResult) -> list[AskSpec]:
        """The same for nodes with the same claims: only the one for extended resources differs."""
        key = tuple(str(claim["spec"]) for claim in result.claims)
        if key not in self._asks:
            self._asks[key] = asks_of(result.claims, result.labels, by_name(self._state.classes))
        return self._asks[key]

    def _all_asks(self, free: Sequence[Wanted]) -> list[AskSpec]:
        known = [item for item in free if item.claim is not None]
        claims = [item.claim for item in known if item.claim is not None]
        labels = [item.label for item in known]
        pod = self._subject.pod
        extended = claim_for(pod, self._subject.needs, None) if pod is not None else None
        if extended is not None:
            claims, labels = [*claims, extended], [*labels, "extended resources"]
        return asks_of(claims, labels, by_name(self._state.classes))

    # --- the verdict ---

    def _verdict(self, results: Sequence[NodeResult], details: Details) -> Verdict:
        fitting = sum(result.fits for result in results)
        total = len(self._state.nodes)
        blocking = next((cause for cause in self._causes if cause.blocks), None)
        if blocking is None and fitting:
            plural = "node" if total == 1 else "nodes"
            sentence = f"fits on {fitting} of {total} {plural}"
            return Verdict(answer=Answer.FITS, sentence=sentence, nodes_fit=fitting, nodes_total=total)
        if blocking is None:
            sentence = f"cannot fit: {details.headline}"
        elif fitting:
            sentence = (
                f"cannot be scheduled: {blocking.message} (devices are not the problem: {fitting} of {total} fit)"
            )
        else:
            sentence = f"cannot fit: {blocking.message}"
        return Verdict(answer=Answer.CANNOT_FIT, sentence=sentence, nodes_fit=fitting, nodes_total=total)


_HOPELESS: Final = frozenset(
    {
        Code.CLAIM_MISSING,
        Code.CLAIM_DELETED,
        Code.CLAIM_NOT_OWNED,
        Code.CLAIM_FULL,
        Code.TEMPLATE_MISSING,
        Code.CLASS_MISSING,
        Code.NO_SLICES,
        Code.NO_NODES,
        Code.RESOURCE_UNKNOWN,
    }
)
"""Causes after which there is nothing to weigh."""


def _is_allocated(wanted: Wanted) -> bool:
    return wanted.claim is not None and allocation_of(wanted.claim) is not None


def _cel_cause(error: Exception) -> Cause:
    syntax = isinstance(error, CelSyntaxError)
    return Cause(
        code=Code.CEL_ERROR,
        message=f"the scheduler gives the pod up on all nodes: {error}",
        fix="correct the expression"
        if syntax
        else 'guard the expression with device.driver == "…" &&, and optional attributes with has() or .?',
    )
