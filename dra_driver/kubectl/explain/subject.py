"""The subject of an explanation: a pod with the claims that it has or would get, or a single claim.

Finds a pod's claims: named, generated from a template, or not generated yet. Follows kubernetes/kubernetes
pkg/controller/resourceclaim (which claims it generates) and
staging/src/k8s.io/dynamic-resource-allocation/resourceclaim (which claim belongs to a pod).
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.devices import users_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.extended import ExtendedRequest, extended_requests_of
from dra_driver.kubectl.explain.objects import (
    Wire,
    is_deleted,
    is_owned_by,
    is_reserved_for,
    label_of,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    uid_of,
)

MAX_USERS: Final = 256
"""Limit of consumers of one claim (ResourceClaimReservedForMaxSize)."""


class SubjectClaim(Struct, frozen=True, kw_only=True):
    """One claim of the subject. ``entry`` is its name in the pod; ``claim`` is None when it cannot be determined.

    ``source`` is ``claim``, ``template`` or ``extended``. With ``exists`` the claim is an object of the cluster.
    """

    entry: str
    source: str
    claim: Wire | None
    exists: bool
    label: str
    problem: Cause | None = None


class Subject(Struct, frozen=True, kw_only=True):
    """``pod`` is None for a claim alone. The claim for ``extended_requests`` depends on the node."""

    kind: str
    namespace: str
    name: str
    pod: Wire | None
    claims: Sequence[SubjectClaim]
    extended_requests: Sequence[ExtendedRequest] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def pod_subject(state: ClusterState, namespace: str, name: str) -> Subject:
    """Returns the pod of that name as subject. Raises ConfigurationError when it does not exist."""
    pod = next((item for item in state.pods if name_of(item) == name and namespace_of(item) == namespace), None)
    if pod is None:
        raise ConfigurationError(
            f"no pod {name} in namespace {namespace}{_gap(state, 'pods')}; select another namespace with -n"
        )
    return subject_of(state, pod)


def claim_subject(state: ClusterState, namespace: str, name: str) -> Subject:
    """Returns the claim of that name as subject. Raises ConfigurationError when it does not exist."""
    claim = _find(state.claims, namespace, name)
    if claim is None:
        raise ConfigurationError(
            f"no ResourceClaim {name} in namespace {namespace}{_gap(state, 'claims')}; select another namespace with -n"
        )
    return subject_of_claim(claim)


def subject_of_claim(claim: Wire) -> Subject:
    """Returns a single claim as subject, as if a pod without other requirements used it."""
    only = SubjectClaim(entry="", source="claim", claim=claim, exists=True, label=f"claim {name_of(claim)}")
    return Subject(kind="claim", namespace=namespace_of(claim), name=name_of(claim), pod=None, claims=[only])


def subject_of(state: ClusterState, pod: Wire) -> Subject:
    """Returns a pod, existing or not, as subject with its claims."""
    statuses: Sequence[Wire] = status_of(pod).get("resourceClaimStatuses") or ()
    generated: dict[str, str | None] = {
        item["name"]: item.get("resourceClaimName") for item in statuses if item.get("name")
    }
    claims = [_claim_of_entry(state, pod, entry, generated) for entry in spec_of(pod).get("resourceClaims") or ()]
    return Subject(
        kind="pod",
        namespace=namespace_of(pod),
        name=name_of(pod),
        pod=pod,
        claims=[item for item in claims if item is not None],
        extended_requests=extended_requests_of(pod, state.classes),
    )


def _claim_of_entry(
    state: ClusterState, pod: Wire, entry: Wire, generated: dict[str, str | None]
) -> SubjectClaim | None:
    name, namespace = str(entry["name"]), namespace_of(pod)
    if entry.get("resourceClaimName"):
        return _by_name(state, pod, name, str(entry["resourceClaimName"]))
    template = entry.get("resourceClaimTemplateName")
    if not template:
        return None  # a source of a later version
    if name in generated:
        claim_name = generated[name]
        # Without a name, no claim was needed (core/v1 PodResourceClaimStatus).
        return _generated(state, pod, name, claim_name, str(template)) if claim_name else None
    found = _find(state.templates, namespace, str(template))
    if found is None:
        return _without_template(state, pod, name, str(template))
    return SubjectClaim(
        entry=name,
        source="template",
        claim=claim_of_template(found, pod, name),
        exists=False,
        label=f"claim {name} (of template {template})",
    )


def claim_of_template(template: Wire, pod: Wire, entry: str) -> dict[str, Any]:
    """Returns the claim that the resource claim controller would generate."""
    inner: Wire = spec_of(template).get("spec") or {}
    return {"metadata": {"name": f"{name_of(pod)}-{entry}", "namespace": namespace_of(pod)}, "spec": inner}


def _by_name(state: ClusterState, pod: Wire, entry: str, claim_name: str) -> SubjectClaim:
    claim = _find(state.claims, namespace_of(pod), claim_name)
    label = f"claim {entry}" + (f" ({claim_name})" if claim_name != entry else "")
    problem = None
    if claim is None:
        problem = Cause(
            code=CauseCode.CLAIM_MISSING,
            message=f"the pod names ResourceClaim {claim_name}, which does not exist in namespace {namespace_of(pod)}"
            + _gap(state, "claims"),
            fix=f"create ResourceClaim {claim_name}, or name a resourceClaimTemplateName instead",
            object=f"claim/{claim_name}",
        )
    else:
        problem = _unusable(claim, pod)
    return SubjectClaim(
        entry=entry, source="claim", claim=claim, exists=claim is not None, label=label, problem=problem
    )


def _generated(state: ClusterState, pod: Wire, entry: str, claim_name: str, template: str) -> SubjectClaim:
    claim = _find(state.claims, namespace_of(pod), claim_name)
    label = f"claim {entry} (of template {template})"
    if claim is None:
        problem: Cause | None = Cause(
            code=CauseCode.CLAIM_MISSING,
            message=f"ResourceClaim {claim_name} was generated for the pod and has been deleted",
            fix="delete the pod and create it again: the controller generates each claim only once",
            object=f"claim/{claim_name}",
        )
    elif uid_of(pod) and not is_owned_by(claim, pod):
        problem = Cause(
            code=CauseCode.CLAIM_NOT_OWNED,
            message=f"ResourceClaim {claim_name} was not generated for this pod; it has another owner",
            fix=f"delete ResourceClaim {claim_name} or rename the pod",
            object=f"claim/{claim_name}",
        )
    else:
        problem = _unusable(claim, pod)
    return SubjectClaim(
        entry=entry, source="template", claim=claim, exists=claim is not None, label=label, problem=problem
    )


def _without_template(state: ClusterState, pod: Wire, entry: str, template: str) -> SubjectClaim:
    known = [name_of(item) for item in state.templates if namespace_of(item) == namespace_of(pod)]
    existing = f"; existing templates: {', '.join(sorted(known)[:5])}" if known else ""
    return SubjectClaim(
        entry=entry,
        source="template",
        claim=None,
        exists=False,
        label=f"claim {entry} (of template {template})",
        problem=Cause(
            code=CauseCode.TEMPLATE_MISSING,
            message=f"the pod names ResourceClaimTemplate {template}, which does not exist in namespace "
            f"{namespace_of(pod)}{existing}{_gap(state, 'templates')}",
            fix=f"create ResourceClaimTemplate {template} in namespace {namespace_of(pod)}; the pod then proceeds",
            object=f"template/{template}",
        ),
    )


def _unusable(claim: Wire, pod: Wire) -> Cause | None:
    where = f"claim/{name_of(claim)}"
    if is_deleted(claim):
        users = ", ".join(sorted(str(user.get("name")) for user in users_of(claim))[:5])
        return Cause(
            code=CauseCode.CLAIM_DELETED,
            message=f"ResourceClaim {label_of(claim)} is being deleted"
            + (f" and still used by {users}" if users else ""),
            fix="wait until it is deleted, then create it again",
            object=where,
        )
    if len(users_of(claim)) >= MAX_USERS and not is_reserved_for(claim, pod):
        return Cause(
            code=CauseCode.CLAIM_FULL,
            message=f"ResourceClaim {label_of(claim)} is reserved for {len(users_of(claim))} pods, which is the limit",
            fix="wait until one of its pods ends, or use another claim for this pod",
            object=where,
        )
    return None


def _find(items: Sequence[Wire], namespace: str, name: str) -> Wire | None:
    return next((item for item in items if name_of(item) == name and namespace_of(item) == namespace), None)


def _gap(state: ClusterState, what: str) -> str:
    """Returns a warning when the list of the missing object could not be read."""
    resource = {"claims": "resourceclaims", "templates": "resourceclaimtemplates"}.get(what, what)
    found = next((gap for gap in state.gaps if gap.startswith(f"{resource}:")), "")
    return f" ({found})" if found else ""
