"""Check whether a pod fits a node without devices: selectors, taints, ports, plain resources.

Selectors follow k8s.io/component-helpers scheduling/corev1/nodeaffinity: one term must match, with all its
requirements; a term without requirements matches nothing. A malformed term matches nothing in the affinity of a pod; in
a ResourceSlice it ends the scheduling attempt.

`unfit_reason` has the messages of kubernetes/kubernetes pkg/scheduler/framework/plugins (nodename, nodeunschedulable,
tainttoleration, nodeaffinity, noderesources, nodeports); `unmodelled_constraints` names filters that depend on other
pods or volumes. Of taints on devices, only NoSchedule and NoExecute prevent the allocation
(resourceclaim/devicetoleration.go of k8s.io/dynamic-resource-allocation).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import AllocationError
from dra_driver.core.quantity import NANO, quantity_in
from dra_driver.scheduler.allocation.events import Tainted, Wire

_INT64: Final = 2**63
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_NAME: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_BLOCKING: Final = ("NoSchedule", "NoExecute")


def node_matches(selector: Wire, node: Wire) -> bool:
    """Return whether any term of a NodeSelector selects the node; malformed terms select nothing."""
    return any(
        not _term_problem(term) and _term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ()
    )


def reaches(placement: Wire, node: Wire) -> bool:
    """Return whether devices with this node selection (of a slice's spec, or of a device) can be used on the node.
    Raises AllocationError on a malformed node selector."""
    if placement.get("nodeName"):
        return bool(placement["nodeName"] == node["metadata"]["name"])
    if placement.get("allNodes"):
        return True
    selector = placement.get("nodeSelector")
    if selector is None:
        return False
    problem = next(filter(None, map(_term_problem, selector.get("nodeSelectorTerms") or ())), "")
    if problem:
        raise AllocationError(f"failed to parse node selector: {problem}")
    return node_matches(selector, node)


def _term_matches(term: Wire, node: Wire) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    metadata = node.get("metadata", {})
    labels = metadata.get("labels") or {}
    if not all(_OPERATORS[item["operator"]](labels.get(item["key"]), item.get("values") or []) for item in expressions):
        return False
    name = metadata.get("name", "")
    # Fields other than the name are empty, and a node without a name has no fields to compare.
    return not name or all(
        ((name if item["key"] == "metadata.name" else "") in item["values"]) == (item["operator"] == "In")
        for item in fields
    )


def _term_problem(term: Wire) -> str:
    for item in term.get("matchExpressions") or ():
        problem = _label_problem(item.get("key", ""), item.get("operator", ""), item.get("values") or [])
        if problem:
            return problem
    for item in term.get("matchFields") or ():
        if item.get("operator") not in ("In", "NotIn"):
            return f"operator {item.get('operator')!r} is not supported for fields: expected In or NotIn"
        if len(item.get("values") or ()) != 1:
            return f"field {item.get('key')} must be compared with one value"
    return ""


def _label_problem(key: str, operator: str, values: list[str]) -> str:
    prefix, slash, name = key.rpartition("/")
    if not name or not _NAME.match(name) or (slash and not (_PREFIX.match(prefix) and len(prefix) <= 253)):
        return f"{key!r} is not the name of a label"
    if operator not in _OPERATORS:
        return f"operator {operator!r} is not supported: expected one of {', '.join(_OPERATORS)}"
    if operator in ("In", "NotIn") and not values:
        return f"operator {operator} of label {key} needs values"
    if operator in ("Exists", "DoesNotExist") and values:
        return f"operator {operator} of label {key} takes no values"
    if operator in ("Gt", "Lt") and (len(values) != 1 or _number(values[0]) is None):
        return f"operator {operator} of label {key} needs one integer"
    wrong = next((value for value in values if not _NAME.match(value)), None)
    return "" if wrong is None else f"{wrong!r} cannot be the value of label {key}"


def _number(text: str | None) -> int | None:
    if text is None or len(text) > 64 or not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -_INT64 <= value < _INT64 else None


def _compares(value: str | None, bounds: list[str], holds: Callable[[int, int], bool]) -> bool:
    left, right = _number(value), _number(bounds[0])
    return left is not None and right is not None and holds(left, right)


_OPERATORS: Final[dict[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _values: value is not None,
    "DoesNotExist": lambda value, _values: value is None,
    "Gt": lambda value, values: _compares(value, values, lambda left, right: left > right),
    "Lt": lambda value, values: _compares(value, values, lambda left, right: left < right),
}


def untolerated(taints: Sequence[Wire], tolerations: Sequence[Wire], *, every_effect: bool = False) -> Tainted | None:
    """The first taint that prevents the allocation, None if there is none. ``every_effect``: see `SchedulerQuirks`."""
    for taint in taints:
        if (every_effect or taint.get("effect") in _BLOCKING) and not any(
            tolerates(item, taint) for item in tolerations
        ):
            return Tainted(key=taint.get("key") or "", value=taint.get("value") or "", effect=taint.get("effect") or "")
    return None


def tolerates(toleration: Wire, taint: Wire) -> bool:
    """Return whether the toleration covers the taint; an empty effect covers all effects, an empty key all keys."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")


