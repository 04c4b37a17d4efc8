"""The checks of a cluster, and the report of one diagnosis: of the cluster, a node, a pod or a claim. No I/O."""

from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import checks_in, run_all
from dra_driver.diagnose.doctor import (
    check_api,
    check_daemonset,
    check_nodes,
    check_policies,
    check_slices,
    check_workloads,
)
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts, dicts, name_of, namespace_of, text
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.doctor.views import claim_names, key_of, node_of_claim
from dra_driver.kube.state import Wire

CLUSTER: Final = "cluster"


class DoctorScope(Struct, frozen=True, kw_only=True):
    """``kind`` is cluster, node, pod or claim."""

    kind: str = CLUSTER
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)


def narrowed(facts: ClusterFacts, scope: DoctorScope) -> ClusterFacts:
    """The facts of this scope, without other nodes and workloads. Raises ConfigurationError if the named object does
    not exist."""
    if scope.kind == CLUSTER:
        return facts
    known = {name_of(item) for item in facts.items_or_none("nodes")}
    if scope.kind == "node":
        if facts.knows("nodes") and scope.name not in known:
            raise _not_found(f"node {scope.name}", scope.name, sorted(known))
        return _on_node(facts, scope.name, known)
    item = _find(facts, scope)
    if scope.kind == "pod":
        node, chosen = text(item, "spec", "nodeName"), facts.with_items(pods=[item], claims=_claims_of(facts, item))
    else:
        node = node_of_claim(item, known)
        chosen = facts.with_items(pods=_users_of(facts, item), claims=[item], templates=())
    chosen = replace(chosen, about_workload=True, cluster=facts)
    # Without all nodes, checks of a node that no longer exists would report an empty cluster.
    is_gone = facts.knows("nodes") and node not in known
    return _on_node(chosen, node, known) if node and not is_gone else chosen


def _find(facts: ClusterFacts, scope: DoctorScope) -> Wire:
    field = "pods" if scope.kind == "pod" else "claims"
    for item in facts.items_or_none(field):
        if key_of(item) == (scope.namespace, scope.name):
            return item
    if facts.knows(field):
        known = sorted(name_of(item) for item in facts.items(field) if namespace_of(item) == scope.namespace)
        raise _not_found(f"{scope.kind} {scope.name} in namespace {scope.namespace}", scope.name, known)
    return {}


def _not_found(target: str, name: str, known: list[str]) -> ConfigurationError:
    existing = ", ".join(known[:5]) or "none"
    message = f"{target} does not exist; existing: {existing}"
    return ConfigurationError(message, reason="TargetNotFound", name=name, existing=existing)


def _claims_of(facts: ClusterFacts, pod: Wire) -> list[Wire]:
    statuses = dicts(pod, "status", "resourceClaimStatuses")
    names = {*claim_names(pod), *(text(item, "resourceClaimName") for item in statuses)}
    wanted = {(namespace_of(pod), name) for name in names}
    return [claim for claim in facts.items_or_none("claims") if key_of(claim) in wanted]


def _users_of(facts: ClusterFacts, claim: Wire) -> list[Wire]:
    users = {text(user, "uid") for user in dicts(claim, "status", "reservedFor")}
    return [
        pod
        for pod in facts.items_or_none("pods")
        if text(pod, "metadata", "uid") in users
        or (namespace_of(pod) == namespace_of(claim) and name_of(claim) in claim_names(pod))
    ]


def _on_node(facts: ClusterFacts, node: str, nodes: Collection[str]) -> ClusterFacts:
    """The facts of one of the ``nodes``, and those without a node."""

    def node_name(item: Wire) -> str:
        return text(item, "spec", "nodeName")

    kept: dict[str, Callable[[Wire], bool]] = {
        "nodes": lambda item: name_of(item) == node,
        "slices": lambda item: node_name(item) in ("", node),
        "pods": lambda item: node_name(item) in ("", node),
        "claims": lambda item: node_of_claim(item, nodes) in ("", node),
        fact.DRIVER_PODS: lambda item: node_name(item) in ("", node),
        fact.GPU_NODES: lambda item: name_of(item) == node,
        fact.VISIBLE_DEVICES: lambda item: node_name(item) == node,
    }
    found = {
        name: [item for item in facts.items(name) if keep(item)] for name, keep in kept.items() if facts.knows(name)
    }
    return replace(facts, answers={**facts.answers, **found}, cluster=facts.whole)


CHECKS: Final = checks_in(check_api, check_daemonset, check_nodes, check_slices, check_policies, check_workloads)


def diagnose(
    facts: ClusterFacts, scope: DoctorScope, *, clock: Callable[[], float], took_s: float = 0.0
) -> DoctorReport:
    """Return the report of all checks on the facts within ``scope``; ``took_s`` is the time to read the facts. Raises
    ConfigurationError for an object that does not exist."""
    began = clock()
    findings = run_all(CHECKS, narrowed(facts, scope))
    return DoctorReport(target=str(scope), findings=findings, source=facts.source, took_s=took_s + clock() - began)
