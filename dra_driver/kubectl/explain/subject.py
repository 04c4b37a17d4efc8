"""The subject of an explanation: a pod with the claims that it has or would get, or a single claim.

Sources: kubernetes/kubernetes pkg/controller/resourceclaim (which claims it generates) and
staging/src/k8s.io/dynamic-resource-allocation/resourceclaim (which claim belongs to a pod).
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.quantity import quantity_in
from dra_driver.kube.devices import users_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.report import Cause, CauseCode
from dra_driver.scheduler.allocation import EXTENDED_CLAIM_ANNOTATION, IMPLICIT_PREFIX, resource_classes

Wire = Mapping[str, Any]


def name_of(item: Wire) -> str:
    metadata = item.get("metadata") or {}
    return str(metadata.get("name") or f"{metadata.get('generateName', '')}*")


def namespace_of(item: Wire) -> str:
    return str((item.get("metadata") or {}).get("namespace") or "default")


def uid_of(item: Wire) -> str:
    return str((item.get("metadata") or {}).get("uid") or "")


def label_of(item: Wire) -> str:
    return f"{namespace_of(item)}/{name_of(item)}"


def is_deleted(item: Wire) -> bool:
    return bool((item.get("metadata") or {}).get("deletionTimestamp"))


def spec_of(item: Wire) -> Wire:
    spec: Wire = item.get("spec") or {}
    return spec


def status_of(item: Wire) -> Wire:
    status: Wire = item.get("status") or {}
    return status


def allocation_of(claim: Wire) -> Wire | None:
    found: Wire | None = status_of(claim).get("allocation")
    return found


def group_of(pod: Wire) -> str:
    """Return the name of the pod's PodGroup (KEP-5729), "" without one."""
    return str((spec_of(pod).get("schedulingGroup") or {}).get("podGroupName") or "")


def is_reserved_for(claim: Wire, pod: Wire) -> bool:
    """Compare by UID; by name if the pod has no UID, as in manifests. A PodGroup's claim is reserved for the group."""
    uid, group = uid_of(pod), group_of(pod)
    if group and any(user.get("resource") == "podgroups" and user.get("name") == group for user in users_of(claim)):
        return True
    return any(user.get("uid") == uid if uid else user.get("name") == name_of(pod) for user in users_of(claim))


_GUARD: Final = re.compile(r"""device\.driver\s*==\s*["']([a-z0-9.-]{1,253})["']""")


EXTENDED_LABEL: Final = "extended resources"


class RequestSpec(Struct, frozen=True, kw_only=True):
    """One request or subrequest. ``count`` is None for all devices, ``device_class`` when it does not exist."""

    claim: int
    claim_label: str
    request: str
    class_name: str
    device_class: Wire | None
    count: int | None
    selectors: Sequence[str]
    class_selectors: Sequence[str]
    tolerations: Sequence[Wire]
    capacity: Wire
    admin_access: bool
    selector_cache: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def is_extended(self) -> bool:
        """Return whether the scheduler creates the claim for extended resources of a pod."""
        return self.claim_label == EXTENDED_LABEL

    @property
    def drivers(self) -> frozenset[str]:
        """Drivers that the selectors compare with ``device.driver``; empty without a comparison."""
        return frozenset(name for text in (*self.class_selectors, *self.selectors) for name in _GUARD.findall(text))


def requests_of(claims: Sequence[Wire], labels: Sequence[str], classes: Sequence[Wire]) -> list[RequestSpec]:
    by_name = {name_of(item): item for item in classes}
    found = []
    for index, claim in enumerate(claims):
        for request in (spec_of(claim).get("devices") or {}).get("requests") or ():
            name = str(request.get("name"))
            if request.get("exactly"):
                found.append(_spec(index, labels[index], name, request["exactly"], by_name))
            for sub in request.get("firstAvailable") or ():
                found.append(_spec(index, labels[index], f"{name}/{sub.get('name')}", sub, by_name))
    return found


def _spec(claim: int, label: str, name: str, wire: Wire, classes: Mapping[str, Wire]) -> RequestSpec:
    class_name = str(wire.get("deviceClassName") or "")
    found = classes.get(class_name)
    return RequestSpec(
        claim=claim,
        claim_label=label,
        request=name,
        class_name=class_name,
        device_class=found,
        count=None if wire.get("allocationMode") == "All" else int(wire.get("count") or 1),
        selectors=selectors_of(wire),
        class_selectors=selectors_of(spec_of(found)) if found is not None else (),
        tolerations=wire.get("tolerations") or (),
        capacity=(wire.get("capacity") or {}).get("requests") or {},
        admin_access=bool(wire.get("adminAccess")),
    )


def selectors_of(owner: Wire) -> tuple[str, ...]:
    return tuple(
        str((item.get("cel") or {}).get("expression") or "") for item in owner.get("selectors") or () if item.get("cel")
    )


