"""Explain one subject: find causes other than allocation, evaluate every node, inspect devices, give the verdict."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Final

from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.text import counted, listed
from dra_driver.kube.devices import results_of, users_of
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kubectl.explain import causes as other
from dra_driver.kubectl.explain import manifests
from dra_driver.kubectl.explain import subject as subjects
from dra_driver.kubectl.explain.causes import dropped_fields, gaps_that_matter, scheduler_message, several_shares
from dra_driver.kubectl.explain.details import Details, inspect_nodes, matching_devices, node_detail
from dra_driver.kubectl.explain.evaluation import Evaluation, Holders, NodeResult, SchedulerModel
from dra_driver.kubectl.explain.queueing import admitted
from dra_driver.kubectl.explain.rails import Holder, with_rails
from dra_driver.kubectl.explain.reasons import act_on
from dra_driver.kubectl.explain.report import Answer, Cause, CauseCode, Explanation, NodeDetail, Verdict
from dra_driver.kubectl.explain.subject import RequestSpec, Subject, SubjectClaim, Wire, allocation_of, name_of, spec_of
from dra_driver.scheduler.allocation import Allocator, NodeUsage, SchedulerQuirks, unmodelled_constraints, usage_by_node
from dra_driver.scheduler.cel import selector_budget


def past_scheduling_report(state: ClusterState, subject: Subject) -> Explanation | None:
    """Return the report, or None when the subject waits for the scheduler."""
    if subject.pod is None:
        claim = subject.claims[0].claim or {}
        return _allocated(state, subject, claim) if allocation_of(claim) is not None else None
    pod = subject.pod
    node = str(spec_of(pod).get("nodeName") or "")
    phase = str(subjects.status_of(pod).get("phase") or "Pending")
    if phase in ("Succeeded", "Failed"):
        return _report(state, subject, Answer.FINISHED, f"has finished ({phase})")
    if subjects.is_deleted(pod):
        cause = Cause(code=CauseCode.BEING_DELETED, message="the pod is being deleted and will not be scheduled")
        return _report(state, subject, Answer.CANNOT_FIT, "is being deleted", causes=(cause,))
    if not node:
        return None
    if phase == "Running":
        return _held(state, subject, Answer.RUNNING, f"runs on {node}")
    found = tuple(other.causes_on_node(state, subject))
    unhealthy = other.unhealthy_devices(state, subject)
    causes = (*found, *(each for each in unhealthy if not found or each.code is CauseCode.DEVICE_UNHEALTHY))
    why = f": {causes[0].message}" if causes else "; no device problems found"
    return _report(state, subject, Answer.PLACED, f"is on {node} and has not started{why}", causes=causes)


def _allocated(state: ClusterState, subject: Subject, claim: Wire) -> Explanation:
    devices = [f"{result['device']} of {result['pool']}" for result in results_of(claim)]
    users = [str(user.get("name")) for user in users_of(claim)]
    devices_text = f"has {listed(devices, 8)}" if devices else "is allocated without devices"
    sentence = f"{devices_text}; " + (f"reserved for {listed(users, 8)}" if users else "reserved for no pod")
    notes = () if users else ("the scheduler can deallocate this claim, because no pod uses it",)
    return _held(state, subject, Answer.ALLOCATED, sentence, notes=notes)


def _held(
    state: ClusterState, subject: Subject, answer: Answer, sentence: str, *, notes: Sequence[str] = ()
) -> Explanation:
    """Report a subject that has its devices; ``answer`` holds if all of them are healthy."""
    causes = tuple(other.unhealthy_devices(state, subject))
    if causes:
        answer, sentence = Answer.UNHEALTHY, f"{sentence}, but {causes[0].message}"
    return _report(state, subject, answer, sentence, causes=causes, notes=notes)


def _report(
    state: ClusterState,
    subject: Subject,
    answer: Answer,
    sentence: str,
    *,
    causes: Sequence[Cause] = (),
    notes: Sequence[str] = (),
) -> Explanation:
    node = str(spec_of(subject.pod or {}).get("nodeName") or "")
    verdict = Verdict(answer=answer, sentence=sentence, nodes_fit=0, nodes_total=len(state.nodes))
    return Explanation(
        subject=str(subject),
        kind=subject.kind,
        namespace=subject.namespace,
        name=subject.name,
        verdict=verdict,
        causes=causes,
        fitting_nodes=(node,) if any(name_of(item) == node for item in state.nodes) else (),
        notes=(*gaps_that_matter(state, subject.pod), *notes),
    )


_MAX_NODES: Final = 10
_FINAL_CODES: Final = frozenset(
    {
        CauseCode.CLAIM_MISSING,
        CauseCode.CLAIM_DELETED,
        CauseCode.CLAIM_NOT_OWNED,
        CauseCode.CLAIM_FULL,
        CauseCode.TEMPLATE_MISSING,
        CauseCode.CLASS_MISSING,
        CauseCode.NO_SLICES,
        CauseCode.NO_NODES,
        CauseCode.RESOURCE_UNKNOWN,
    }
)
"""Causes after which no node needs to be evaluated."""

# Parts of scheduler messages about rules that this package does not check.
_UNCHECKED: Final = ("affinity rules", "topology spread", "volume", "persistentvolumeclaim", "Insufficient ephemeral")


def explain(
    state: ClusterState, subject: Subject, *, node: str = "", scheduler: SchedulerModel | None = None
) -> Explanation:
    """Explain why the subject waits, or state that it fits. ``node`` adds a list of that node's devices.

    Raises ConfigurationError when the node does not exist. The allocator's limits bound the work per node.
    """
    return explained(manifests.with_defaults(state), subject, node, scheduler or SchedulerModel())[0]


def explain_pods(
    state: ClusterState, pods: Sequence[Wire], *, node: str = "", scheduler: SchedulerModel | None = None
) -> list[Explanation]:
    """Explain the result of applying these pods one after another; each sees the earlier ones placed.

    A pod that exists is explained as it is. One that exists with other requests is explained without its claims."""
    reports = []
    held: dict[Holder, Callable[[], Sequence[Wire]]] = {}
    current = manifests.with_defaults(state)
    taken: set[str] = set()
    for wanted in pods:
        known = manifests.existing_pod(state, wanted, taken)  # not in `current`: its placed replicas do not exist
        pod = wanted if known is None or not manifests.has_same_requests(known, wanted) else known
        if known is not None:
            taken.add(subjects.uid_of(known))
            current = current if pod is known else manifests.without_pod(current, known)
        subject = subjects.subject_of(current, pod)
        report, place = explained(current, subject, node, scheduler or SchedulerModel())
        reports.append(report)
        planned = [{"status": {"allocation": each}} for each in (place.allocations if place is not None else ())]
        claims = [*(each.claim or {} for each in subject.claims), *planned]
        held[subject.kind, subject.namespace, subject.name] = partial(list, claims)
        if place is not None:
            current = with_placed(current, pod, place)
    return with_rails(state, held, reports)


def explained(
    state: ClusterState, subject: Subject, node: str, scheduler: SchedulerModel
) -> tuple[Explanation, NodeResult | None]:
    """Return the explanation, and the node where the subject is placed if it fits. ``state`` has its defaults."""
    claims = [
        replace(item, claim=manifests.claim_with_defaults(item.claim)) if item.claim is not None else item
        for item in subject.claims
    ]
    subject = replace(subject, claims=claims)
    report, place = past_scheduling_report(state, subject), None
    try:
        with selector_budget():
            if report is None:
                report, place = _Explainer(state, subject, node, scheduler).run()
            if any(cause.code is CauseCode.DEVICE_UNHEALTHY for cause in report.causes):
                report = _with_replacement(state, subject, report, scheduler)
    except errors.SelectorBudgetError as error:
        if report is None:
            cause = Cause(code=CauseCode.SELECTORS_COSTLY, message=str(error))
            return _report(state, subject, Answer.UNKNOWN, f"unknown whether it fits: {error}", causes=(cause,)), None
    return report, place


def _with_replacement(
    state: ClusterState, subject: Subject, report: Explanation, scheduler: SchedulerModel
) -> Explanation:
    """Add the fix of an unhealthy device: end the pods of its claims, if a new pod then gets healthy devices."""
    broken = {cause.object for cause in report.causes if cause.code is CauseCode.DEVICE_UNHEALTHY}
    all_held = [item.claim or {} for item in subject.claims]
    held = [claim for claim in all_held if f"claim/{name_of(claim)}" in broken]
    labels = {subjects.label_of(claim) for claim in held}
    users = sorted({str(user.get("name")) for claim in held for user in users_of(claim)})
    pod = subject.pod and {**subject.pod, "spec": {**spec_of(subject.pod), "nodeName": ""}, "status": {}}
    claims = [
        replace(item, claim={**claim, "status": {}}) if claim in held else item
        for item, claim in zip(subject.claims, all_held, strict=True)
    ]
    ended = replace(
        state,
        claims=tuple(claim for claim in state.claims if subjects.label_of(claim) not in labels),
        pods=tuple(
            each
            for each in state.pods
            if name_of(each) not in users or subjects.namespace_of(each) != subject.namespace
        ),
        slices=tuple(map(manifests.without_unhealthy, state.slices)),
    )
    verdict = _Explainer(ended, replace(subject, pod=pod, claims=claims), "", scheduler).run()[0].verdict
    tolerates = any(spec.tolerations for spec in subjects.requests_of(held, [""] * len(held), ()))
    first = "remove the tolerations of health taints from the claim, then " if tolerates else ""
    fix = f"{first}{f'delete pod {act_on(users)}' if users else 'delete the claim'}; a new one {verdict.sentence}"
    if verdict.answer is not Answer.FITS:
        fix = f"repair the GPU (docs/health.md): without repair, a new pod {verdict.sentence}"
    causes = [replace(each, fix=fix) if each.code is CauseCode.DEVICE_UNHEALTHY else each for each in report.causes]
    return replace(report, causes=tuple(causes))


def with_placed(state: ClusterState, pod: Wire, place: NodeResult) -> ClusterState:
    claims = []
    user = {"resource": "pods", "name": name_of(pod), "uid": ""}
    for claim, allocation in zip(place.claims, place.allocations, strict=False):
        status = {**(claim.get("status") or {}), "allocation": allocation, "reservedFor": [*users_of(claim), user]}
        claims.append({**claim, "kind": "ResourceClaim", "status": status})
    placed = {**pod, "kind": "Pod", "spec": {**spec_of(pod), "nodeName": place.name}}
    return with_objects(state, [*claims, placed])


class _Explainer:
    """Explain one subject that waits for the scheduler. Used once."""

    def __init__(self, state: ClusterState, subject: Subject, node: str, scheduler: SchedulerModel) -> None:
        self._state = state
        self._subject = subject
        self._node = node
        self._scheduler = scheduler
        self._usage: dict[str, NodeUsage] = usage_by_node(state.pods)
        self._holders = Holders(state.claims)
        self._causes: list[Cause] = []
        self._notes: list[str] = [
            *gaps_that_matter(state, subject.pod),
            *several_shares(state, subject),
            *filter(None, [admitted(state.workloads, subject.pod) if subject.pod else ""]),
            *other.autoscaler_note(state, subject.pod),
        ]
        self._evaluation: Evaluation | None = None
        self._requests_by_claims: dict[tuple[str, ...], list[RequestSpec]] = {}
        self._allocated = [item for item in subject.claims if allocation_of(item.claim or {}) is not None]
        self._unallocated = [item for item in subject.claims if allocation_of(item.claim or {}) is None]

    def run(self) -> tuple[Explanation, NodeResult | None]:
        self._find_other_causes()
        results: list[NodeResult] = []
        if not any(cause.code in _FINAL_CODES for cause in self._causes if cause.blocks):
            results = self._evaluate(self._allocated, self._unallocated, self._state.claims)
            if results and not any(result.fits for result in results):
                results = self._evaluate_released() or results
        details = Details()
        detail = None
        if self._evaluation is not None and results:
            details = inspect_nodes(self._evaluation, results, self._requests_on, self._holders)
            self._find_scheduler_fault(results)
            detail = self._detail(results)
        elif self._node:
            self._find_node()
        self._causes += details.causes
        if not any(result.fits for result in results):
            matching = {(one.claim, one.request): matching_devices(one) for one in details.requests}
            short = [spec for spec in self._all_requests() if not self._is_matched(spec, matching)]
            self._causes += other.mig_mode_is_off(self._state, short, self._scheduler.features)
            self._causes += other.compute_instances(short)
        self._notes += [details.note] if details.note else []
        self._use_scheduler_message(results)
        verdict = self._verdict(results, details)
        fitting = [result for result in results if result.fits]
        report = replace(
            _report(self._state, self._subject, verdict.answer, verdict.sentence, causes=tuple(self._causes)),
            verdict=verdict,
            requests=details.requests if not fitting else (),
            nearest_miss=details.miss if not fitting else None,
            nodes=details.nodes,
            fitting_nodes=tuple(result.name for result in fitting[:_MAX_NODES]),
            node=detail,
            scheduler=scheduler_message(self._subject.pod or {}),
            notes=tuple(self._notes),
        )
        placeable = verdict.answer is Answer.FITS and fitting
        place = min(fitting, key=lambda item: self._usage.get(item.name, NodeUsage()).pods) if placeable else None
        if place is not None:
            place = self._with_allocations(place)
        return report, place

    def _find_other_causes(self) -> None:
        pod = self._subject.pod
        if pod is not None:
            self._causes += other.before_scheduling(self._state, pod)
        self._causes += [item.problem for item in self._subject.claims if item.problem is not None]
        specs = self._all_requests()
        self._causes += other.missing_classes(self._state, specs)
        self._causes += other.unknown_resources(self._state, self._subject)
        self._causes += other.silent_drivers(self._state, specs)
        self._causes += other.unpublished_forms(self._state, specs, self._scheduler.features)
        self._causes += other.unhealthy_devices(self._state, self._subject)
        used = {spec.class_name for spec in specs}
        for item in self._state.classes:
            if name_of(item) in used:
                self._causes += dropped_fields("DeviceClass", item)
        for claim in self._unallocated:
            self._causes += self._fields_dropped_from(claim)
        if not self._state.nodes:
            unreadable = subjects.gap_of(self._state, "nodes")
            self._causes.append(Cause(code=CauseCode.NO_NODES, message=unreadable or "the cluster has no nodes"))

    def _is_matched(self, spec: RequestSpec, matching: Mapping[tuple[str, str], int]) -> bool:
        key = spec.claim_label, spec.request
        return matching[key] > 0 if key in matching else other.class_matches(self._state, spec)

    def _fields_dropped_from(self, claim: SubjectClaim) -> list[Cause]:
        if claim.source != "template":
            return list(dropped_fields("ResourceClaim", claim.claim or {}))
        pod = self._subject.pod or {}
        entries = spec_of(pod).get("resourceClaims") or ()
        names = {e.get("resourceClaimTemplateName") for e in entries if e.get("name") == claim.entry}
        templates = [
            item
            for item in self._state.templates
            if name_of(item) in names and (item["metadata"].get("namespace") or "default") == self._subject.namespace
        ]
        return [cause for item in templates for cause in dropped_fields("ResourceClaimTemplate", item)]

    def _evaluate(
        self, allocated: Sequence[SubjectClaim], unallocated: Sequence[SubjectClaim], claims: Sequence[Wire]
    ) -> list[NodeResult]:
        try:
            self._evaluation = self._evaluation_of(allocated, unallocated, claims, self._scheduler.quirks)
            return self._evaluation.nodes()
        except (errors.CelSyntaxError, errors.CelEvaluationError) as error:
            self._causes.append(_cel_cause(error))
        except errors.SelectorBudgetError:
            raise
        except errors.AllocationError as error:
            self._causes.append(
                Cause(
                    code=CauseCode.NOT_WEIGHABLE,
                    message=f"the scheduler rejects the pod on every node: {error}",
                    fix="correct the claim, or wait until the driver has published the complete pool",
                )
            )
        self._evaluation = None
        return []

    def _evaluation_of(
        self,
        allocated: Sequence[SubjectClaim],
        unallocated: Sequence[SubjectClaim],
        claims: Sequence[Wire],
        quirks: SchedulerQuirks,
    ) -> Evaluation:
        allocator = Allocator(
            slices=self._state.slices,
            classes=self._state.classes,
            allocated=claims,
            features=self._scheduler.features,
            quirks=quirks,
        )
        return Evaluation(
            self._state, self._subject, allocator, usage=self._usage, allocated=allocated, unallocated=unallocated
        )

    def _find_scheduler_fault(self, results: Sequence[NodeResult]) -> None:
        """Add a cause if only a defect of this scheduler version keeps the pod pending."""
        if any(result.fits for result in results):
            return

        @cache
        def evaluation(quirks: SchedulerQuirks) -> Evaluation:
            return self._evaluation_of(self._allocated, self._unallocated, self._state.claims, quirks)

        found = other.scheduler_fault(
            self._scheduler.quirks,
            results,
            lambda quirks, result: evaluation(quirks).node(result.wire),
            self._state.slices,
        )
        self._causes += [found] if found is not None else []

    def _evaluate_released(self) -> list[NodeResult]:
        """Evaluate again without claims that the scheduler would deallocate.

        These are claims of no other pod, if they keep the pod from every node (PostFilter of kubernetes/kubernetes
        pkg/scheduler/framework/plugins/dynamicresources).
        """
        pod = self._subject.pod
        kept: list[SubjectClaim] = []
        released: list[SubjectClaim] = []
        for item in self._allocated:
            claim = item.claim or {}
            alone = not users_of(claim) or (len(users_of(claim)) == 1 and subjects.is_reserved_for(claim, pod or {}))
            (released if alone and pod is not None else kept).append(item)
        if not released:
            return []
        labels = {subjects.label_of(item.claim or {}) for item in released}
        others = [claim for claim in self._state.claims if subjects.label_of(claim) not in labels]
        before = self._evaluation
        results = self._evaluate(kept, [*released, *self._unallocated], others)
        if not any(result.fits for result in results):
            self._evaluation = before
            return []
        names = ", ".join(sorted(labels))
        self._notes.append(
            f"{names}: allocated on a node where the pod cannot run, and unused; the scheduler will reallocate it"
        )
        return results

    def _use_scheduler_message(self, results: Sequence[NodeResult]) -> None:
        """Use the scheduler's message for rules that this package does not check."""
        pod = self._subject.pod
        if pod is None or not any(result.fits for result in results):
            return
        message = scheduler_message(pod)
        beyond = unmodelled_constraints(pod)
        if message and any(part in message for part in _UNCHECKED) and not any(cause.blocks for cause in self._causes):
            self._causes.append(
                Cause(code=CauseCode.NOT_WEIGHED, message=f"not caused by devices; scheduler message: {message}")
            )
        elif beyond:
            self._notes.append(f"not checked here: {' and '.join(beyond)}")
        elif message and not any(cause.blocks for cause in self._causes):
            # Kubernetes pkg/scheduler/backend/queue: DefaultPodMaxInUnschedulablePodsDuration
            self._notes.append("it fits now; the scheduler tries again after a change, at the latest after 5 minutes")

    def _detail(self, results: Sequence[NodeResult]) -> NodeDetail | None:
        if not self._node:
            return None
        self._find_node()
        result = self._with_allocations(next(result for result in results if result.name == self._node))
        assert self._evaluation is not None  # noqa: S101  results come from it
        return node_detail(self._evaluation, result, self._requests_on(result), self._holders)

    def _with_allocations(self, result: NodeResult) -> NodeResult:
        """Allocate again if the result is from an equivalent node."""
        if self._evaluation is None or not result.fits or not result.claims or result.allocations:
            return result
        return self._evaluation.node(result.wire)

    def _find_node(self) -> None:
        names = [name_of(item) for item in self._state.nodes]
        if self._node not in names:
            known = ", ".join(sorted(names)[:8]) or "none"
            raise errors.ConfigurationError(
                f"no node {self._node}; known nodes: {known}{' and more' if len(names) > 8 else ''}"
            )

    def _requests_on(self, result: NodeResult) -> list[RequestSpec]:
        # Cached per set of claims: only the claim for extended resources differs between nodes.
        key = tuple(str(claim["spec"]) for claim in result.claims)
        if key not in self._requests_by_claims:
            self._requests_by_claims[key] = subjects.requests_of(result.claims, result.labels, self._state.classes)
        return self._requests_by_claims[key]

    def _all_requests(self) -> list[RequestSpec]:
        claims, labels = subjects.claims_to_allocate(self._unallocated, self._subject, None)
        return subjects.requests_of(claims, labels, self._state.classes)

    def _verdict(self, results: Sequence[NodeResult], details: Details) -> Verdict:
        fitting = sum(result.fits for result in results)
        total = len(self._state.nodes)
        blocking = next((cause for cause in self._causes if cause.blocks), None)
        answer = Answer.CANNOT_FIT
        if blocking is None and fitting:
            answer, sentence = Answer.FITS, f"fits on {fitting} of {counted(total, 'node')}"
            unhealthy = [cause.message for cause in self._causes if cause.code is CauseCode.DEVICE_UNHEALTHY]
            if unhealthy:
                answer, sentence = Answer.UNHEALTHY, f"{sentence}, but {unhealthy[0]}"
        elif blocking is None:
            sentence = f"cannot fit: {details.headline}"
        elif fitting:
            sentence = f"cannot be scheduled: {blocking.message} (the devices fit on {fitting} of {total} nodes)"
        else:
            sentence = f"cannot fit: {blocking.message}"
        return Verdict(answer=answer, sentence=sentence, nodes_fit=fitting, nodes_total=total)


def _cel_cause(error: errors.CelSyntaxError | errors.CelEvaluationError) -> Cause:
    syntax = isinstance(error, errors.CelSyntaxError)
    return Cause(
        code=CauseCode.CEL_ERROR,
        message=f"the scheduler rejects the pod on every node: {error}",
        fix="correct the expression"
        if syntax
        else 'begin the expression with device.driver == "…" &&, and read optional attributes with has() or .?',
    )
