"""Answer whether a node that does not exist has the devices for equal pods or a claim, and how many such nodes.

The node is empty and has the devices of a template. Its labels, taints and resources are unknown, so they are not
checked.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.text import counted
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import manifests
from dra_driver.kubectl.explain import subject as subjects
from dra_driver.kubectl.explain.evaluation import SchedulerModel
from dra_driver.kubectl.explain.explanation import explained, with_placed
from dra_driver.kubectl.explain.report import AddedNode, Answer, CauseCode, Explanation
from dra_driver.kubectl.explain.subject import Subject, Wire, allocation_of, label_of, spec_of
from dra_driver.kubectl.explain.waiting import alike
from dra_driver.scheduler.allocation import unmodelled_constraints
from dra_driver.scheduler.cel import selector_budget

_NOT_CHECKED: Final = ("labels and taints of the node", "CPU and memory", "DaemonSets", "devices of other drivers")
_DEVICE_FIELDS: Final = ("resourceClaims", "containers", "initContainers", "schedulingGroup")
"""Fields of a pod's spec that decide about devices, and host ports."""
_ON_EVERY_NODE: Final = (CauseCode.CEL_ERROR, CauseCode.NOT_WEIGHABLE)


class NodeTemplate(Struct, frozen=True, kw_only=True):
    """The slices of a node ``name`` with ``gpus``, such as ``8xh100-sxm5-80gb``, for a ``scheduler``. ``gaps`` are
    unread policies and unpublished GPUs."""

    gpus: str
    name: str
    slices: Sequence[Wire]
    scheduler: SchedulerModel
    gaps: Sequence[str] = ()

    @property
    def not_checked(self) -> Sequence[str]:
        return (*_NOT_CHECKED, *self.gaps)

    def alone_in(self, state: ClusterState) -> ClusterState:
        """Return the state with this node in the place of all others, without pods and their devices."""
        anywhere = [item for item in state.slices if not spec_of(item).get("nodeName")]
        node = {"metadata": {"name": self.name}}
        return manifests.with_defaults(replace(state, nodes=[node], pods=(), slices=[*anywhere, *self.slices]))


def with_added_node(
    state: ClusterState, report: Explanation, subject: Subject, pods: Sequence[Wire], added: NodeTemplate | None
) -> Explanation:
    """Add the answer to the report of the subject: a claim, or the first of equal ``pods``."""
    if added is None:
        return report
    if report.verdict.answer.is_good or report.verdict.nodes_fit or subjects.is_deleted(subject.pod or {}):
        found = AddedNode(answer="notNeeded", sentence=f"not needed: {report.verdict.sentence}")
    else:
        unmodelled = unmodelled_constraints(subject.pod or {})
        found = replace(_answer(state, report, subject, pods, added), not_checked=(*added.not_checked, *unmodelled))
    return replace(report, added_node=replace(found, gpus=added.gpus))


def with_added_nodes(
    state: ClusterState, reports: Sequence[Explanation], pods: Sequence[Wire], added: NodeTemplate | None
) -> list[Explanation]:
    """Add the answers to the reports of pods that are applied together. Equal ones that do not fit have one answer."""
    verdicts = [report.verdict for report in reports]
    keys = [(alike(pod, ()), said.answer.is_good and said.sentence) for pod, said in zip(pods, verdicts, strict=True)]
    answers: dict[object, AddedNode | None] = {}
    for pod, report, key in zip(pods, reports, keys, strict=True):
        if key not in answers:
            equal = [each for each, its_key in zip(pods, keys, strict=True) if its_key == key]
            subject = subjects.subject_of(state, pod)
            answers[key] = with_added_node(state, report, subject, equal, added).added_node
    return [replace(report, added_node=answers[key]) for report, key in zip(reports, keys, strict=True)]


def _answer(
    state: ClusterState, report: Explanation, subject: Subject, pods: Sequence[Wire], added: NodeTemplate
) -> AddedNode:
    current = added.alone_in(state)
    if len(current.slices) == len(added.slices):  # the claims of other pods have no devices that this node reaches
        mine = {label_of(item.claim or {}) for item in subject.claims} | {subjects.uid_of(pod) for pod in pods}
        kept = [claim for claim in current.claims if allocation_of(claim) is None or mine & _identities(claim)]
        current = replace(current, claims=kept)
    blocking = [cause for cause in report.causes if cause.blocks and cause.code in _ON_EVERY_NODE]
    fitting = 0
    with selector_budget():
        for pod in pods or (None,):
            wanted = subject if pod is None else _for_devices(current, pod)
            if not (wanted.claims or wanted.extended_requests):
                return _unknown("the pod requests no devices, and a template describes only devices")
            found, place = explained(current, wanted, "", added.scheduler)
            if found.verdict.answer is Answer.UNKNOWN:
                return _unknown(found.verdict.sentence)
            blocking += [cause for cause in found.causes if cause.blocks]
            if blocking or place is None:
                break
            fitting += 1
            current = with_placed(current, pod, place) if pod is not None else current
    if silent := next((cause for cause in blocking if cause.code is CauseCode.DRIVER_SILENT), None):
        return _unknown(f"the template has only the devices of one driver: {silent.message}")
    total, nodes, why = len(pods) or 1, 1, found.verdict.sentence.removeprefix("cannot fit: ")
    shared = [item.label for item in subject.claims if item.source == "claim"]
    if blocking and not fitting:
        known = blocking[0].message in report.verdict.sentence
        nodes, sentence = 0, f"a node does not help{'' if known else f': {blocking[0].message}'}"
    elif not fitting:
        nodes, sentence = 0, f"even an empty node of this kind does not have the devices for it: {why}"
    elif fitting == total:
        sentence = f"one such node has the devices for {'it' if total == 1 else f'all {total} equal pods'}"
    elif shared:
        sentence = f"one such node has the devices for {fitting} of {total} equal pods; they share {shared[0]}, so"
        sentence += " more nodes do not help"
    else:
        nodes = -(-total // fitting)
        sentence = f"{nodes} such nodes have the devices for all {total} equal pods, {counted(fitting, 'pod')} on each"
    return AddedNode(
        answer="helps" if fitting else "doesNotHelp", sentence=sentence, nodes=nodes, pods=total, pods_on_each=fitting
    )


def _identities(claim: Wire) -> set[str]:
    return {label_of(claim), *(str(owner.get("uid")) for owner in claim["metadata"].get("ownerReferences") or ())}


def _for_devices(state: ClusterState, pod: Wire) -> Subject:
    """Return the pod without requirements that a template does not decide."""
    spec = {name: value for name, value in spec_of(pod).items() if name in _DEVICE_FIELDS}
    status = {"resourceClaimStatuses": subjects.status_of(pod).get("resourceClaimStatuses")}
    found = subjects.subject_of(state, {**pod, "spec": spec, "status": status})
    return replace(found, extended_requests=[each for each in found.extended_requests if each.class_name])


def _unknown(why: str) -> AddedNode:
    return AddedNode(answer="unknown", sentence=f"unknown: {why}")