# --- The claim for the extended resources of containers (``resources.requests: {example.com/gpu: 1}``), KEP-5004.
#
# A device plugin that offers the resource on a node takes precedence there, so the claim depends on the node. Source:
# kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.

_MAX_CONTAINERS: Final = 1000


class ExtendedRequest(Struct, frozen=True, kw_only=True):
    """One extended resource of one container, and the DeviceClass that provides it, if any."""

    request: str
    resource: str
    count: int
    class_name: str | None


def extended_requests_of(pod: Wire, classes: Iterable[Wire]) -> list[ExtendedRequest]:
    """Return the containers' extended resources, in the order and with the request names of the scheduler."""
    known = resource_classes(item for item in classes if item["metadata"].get("name"))
    containers = [*(spec_of(pod).get("initContainers") or ()), *(spec_of(pod).get("containers") or ())]
    found = []
    for index, container in enumerate(containers[:_MAX_CONTAINERS]):
        resources: Wire = container.get("resources") or {}
        # The API server copies limits to requests of extended resources; manifests may have only one of them.
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for number, resource in enumerate(sorted(wanted)):
            count = _count(wanted[resource]) if is_extended(resource) else 0
            if count > 0:
                name = f"container-{index}-request-{number}"
                found.append(
                    ExtendedRequest(request=name, resource=resource, count=count, class_name=known.get(resource))
                )
    return found


def is_extended(resource: str) -> bool:
    """As IsExtendedResourceName of pkg/apis/core/v1/helper."""
    if resource.startswith(IMPLICIT_PREFIX):
        return True
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def is_offered(node: Wire, resource: str) -> bool:
    return _count((status_of(node).get("allocatable") or {}).get(resource, 0)) > 0


def claim_for(pod: Wire, extended_requests: Sequence[ExtendedRequest], node: Wire | None) -> Wire | None:
    """Return the claim that the scheduler creates for the pod on the node; None without a device from a class."""
    requests = [
        {
            "name": item.request,
            "exactly": {"deviceClassName": item.class_name, "allocationMode": "ExactCount", "count": item.count},
        }
        for item in extended_requests
        if item.class_name is not None and (node is None or not is_offered(node, item.resource))
    ]
    if not requests:
        return None
    return {
        "metadata": {
            "name": f"{name_of(pod)}-extended-resources",
            "namespace": namespace_of(pod),
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
        },
        "spec": {"devices": {"requests": requests}},
    }


def _count(value: object) -> int:
    found = quantity_in(value)
    return 0 if found is None else found.as_int()


_ENTRY_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
MAX_USERS: Final = 256
"""Limit of consumers of one claim (ResourceClaimReservedForMaxSize)."""


class SubjectClaim(Struct, frozen=True, kw_only=True):
    """One claim of the subject, None when it cannot be determined. ``entry`` is its name in the pod.

    ``source`` is ``claim`` or ``template``. With ``exists`` the claim is an object of the cluster.
    """

    entry: str
    source: str
    claim: Wire | None
    exists: bool
    label: str
    problem: Cause | None = None


class Subject(Struct, frozen=True, kw_only=True):
    """``pod`` is None for a single claim. The claim for ``extended_requests`` depends on the node."""

    kind: str
    namespace: str
    name: str
    pod: Wire | None
    claims: Sequence[SubjectClaim]
    extended_requests: Sequence[ExtendedRequest] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def claims_to_allocate(
    claims: Iterable[SubjectClaim], subject: Subject, node: Wire | None
) -> tuple[list[Wire], list[str]]:
    """Return the known ``claims`` and the one for extended resources on the node, and their labels."""
    found = [(item.claim, item.label) for item in claims if item.claim is not None]
    extended = claim_for(subject.pod, subject.extended_requests, node) if subject.pod is not None else None
    found += [(extended, EXTENDED_LABEL)] if extended is not None else []
    return [claim for claim, _ in found], [label for _, label in found]


def pod_subject(state: ClusterState, namespace: str, name: str) -> Subject:
    """Raises ConfigurationError when the pod does not exist."""
    return subject_of(state, _existing(state, "pods", f"pod {name}", namespace, name))


def claim_subject(state: ClusterState, namespace: str, name: str) -> Subject:
    """Raises ConfigurationError when the claim does not exist."""
    return subject_of_claim(_existing(state, "resourceclaims", f"ResourceClaim {name}", namespace, name))


def _existing(state: ClusterState, resource: str, what: str, namespace: str, name: str) -> Wire:
    found = _find(state.pods if resource == "pods" else state.claims, namespace, name)
    if found is None:
        why = _because(state, resource)
        raise ConfigurationError(f"no {what} in namespace {namespace}{why}; select another namespace with -n")
    return found


def subject_of_claim(claim: Wire) -> Subject:
    only = SubjectClaim(entry="", source="claim", claim=claim, exists=True, label=f"claim {name_of(claim)}")
    return Subject(kind="claim", namespace=namespace_of(claim), name=name_of(claim), pod=None, claims=[only])


