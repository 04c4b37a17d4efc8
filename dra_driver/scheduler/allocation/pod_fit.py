"""The scheduler's node filters without devices: whether a pod fits a node, with the scheduler's messages.

Checks node name, unschedulable, taints, node selection, host ports, and CPU, memory and other plain resources. Messages
are those of kubernetes/kubernetes pkg/scheduler/framework/plugins (nodename, nodeunschedulable, tainttoleration,
nodeaffinity, noderesources, nodeports). Filters that depend on the places of other pods or on volumes are not modelled;
`unmodelled_constraints` names those that a pod uses.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.quantity import NANO, Quantity
from dra_driver.scheduler.allocation.nodes import node_matches
from dra_driver.scheduler.allocation.taints import tolerates

Wire = Mapping[str, Any]
Amounts = dict[str, int]
"""Resource name -> billionths."""

MAX_PODS: Final = 110
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_BLOCKING: Final = ("NoSchedule", "NoExecute")


class NodeUsage(Struct):
    """What the pods on a node use of it."""

    pods: int = 0
    taken: Amounts = field(default_factory=dict)
    ports: set[tuple[int, str]] = field(default_factory=set)


def usage_by_node(pods: Iterable[Wire]) -> dict[str, NodeUsage]:
    """Usage by node name, by all pods that are bound to a node and have not ended."""
    found: dict[str, NodeUsage] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        usage = found.setdefault(node, NodeUsage())
        usage.pods += 1
        usage.ports |= host_ports(pod)
        for resource, value in requests_of(pod).items():
            usage.taken[resource] = usage.taken.get(resource, 0) + value
    return found


def unfit_reason(pod: Wire, node: Wire, usage: NodeUsage, served: Iterable[str] = ()) -> str:
    """Why the pod cannot run on the node, "" if it can. ``served``: extended resources that devices provide there."""
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
    """The pod's requests of plain resources (k8s.io/component-helpers resource/helpers.go, PodRequests).

    Containers add up. Init containers run one after the other; those with restartPolicy Always keep running.
    """
    spec = pod.get("spec") or {}
    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, _asked(container))
    beside: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(beside, asked)
            _raise_to(peak, beside)
        else:
            alone = dict(asked)
            _add(alone, beside)
            _raise_to(peak, alone)
    _raise_to(total, peak)
    total.update(_asked(spec))
    _add(total, {name: _nano(value) for name, value in (spec.get("overhead") or {}).items()})
    return {name: value for name, value in total.items() if value}


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
        if resource not in served and value > _nano(offered.get(resource, 0)) - usage.taken.get(resource, 0):
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
    """Requests of a container or pod; the API server copies limits where a request is missing."""
    resources = owner.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: _nano(value) for name, value in both.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, least: Amounts) -> None:
    for name, value in least.items():
        total[name] = max(total.get(name, 0), value)


def _nano(value: Any) -> int:
    return _parsed(str(value))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> int:
    """Billionths. A malformed quantity counts as 0; the API server admits none."""
    try:
        return Quantity.parse(text).nano
    except ValueError:
        return 0
