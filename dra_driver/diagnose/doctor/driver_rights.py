"""The rights that the driver's accounts need, as questions for a SubjectAccessReview. Pure.

They are those of deploy/chart/templates/rbac.yaml; docs/rights.md has the requests behind each.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.request_rights import AccessRight
from dra_driver.diagnose.doctor.facts import NODE_DAEMONSET, Unanswered
from dra_driver.diagnose.doctor.wire import Wire, name_of, namespace_of, text

REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RESOURCE: Final = "resource.k8s.io"
_GPU: Final = "gpu.dra-driver.io"


class DriverRight(Struct, frozen=True, kw_only=True):
    """``account`` is ``namespace/name`` of a ServiceAccount."""

    account: str
    right: AccessRight


def rights_of_driver(daemonsets: Sequence[Wire] | Unanswered, namespaces: Sequence[str]) -> list[DriverRight]:
    """What the node processes of the listed DaemonSets need; those of the chart's defaults where none is known."""
    known = () if isinstance(daemonsets, Unanswered) else daemonsets
    found = [item for item in known if name_of(item) == NODE_DAEMONSET]
    if not found:
        return []
    return [
        DriverRight(account=f"{namespace_of(item)}/{_account(item)}", right=right)
        for item in found
        if namespace_of(item) in namespaces
        for right in _of_node_process(item)
    ]


def review_of(right: DriverRight) -> dict[str, Any]:
    """The SubjectAccessReview."""
    namespace, _, name = right.account.partition("/")
    wanted = right.right
    attributes = {
        "verb": wanted.verb,
        "group": wanted.group,
        "resource": wanted.resource,
        "subresource": wanted.subresource,
        "namespace": wanted.namespace,
    }
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec = {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": groups,
        "resourceAttributes": {key: value for key, value in attributes.items() if value},
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def _account(daemonset: Wire) -> str:
    return text(daemonset, "spec", "serviceAccountName") or "default"


def _of_node_process(daemonset: Wire) -> Iterator[AccessRight]:
    for verb in ("list", "watch", "create", "update", "delete"):
        yield AccessRight(verb=verb, resource="resourceslices", group=_RESOURCE)
    yield AccessRight(verb="get", resource="resourceclaims", group=_RESOURCE, namespaced=True)
    for verb in ("get", "list", "watch"):
        yield AccessRight(verb=verb, resource="nodes")
    if text(daemonset, "spec", "settings", "POLICY_OBJECTS") != "false":
        yield AccessRight(verb="list", resource="gpupolicies", group=_GPU)
        yield AccessRight(verb="watch", resource="gpupolicies", group=_GPU)
    if text(daemonset, "spec", "settings", "GPU_NODE") != "false":
        yield AccessRight(verb="create", resource="gpunodes", group=_GPU)
        yield AccessRight(verb="patch", resource="gpunodes", group=_GPU, subresource="status")
    yield AccessRight(verb="create", resource="events", namespace="default", namespaced=True)
