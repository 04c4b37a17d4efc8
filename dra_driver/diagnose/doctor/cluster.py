"""The checks of a cluster, and the report of one diagnosis: of the whole cluster, a node, a pod or a claim. No I/O."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import run_all
from dra_driver.diagnose.doctor import (
    check_api,
    check_daemonset,
    check_nodes,
    check_policies,
    check_slices,
    check_workloads,
)
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts, Wire, dicts, name_of, namespace_of, text
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.doctor.views import claim_names, key_of, template_names

CLUSTER: Final = "cluster"


class DoctorScope(Struct, frozen=True, kw_only=True):
    """``kind`` is cluster, node, pod or claim."""

    kind: str = CLUSTER
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)


def narrowed(facts: ClusterFacts, scope: DoctorScope) -> ClusterFacts:
    """The facts without other nodes and other workloads; all of them for the cluster.

    Raises ConfigurationError where the named object is known not to exist.
    """
    if scope.kind == CLUSTER:
        return facts
    if scope.kind == "node":
        return _on_node(facts, scope.name, keep_workloads=True)
    item = _find(facts, scope)
    node = text(item, "spec", "nodeName") if scope.kind == "pod" else _node_of_claim(item)
    pods, claims, templates = _of_pod(facts, item) if scope.kind == "pod" else _of_claim(facts, item)
    chosen = replace(facts.with_items(pods=pods, claims=claims), about_workload=True)
    if not templates and scope.kind == "claim":
        chosen = chosen.with_items(templates=())
    return _on_node(chosen, node, keep_workloads=True) if node else chosen


def _find(facts: ClusterFacts, scope: DoctorScope) -> Wire:
    field = "pods" if scope.kind == "pod" else "claims"
    for item in facts.items_or_none(field):
        if key_of(item) == (scope.namespace, scope.name):
            return item
    if facts.knows(field):
        known = sorted(name_of(item) for item in facts.items(field) if namespace_of(item) == scope.namespace)
        raise ConfigurationError(
            f"there is no {scope.kind} {scope.name} in namespace {scope.namespace}; there are: "
            f"{', '.join(known[:5]) or 'none'}"
        )
    return {}


def _of_pod(facts: ClusterFacts, pod: Wire) -> tuple[list[Wire], list[Wire], list[str]]:
    statuses = dicts(pod, "status", "resourceClaimStatuses")
    names = {*claim_names(pod), *(text(item, "resourceClaimName") for item in statuses)}
    wanted = {(namespace_of(pod), name) for name in names}
    claims = [claim for claim in facts.items_or_none("claims") if key_of(claim) in wanted]
    return [pod], claims, template_names(pod)


def _of_claim(facts: ClusterFacts, claim: Wire) -> tuple[list[Wire], list[Wire], list[str]]:
    users = {text(user, "uid") for user in dicts(claim, "status", "reservedFor")}
    pods = [
        pod
        for pod in facts.items_or_none("pods")
        if text(pod, "metadata", "uid") in users
        or (namespace_of(pod) == namespace_of(claim) and name_of(claim) in claim_names(pod))
    ]
    return pods, [claim], []


def _node_of_claim(claim: Wire) -> str:
    """The node in whose pool the claim's first device is: pools are named ``node/driver``."""
    results = dicts(claim, "status", "allocation", "devices", "results")
    return text(results[0], "pool").partition("/")[0] if results else ""


def _on_node(facts: ClusterFacts, node: str, *, keep_workloads: bool) -> ClusterFacts:
    """The facts of one node and of no node. Raises ConfigurationError where the node is known not to exist."""
    if facts.knows("nodes") and all(name_of(item) != node for item in facts.items("nodes")):
        known = sorted(name_of(item) for item in facts.items("nodes"))
        raise ConfigurationError(f"there is no node {node}; there are: {', '.join(known[:5]) or 'none'}")
    kept: dict[str, Callable[[Wire], bool]] = {
        "nodes": lambda item: name_of(item) == node,
        "slices": lambda item: text(item, "spec", "nodeName") in ("", node),
        fact.DRIVER_PODS: lambda item: text(item, "spec", "nodeName") in ("", node),
        fact.GPU_NODES: lambda item: name_of(item) == node,
        fact.VISIBLE_DEVICES: lambda item: text(item, "spec", "nodeName") == node,
    }
    if keep_workloads:
        kept["pods"] = lambda item: text(item, "spec", "nodeName") in ("", node)
    answers: dict[str, Any] = dict(facts.answers)
    for name, keep in kept.items():
        if facts.knows(name):
            answers[name] = [item for item in facts.items(name) if keep(item)]
    return replace(facts, answers=answers)


CHECKS: Final = (
    *check_api.CHECKS,
    *check_daemonset.CHECKS,
    *check_nodes.CHECKS,
    *check_slices.CHECKS,
    *check_policies.CHECKS,
    *check_workloads.CHECKS,
)


def diagnose(
    facts: ClusterFacts, scope: DoctorScope, *, clock: Callable[[], float], took_s: float = 0.0
) -> DoctorReport:
    """The report of all checks over the part of the facts that ``scope`` is about.

    ``took_s`` is the time that reading took. Raises ConfigurationError for an object that is known not to exist.
    """
    began = clock()
    findings = run_all(CHECKS, narrowed(facts, scope))
    return DoctorReport(target=str(scope), findings=findings, source=facts.source, took_s=took_s + clock() - began)
