"""Explains subjects that are past scheduling: running, finished, being deleted, on a node, or an allocated claim."""

from dra_driver.core.text import listed
from dra_driver.kube.devices import results_of, users_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import non_allocation_causes
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.objects import (
    Wire,
    allocation_of,
    is_deleted,
    is_finished,
    name_of,
    spec_of,
    status_of,
)
from dra_driver.kubectl.explain.report import Answer, Explanation, Verdict
from dra_driver.kubectl.explain.subject import Subject


def past_scheduling_report(state: ClusterState, subject: Subject) -> Explanation | None:
    """Returns the report, or None when the subject waits for the scheduler."""
    if subject.pod is None:
        claim = subject.claims[0].claim or {}
        return _allocated(state, subject, claim) if allocation_of(claim) is not None else None
    pod = subject.pod
    node = str(spec_of(pod).get("nodeName") or "")
    phase = str(status_of(pod).get("phase") or "Pending")
    if is_finished(pod):
        return _report(state, subject, Answer.FINISHED, f"has finished ({phase})")
    if is_deleted(pod):
        cause = Cause(code=CauseCode.BEING_DELETED, message="the pod is being deleted and will not be scheduled")
        return _report(state, subject, Answer.CANNOT_FIT, "is being deleted", (cause,))
    if not node:
        return None
    if phase == "Running":
        return _report(state, subject, Answer.RUNNING, f"runs on {node}")
    causes = tuple(non_allocation_causes.causes_on_node(state, subject))
    why = next((cause.message for cause in causes), "")
    sentence = f"is on {node} and has not started" + (f": {why}" if why else "; no problem with its devices is known")
    return _report(state, subject, Answer.PLACED, sentence, causes)


def _allocated(state: ClusterState, subject: Subject, claim: Wire) -> Explanation:
    devices = [f"{result['device']} of {result['pool']}" for result in results_of(claim)]
    users = [str(user.get("name")) for user in users_of(claim)]
    devices_text = f"has {listed(devices, 8)}" if devices else "is allocated without devices"
    sentence = f"{devices_text}; " + (f"reserved for {listed(users, 8)}" if users else "reserved for no pod")
    notes = () if users else ("the scheduler can deallocate this claim, because no pod uses it",)
    return _report(state, subject, Answer.ALLOCATED, sentence, notes=notes)


def _report(
    state: ClusterState,
    subject: Subject,
    answer: Answer,
    sentence: str,
    causes: tuple[Cause, ...] = (),
    *,
    notes: tuple[str, ...] = (),
) -> Explanation:
    node = str(spec_of(subject.pod or {}).get("nodeName") or "")
    node_exists = any(name_of(item) == node for item in state.nodes)
    return Explanation(
        subject=str(subject),
        kind=subject.kind,
        namespace=subject.namespace,
        name=subject.name,
        verdict=Verdict(answer=answer, sentence=sentence, nodes_fit=0, nodes_total=len(state.nodes)),
        causes=causes,
        fitting_nodes=(node,) if node_exists else (),
        notes=(*non_allocation_causes.gaps_that_matter(state, subject.pod), *notes),
    )