Amounts = Counter[str]  # resource name -> billionths

MAX_PODS: Final = 110
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"


class NodeUsage(Struct):
    """Return the resources that the pods on a node use."""

    pods: int = 0
    taken: Amounts = field(default_factory=Counter)
    ports: set[tuple[int, str]] = field(default_factory=set)


def usage_by_node(pods: Iterable[Wire]) -> dict[str, NodeUsage]:
    found: dict[str, NodeUsage] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        usage = found.setdefault(node, NodeUsage())
        usage.pods += 1
        usage.ports |= host_ports(pod)
        usage.taken.update(requests_of(pod))
    return found


def unfit_reason(pod: Wire, node: Wire, usage: NodeUsage, served: Iterable[str] = ()) -> str:
    """Return why the pod cannot run on the node, "" if it can. ``served``: extended resources that devices provide."""
    spec = node.get("spec") or {}
    wanted = (pod.get("spec") or {}).get("nodeName")
    if wanted and wanted != node["metadata"]["name"]:
        return "node(s) didn't match the requested node name"
    if spec.get("unschedulable") and not _is_tolerated(pod, {"key": _UNSCHEDULABLE, "effect": "NoSchedule"}):
        return "node(s) were unschedulable"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _BLOCKING and not _is_tolerated(pod, taint):
            return f"node(s) had untolerated taint(s) {{{taint.get('key')}: {taint.get('value') or ''}}}"
    if not _is_wanted(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    if host_ports(pod) & usage.ports:
        return "node(s) didn't have free ports for the requested pod ports"
    return _shortage(pod, node, usage, frozenset(served))


def requests_of(pod: Wire) -> Amounts:
    """The pod's requests of plain resources (k8s.io/component-helpers resource/helpers.go, PodRequests). Containers add
    up. Init containers run in sequence; sidecars (restartPolicy Always) keep running."""
    spec = pod.get("spec") or {}
    total, beside, peak = Amounts(), Amounts(), Amounts()
    for container in spec.get("containers") or ():
        total += _asked(container)
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        peak |= beside + asked
        if container.get("restartPolicy") == "Always":
            total += asked
            beside += asked
    overhead = Amounts({name: _nano(value) for name, value in (spec.get("overhead") or {}).items()})
    return Amounts({**(total | peak), **_asked(spec)}) + overhead


def host_ports(pod: Wire) -> set[tuple[int, str]]:
    """Host ports with their protocol. Host addresses are ignored, so a conflict may be reported where there is none."""
    return {
        (int(port["hostPort"]), port.get("protocol") or "TCP")
        for container in (pod.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def unmodelled_constraints(pod: Wire) -> list[str]:
    """The constraints of the pod that depend on the places of other pods and are not checked here."""
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    found = []
    for name, words in (("podAffinity", "pod affinity"), ("podAntiAffinity", "pod anti-affinity")):
        if (affinity.get(name) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            found.append(words)
    spread: Sequence[Wire] = spec.get("topologySpreadConstraints") or ()
    if any((item.get("whenUnsatisfiable") or "DoNotSchedule") == "DoNotSchedule" for item in spread):
        found.append("topology spread constraints")
    return found


def _shortage(pod: Wire, node: Wire, usage: NodeUsage, served: frozenset[str]) -> str:
    offered = (node.get("status") or {}).get("allocatable")
    most = (offered or {}).get("pods", MAX_PODS)
    if usage.pods >= _nano(most) // NANO:
        return "Too many pods"
    if offered is None:
        return ""  # a node from a manifest or of the embedded cluster, which states no capacity
    short = []
    for resource, value in sorted(requests_of(pod).items()):
        if resource not in served and value > _nano(offered.get(resource, 0)) - usage.taken[resource]:
            short.append(f"Insufficient {resource}")
    return ", ".join(short)


def _is_wanted(pod: Wire, node: Wire) -> bool:
    spec = pod.get("spec") or {}
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or node_matches(required, node)


def _is_tolerated(pod: Wire, taint: Wire) -> bool:
    return any(tolerates(toleration, taint) for toleration in (pod.get("spec") or {}).get("tolerations") or ())


def _asked(owner: Wire) -> Amounts:
    resources = owner.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Amounts({name: _nano(value) for name, value in both.items()})


def _nano(value: object) -> int:
    return _parsed(str(value))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> int:
    """Billionths. A malformed quantity counts as 0; the API server admits none."""
    found = quantity_in(text)
    return 0 if found is None else found.nano
