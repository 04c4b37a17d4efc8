"""Turns extended resources of containers (``resources.requests: {example.com/gpu: 1}``) into a claim for devices.

Follows kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go (KEP-5004):
on a node where a device plugin offers the resource, the device plugin takes precedence, so the claim depends on the
node.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.explain.objects import Wire, name_of, namespace_of, spec_of, status_of

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resource name that every DeviceClass has implicitly."""

EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
_MAX_CONTAINERS: Final = 1000


class ExtendedRequest(Struct, frozen=True, kw_only=True):
    """One extended resource of one container, and the DeviceClass that provides it (None: no class does)."""

    request: str
    resource: str
    count: int
    class_name: str | None


def class_names(classes: Iterable[Wire]) -> dict[str, str]:
    """Maps resource names to classes. Of several classes the newest wins; among equally old ones, the first by name."""
    found: dict[str, tuple[str, str]] = {}
    for item in sorted(classes, key=name_of):
        created = str((item.get("metadata") or {}).get("creationTimestamp") or "")
        found[f"{IMPLICIT}{name_of(item)}"] = (created, name_of(item))
        explicit = spec_of(item).get("extendedResourceName")
        if explicit and (explicit not in found or found[explicit][0] < created):
            found[explicit] = (created, name_of(item))
    return {resource: name for resource, (_, name) in found.items()}


def extended_requests_of(pod: Wire, classes: Iterable[Wire]) -> list[ExtendedRequest]:
    """Returns the containers' extended resources, in the order and with the request names of the scheduler."""
    known = class_names(classes)
    containers = [*(spec_of(pod).get("initContainers") or ()), *(spec_of(pod).get("containers") or ())]
    found = []
    for index, container in enumerate(containers[:_MAX_CONTAINERS]):
        resources: Mapping[str, Any] = container.get("resources") or {}
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
    """Whether a resource name is an extended resource (pkg/apis/core/v1/helper, IsExtendedResourceName)."""
    if resource.startswith(IMPLICIT):
        return True
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def is_offered(node: Wire, resource: str) -> bool:
    """Whether a device plugin offers the resource on the node."""
    return _count((status_of(node).get("allocatable") or {}).get(resource, 0)) > 0


def claim_for(pod: Wire, extended_requests: Sequence[ExtendedRequest], node: Wire | None) -> dict[str, Any] | None:
    """Returns the claim that the scheduler would create for the pod on the node; None when it needs no device there."""
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


def _count(value: Any) -> int:
    try:
        return Quantity.parse(str(value)).as_int()
    except ValueError:
        return 0
