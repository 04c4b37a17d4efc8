"""Validation of a container's resources, and of the extended resources in a pod's status.

Follows ValidateContainerResourceRequirements and validatePodExtendedResourceClaimStatus in kubernetes/kubernetes
pkg/apis/core/validation/validation.go (1.36.2). For standard resources, requests must not exceed limits. Extended
resources (``nvidia.com/gpu``) have whole numbers and a limit that equals the request.
"""

from collections.abc import Iterator

from dra_driver.core.quantity import Quantity
from dra_driver.sim.apiserver.jsonvalue import Obj, entries, mapping
from dra_driver.sim.apiserver.names import dns_label, dns_subdomain
from dra_driver.sim.apiserver.problems import (
    StatusCause,
    duplicate,
    invalid,
    required,
)

_NO_LIMIT = "Limit must be set for non overcommitable resources"
_NO_CONTAINER = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
_NO_RESOURCE = (
    "must match the extended resource name of an entry in spec.initContainers.resources.requests or "
    "spec.containers.resources.requests"
)
_MAPPING = ("containerName", "resourceName", "requestName")


def is_extended(resource: str) -> bool:
    """Whether a resource is outside of Kubernetes' own domain (helper.IsExtendedResourceName).

    A class's implicit ``deviceclass.resource.kubernetes.io/<class>`` is inside, so it needs no limit.
    """
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def resource_problems(container: Obj, path: str) -> list[StatusCause]:
    """The problems of a container's requests and limits; ``path`` is the container's."""
    return list(_problems(mapping(container, "resources"), f"{path}.resources"))


def _problems(resources: Obj, path: str) -> Iterator[StatusCause]:
    limits, requests = mapping(resources, "limits"), mapping(resources, "requests")
    for where, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            yield from _amount_problems(name, str(text), f"{path}.{where}[{name}]")
    for name, text in requests.items():
        if name in limits:
            yield from _unequal(name, str(text), str(limits[name]), f"{path}.requests")
        elif is_extended(name):
            yield required(f"{path}.limits", _NO_LIMIT)


def _amount_problems(name: str, text: str, path: str) -> Iterator[StatusCause]:
    amount = _quantity(text)
    if amount is None:
        return  # the decoder rejects it
    if amount.nano < 0:
        yield invalid(path, text, "must be greater than or equal to 0")
    if is_extended(name) and not amount.is_integer():
        yield invalid(path, text, "must be an integer")


def _unequal(name: str, text: str, limit_text: str, path: str) -> Iterator[StatusCause]:
    amount, limit = _quantity(text), _quantity(limit_text)
    if amount is None or limit is None or amount == limit:
        return
    if is_extended(name):
        yield invalid(path, text, f"must be equal to {name} limit of {limit_text}")
    elif amount > limit:
        yield invalid(path, text, f"must be less than or equal to {name} limit of {limit_text}")


def _quantity(text: str) -> Quantity | None:
    try:
        return Quantity.parse(text)
    except ValueError:
        return None


def extended_claim_problems(pod: Obj) -> list[StatusCause]:
    """The problems of ``status.extendedResourceClaimStatus``."""
    status = mapping(pod, "status", "extendedResourceClaimStatus")
    return list(_status_problems(pod, status)) if status else []


def _status_problems(pod: Obj, status: Obj) -> Iterator[StatusCause]:
    path, name = "status.extendedResourceClaimStatus", status.get("resourceClaimName", "")
    asked = {
        container.get("name"): mapping(container, "resources", "requests")
        for field in ("initContainers", "containers")
        for container in entries(pod, "spec", field)
    }
    mappings = entries(status, "requestMappings")
    if not mappings:
        yield required(f"{path}.requestMappings", "at least one request mapping is required")
    seen = set()
    for at, item in enumerate(mappings):
        here = f"{path}.requestMappings[{at}]"
        values = tuple(item.get(field, "") for field in _MAPPING)
        if values in seen:
            yield from (duplicate(f"{here}.{field}", value) for field, value in zip(_MAPPING, values, strict=True))
        seen.add(values)
        container, resource, request = values
        if container not in asked:
            yield invalid(f"{here}.containerName", container, _NO_CONTAINER)
        if not any(resource in requests for requests in asked.values()):
            yield invalid(f"{here}.resourceName", resource, _NO_RESOURCE)
        # The real server leaves the index out of this path.
        yield from (invalid(f"{path}.requestName", request, text) for text in dns_label(request))
    yield from (invalid(f"{path}.resourceClaimName", name, text) for text in dns_subdomain(name))
