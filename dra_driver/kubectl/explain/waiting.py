"""Pods that wait for devices, and pods of an owner, in groups of equal pods: one explanation is enough for a group."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.errors import ConfigurationError, RetryableError
from dra_driver.core.finding import Style, plain
from dra_driver.core.text import counted, listed, one_line, wrapped
from dra_driver.kube.devices import Wire
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.queueing import held_back, workload_of
from dra_driver.kubectl.explain.report import AddedNode, Answer, Explanation, not_checked
from dra_driver.kubectl.explain.subject import allocation_of, is_deleted, name_of, namespace_of, spec_of, status_of

Groups = Sequence[Sequence[Wire]]
Explain = Callable[[Sequence[Wire]], Explanation]
"""Explain the first of equal pods."""
_TOKEN_VOLUME: Final = re.compile(r"(?<=kube-api-access)-[a-z0-9]{5}\b")
_MOST_FIXES: Final = 3
_MOST_SUBJECTS: Final = 6


class WaitingSubject(Struct, frozen=True, kw_only=True, rename=camel):
    """An owner with ``pod_count`` waiting pods; a pod without an owner is its own."""

    subject_kind: str
    namespace: str
    name: str
    pod_count: int

    def __str__(self) -> str:
        more = f" ({counted(self.pod_count, 'pod')})" if self.pod_count > 1 else ""
        return f"{self.subject_kind} {self.namespace}/{self.name}{more}"


class WaitingCause(Struct, frozen=True, kw_only=True, rename=camel):
    """Pods that wait for one reason. ``example`` is the name of a pod, for `kubectl dra explain`. ``added_nodes`` are
    the answers of --with-node, one for each group of equal pods."""

    answer: Answer
    sentence: str
    fixes: Sequence[str]
    pod_count: int
    subjects: Sequence[WaitingSubject]
    example: str
    added_nodes: Sequence[AddedNode] = ()


class WaitingList(JsonDocument, frozen=True, kw_only=True):
    """All pods that wait for devices, by cause; most pods first."""

    pod_count: int
    gaps: Sequence[str] = ()
    items: Sequence[WaitingCause]


def waiting_groups(state: ClusterState, namespace: str | None = None) -> Groups:
    """Return the pods without a node that request devices, equal pods in one group. ``namespace`` None is all."""
    allocated = {(namespace_of(item), name_of(item)) for item in state.claims if allocation_of(item)}
    groups: dict[object, list[Wire]] = {}
    for pod in state.pods:
        if _waits(pod) and namespace in (None, namespace_of(pod)):
            groups.setdefault(alike(pod, allocated), []).append(pod)
    return list(groups.values())


def check_queue(state: ClusterState, kind: str, name: str, namespace: str) -> None:
    """Raise RetryableError with the reason if the workload has no pods because Kueue has not admitted it."""
    workload = workload_of(state.workloads, kind, name)
    queued = held_back(workload) if workload is not None else None
    if queued and not any(_is_of(pod, kind, name) for pod in state.pods if namespace_of(pod) == namespace):
        raise RetryableError(f"{kind} {name} has no pods: {queued.message}. Next step: {queued.fix}", reason="Queued")


def owner_groups(state: ClusterState, kind: str, name: str, namespace: str) -> Groups:
    """Return the pods of a workload, waiting ones in groups of equal pods. ``kind`` is in lower case, such as
    ``deployment``. Raises ConfigurationError without pods."""
    owned = replace(
        state, pods=[pod for pod in state.pods if namespace_of(pod) == namespace and _is_of(pod, kind, name)]
    )
    if not owned.pods:
        raise ConfigurationError(
            f"no pod of {kind} {name} in namespace {namespace}: check the name, or select another namespace with -n"
        )
    waiting = waiting_groups(owned)
    grouped = {id(pod) for group in waiting for pod in group}
    return [*waiting, *([pod] for pod in owned.pods if id(pod) not in grouped and not is_deleted(pod))]


def explain_groups(groups: Groups, explain: Explain) -> list[Explanation]:
    """Return an explanation for each group with a problem, else of the first group; ``equal_pods`` are its other
    pods."""
    found = [replace(explain(group), equal_pods=[name_of(pod) for pod in group[1:]]) for group in groups]
    bad = [report for report in found if not report.verdict.answer.is_good]
    if bad or not found:
        return bad
    return [replace(found[0], equal_pods=[name for report in found for name in (report.name, *report.equal_pods)][1:])]


def waiting_list(groups: Groups, explain: Explain, gaps: Sequence[str]) -> WaitingList:
    """Return the groups by cause."""
    causes: dict[tuple[Answer, str], list[tuple[Sequence[Wire], Explanation]]] = {}
    for group in groups:
        report = explain(group)
        causes.setdefault((report.verdict.answer, report.verdict.sentence), []).append((group, report))
    items = [_cause(found) for found in causes.values()]
    items.sort(key=lambda item: (-item.pod_count, item.sentence))
    return WaitingList(pod_count=sum(item.pod_count for item in items), gaps=gaps, items=items)


def render_waiting(found: WaitingList, style: Style = plain) -> str:
    """Return the list as text that ends with a newline."""
    lines = [f"{counted(found.pod_count, 'pod')} waiting for devices, {counted(len(found.items), 'cause')}"]
    for item in found.items:
        subjects = list(map(str, item.subjects))
        lines += ["", *wrapped(style(one_line(item.sentence), "good" if item.answer.is_good else "bad"), "  ")]
        lines += wrapped(f"  {counted(item.pod_count, 'pod')}: {one_line(listed(subjects, _MOST_SUBJECTS))}", "    ")
        lines += (line for fix in item.fixes for line in wrapped(f"  {style('fix:', 'dim')} {one_line(fix)}", "    "))
        for sentence, groups in Counter(f"with {each.gpus}: {each.sentence}" for each in item.added_nodes).items():
            each_of = f", for each of {groups} groups of equal pods" if groups > 1 else ""
            lines += wrapped(f"  {one_line(sentence)}{each_of}", "    ")
        namespace, _, name = item.example.partition("/")
        lines.append(f"  {style('more:', 'dim')} kubectl dra explain pod {one_line(name)} -n {one_line(namespace)}")
    unchecked = dict.fromkeys(part for item in found.items for each in item.added_nodes for part in each.not_checked)
    lines += ["", *not_checked([*unchecked], style)] if unchecked else []
    return "\n".join(lines) + "\n"


def _cause(found: Sequence[tuple[Sequence[Wire], Explanation]]) -> WaitingCause:
    report = found[0][1]
    owners = Counter(_owner(pod) for group, _ in found for pod in group)
    fixes = [cause.fix for _, each in found for cause in each.causes if cause.fix]
    fixes += [each.nearest_miss.fix for _, each in found if each.nearest_miss is not None]
    return WaitingCause(
        answer=report.verdict.answer,
        sentence=report.verdict.sentence,
        fixes=list(dict.fromkeys(filter(None, fixes)))[:_MOST_FIXES],
        pod_count=owners.total(),
        subjects=[
            WaitingSubject(namespace=namespace, subject_kind=kind, name=name, pod_count=count)
            for (namespace, kind, name), count in owners.items()
        ],
        example=f"{report.namespace}/{report.name}",
        added_nodes=[each.added_node for _, each in found if each.added_node is not None],
    )


def _waits(pod: Wire) -> bool:
    if spec_of(pod).get("nodeName") or is_deleted(pod) or status_of(pod).get("phase") not in (None, "", "Pending"):
        return False
    requests = (
        name
        for each in spec_of(pod).get("containers") or ()
        for name in (each.get("resources") or {}).get("requests") or ()
    )
    return bool(spec_of(pod).get("resourceClaims")) or any("/" in str(name) for name in requests)


def alike(pod: Wire, allocated: Collection[tuple[str, str]]) -> object:
    """Return a key that pods share if one answer holds for all of them. Host names and the random name of the token's
    volume differ between replicas and do not count."""
    claims = {
        each.get("name"): each.get("resourceClaimName") for each in status_of(pod).get("resourceClaimStatuses") or ()
    }
    held = {name: (namespace_of(pod), claim) in allocated for name, claim in claims.items()}
    spec = {key: value for key, value in spec_of(pod).items() if key != "hostname"}
    return _TOKEN_VOLUME.sub("", json.dumps([namespace_of(pod), spec, held], sort_keys=True, default=str))


def _owner(pod: Wire) -> tuple[str, str, str]:
    """Return namespace, kind and name of the workload that a user wrote."""
    kind, name = _controller(pod) or ("pod", name_of(pod))
    template = str((_metadata(pod).get("labels") or {}).get("pod-template-hash") or "")
    if kind == "replicaset" and template and name.endswith(f"-{template}"):
        kind, name = "deployment", name.removesuffix(f"-{template}")
    return namespace_of(pod), kind, name


def _is_of(pod: Wire, kind: str, name: str) -> bool:
    owner = _controller(pod)
    if kind == "cronjob":  # names its Jobs after the minute of their schedule
        return (
            owner is not None and owner[0] == "job" and re.fullmatch(rf"{re.escape(name)}-[0-9]+", owner[1]) is not None
        )
    return (kind, name) in (owner, _owner(pod)[1:])


def _controller(pod: Wire) -> tuple[str, str] | None:
    owners = [each for each in _metadata(pod).get("ownerReferences") or () if isinstance(each, Mapping)]
    found = next((each for each in owners if each.get("controller")), owners[0] if owners else None)
    return (str(found.get("kind")).lower(), str(found.get("name"))) if found is not None else None


def _metadata(pod: Wire) -> Wire:
    return pod.get("metadata") or {}