def subject_of(state: ClusterState, pod: Wire) -> Subject:
    statuses: Sequence[Wire] = status_of(pod).get("resourceClaimStatuses") or ()
    generated = {item["name"]: item.get("resourceClaimName") for item in statuses if item.get("name")}
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
    state: ClusterState, pod: Wire, entry: Wire, generated: Mapping[str, str | None]
) -> SubjectClaim | None:
    name, namespace = str(entry["name"]), namespace_of(pod)
    claim_name, template = entry.get("resourceClaimName"), entry.get("resourceClaimTemplateName")
    source, label = "claim", f"claim {name}" + (f" ({claim_name})" if claim_name != name else "")
    if not claim_name:
        source, label = "template", f"claim {name} (of template {template})"
        # Without a source, it is one of a later version; without a name, no claim was needed
        # (core/v1 PodResourceClaimStatus).
        if not template or (name in generated and not generated[name]):
            return None
        claim_name = generated.get(name)
        if group_of(pod):
            shared = _claim_of_group(state, pod, name)
            claim_name = name_of(shared) if shared is not None else claim_name
            label = f"claim {name} (of template {template}, for PodGroup {group_of(pod)})"
    if claim_name:
        claim = _find(state.claims, namespace, claim_name)
        problem = _problem(state, pod, claim, claim_name, source)
        return SubjectClaim(
            entry=name, source=source, claim=claim, exists=claim is not None, label=label, problem=problem
        )
    found = _find(state.templates, namespace, str(template))
    if found is not None:
        # Generated as by the resource claim controller.
        metadata = {"name": f"{name_of(pod)}-{name}", "namespace": namespace}
        claim = {"metadata": metadata, "spec": spec_of(found).get("spec") or {}}
        return SubjectClaim(entry=name, source=source, claim=claim, exists=False, label=label)
    known = [name_of(item) for item in state.templates if namespace_of(item) == namespace]
    existing = f"; existing templates: {', '.join(sorted(known)[:5])}" if known else ""
    problem = Cause(
        code=CauseCode.TEMPLATE_MISSING,
        message=f"the pod names ResourceClaimTemplate {template}, which does not exist in namespace "
        f"{namespace}{existing}{_because(state, 'resourceclaimtemplates')}",
        fix=f"create ResourceClaimTemplate {template} in namespace {namespace}; the pod then continues",
        object=f"template/{template}",
    )
    return SubjectClaim(entry=name, source=source, claim=None, exists=False, label=label, problem=problem)


def _claim_of_group(state: ClusterState, pod: Wire, entry: str) -> Wire | None:
    """Return the claim generated for this entry of the pod's PodGroup: the annotation is the same as of a pod's."""
    return next(
        (
            claim
            for claim in state.claims
            if namespace_of(claim) == namespace_of(pod)
            and _is_of_group(claim, pod)
            and ((claim.get("metadata") or {}).get("annotations") or {}).get(_ENTRY_ANNOTATION) == entry
        ),
        None,
    )


def _is_of_group(claim: Wire, pod: Wire) -> bool:
    owners: Sequence[Wire] = (claim.get("metadata") or {}).get("ownerReferences") or ()
    group = group_of(pod)
    return bool(group) and any(owner.get("kind") == "PodGroup" and owner.get("name") == group for owner in owners)


def _problem(state: ClusterState, pod: Wire, claim: Wire | None, name: str, source: str) -> Cause | None:
    where = f"claim/{name}"
    if claim is None and source == "claim":
        return Cause(
            code=CauseCode.CLAIM_MISSING,
            message=f"the pod names ResourceClaim {name}, which does not exist in namespace {namespace_of(pod)}"
            + _because(state, "resourceclaims"),
            fix=f"create ResourceClaim {name}, or use resourceClaimTemplateName instead",
            object=where,
        )
    if claim is None:
        return Cause(
            code=CauseCode.CLAIM_MISSING,
            message=f"ResourceClaim {name} was generated for the pod and has been deleted",
            fix="delete the pod and create it again: the controller generates each claim only once",
            object=where,
        )
    owners: Sequence[Wire] = (claim.get("metadata") or {}).get("ownerReferences") or ()
    is_own = any(owner.get("uid") == uid_of(pod) for owner in owners) or _is_of_group(claim, pod)
    if source == "template" and uid_of(pod) and not is_own:
        return Cause(
            code=CauseCode.CLAIM_NOT_OWNED,
            message=f"ResourceClaim {name} was not generated for this pod; it has another owner",
            fix=f"delete ResourceClaim {name} or rename the pod",
            object=where,
        )
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


def gap_of(state: ClusterState, resource: str) -> str:
    """Return the read error of the resource, "" without one."""
    return next((gap for gap in state.gaps if gap.startswith(f"{resource}:")), "")


def _because(state: ClusterState, resource: str) -> str:
    gap = gap_of(state, resource)
    return f" ({gap})" if gap else ""
