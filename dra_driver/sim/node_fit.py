"""Whether a node takes a pod at all, devices apart: the scheduler's small filters, with its words.

Messages are those of kubernetes/kubernetes pkg/scheduler/framework/plugins (nodeunschedulable, tainttoleration,
nodeaffinity, noderesources). CPU and memory are not looked at: containers of the embedded cluster use none.
"""

from dra_driver.allocation.nodes import node_matches
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping

MAX_PODS = 110
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def why_not(pod: Obj, node: Obj, pods_on_node: int) -> str:
    """Why the pod cannot run on the node, "" when it can."""
    if dig(node, "spec", "unschedulable") and not _tolerates(pod, {"key": _UNSCHEDULABLE, "effect": "NoSchedule"}):
        return "node(s) were unschedulable"
    for taint in entries(node, "spec", "taints"):
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerates(pod, taint):
            return f"node(s) had untolerated taint(s) {{{taint.get('key')}: {taint.get('value', '')}}}"
    if not _wanted(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    capacity = int(dig(node, "status", "allocatable", "pods", default=MAX_PODS))
    return "Too many pods" if pods_on_node >= capacity else ""


def _wanted(pod: Obj, node: Obj) -> bool:
    labels = mapping(node, "metadata", "labels")
    if any(labels.get(name) != value for name, value in mapping(pod, "spec", "nodeSelector").items()):
        return False
    affinity = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    required = dig(pod, *affinity)
    return required is None or node_matches(required, node)


def _tolerates(pod: Obj, taint: Obj) -> bool:
    return any(_covers(toleration, taint) for toleration in entries(pod, "spec", "tolerations"))


def _covers(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
