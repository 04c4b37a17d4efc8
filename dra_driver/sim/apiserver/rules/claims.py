"""Defaults and validation of ResourceClaims, ResourceClaimTemplates and DeviceClasses.

Follows kubernetes/kubernetes pkg/apis/resource/validation/validation.go and pkg/registry/resource/utils.go (1.36.2).
`claim_status` validates the status.
"""

from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj, entries, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.names import label_key
from dra_driver.sim.apiserver.problems import (
    StatusCause,
    forbidden_field,
    invalid,
    required,
    unsupported,
)
from dra_driver.sim.apiserver.rules.claim_status import forget_deallocated, status_problems
from dra_driver.sim.apiserver.rules.dra import (
    MAX_CONFIGS,
    MAX_REQUESTS,
    class_name,
    configuration,
    each,
    each_unique,
    fully_qualified_name,
    label_name,
    selectors,
    tolerations,
)
from dra_driver.sim.apiserver.rules.meta import label_problems

ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
MAX_SUBREQUESTS = 8
MAX_CONSTRAINTS = 32
REFERENCE_TEXT = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"

RequestNames = dict[str, set[str]]


def request_names(devices: Obj) -> RequestNames:
    """Requests of a claim with the names of their subrequests."""
    return {
        request.get("name", ""): {sub.get("name", "") for sub in entries(request, "firstAvailable")}
        for request in entries(devices, "requests")
    }


def _default_devices(devices: Obj) -> None:
    for request in entries(devices, "requests"):
        exactly = request.get("exactly")
        for part in [*([exactly] if isinstance(exactly, dict) else []), *entries(request, "firstAvailable")]:
            part.setdefault("allocationMode", "ExactCount")
            if part["allocationMode"] == "ExactCount" and not part.get("count"):
                part["count"] = 1
            for toleration in entries(part, "tolerations"):
                toleration.setdefault("operator", "Equal")


def _one_of_problems(request: Obj, path: str) -> list[StatusCause]:
    text = "exactly one of `exactly` or `firstAvailable` is required"
    has_subs, has_exactly = bool(entries(request, "firstAvailable")), "exactly" in request
    if has_subs and has_exactly:
        return [invalid(path, None, f"{text}, but multiple fields are set")]
    return [] if has_subs or has_exactly else [required(path, text)]


def _requested(part: Obj, path: str, review: Review) -> list[StatusCause]:
    """The fields that ``exactly`` and subrequests share."""
    problems = class_name(part.get("deviceClassName", ""), f"{path}.deviceClassName")
    problems += selectors(part, path, review)
    mode, count = part.get("allocationMode", ""), part.get("count", 0)
    if mode == "All" and count:
        problems.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        problems.append(invalid(f"{path}.count", count, "must be greater than zero"))
    elif mode not in {"All", "ExactCount"}:
        problems.append(unsupported(f"{path}.allocationMode", mode, ["All", "ExactCount"]))
    return problems + tolerations(part, path)


def device_claim_problems(devices: Obj, path: str, review: Review) -> list[StatusCause]:
    """The problems of ``spec.devices``."""
    names = request_names(devices)

    def name_of(item: Obj) -> Any:
        return item.get("name", "")

    def check_sub(sub: Obj, here: str) -> list[StatusCause]:
        return label_name(sub.get("name", ""), f"{here}.name") + _requested(sub, here, review)

    def check_request(request: Obj, here: str) -> list[StatusCause]:
        problems = label_name(request.get("name", ""), f"{here}.name")
        if wrong := _one_of_problems(request, here):
            return problems + wrong
        if "exactly" in request:
            return problems + _requested(request["exactly"], f"{here}.exactly", review)
        subs, where = entries(request, "firstAvailable"), f"{here}.firstAvailable"
        return problems + each_unique(subs, MAX_SUBREQUESTS, check_sub, name_of, where)

    def check_constraint(constraint: Obj, here: str) -> list[StatusCause]:
        problems = references(constraint, here, names)
        for field in ("matchAttribute", "distinctAttribute"):
            if field in constraint:
                return problems + fully_qualified_name(constraint[field], f"{here}.{field}")
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        return [*problems, required(here, text)]

    def check_config(config: Obj, here: str) -> list[StatusCause]:
        return references(config, here, names) + configuration(config, here)

    return [
        *each_unique(entries(devices, "requests"), MAX_REQUESTS, check_request, name_of, f"{path}.requests"),
        *each(entries(devices, "constraints"), MAX_CONSTRAINTS, check_constraint, f"{path}.constraints"),
        *each(entries(devices, "config"), MAX_CONFIGS, check_config, f"{path}.config"),
    ]


def references(owner: Obj, path: str, names: RequestNames) -> list[StatusCause]:
    """Problems of the request names that a constraint or configuration applies to."""

    def check(name: str, here: str) -> list[StatusCause]:
        return reference_problems(name, here, names)

    return each_unique(entries(owner, "requests"), MAX_REQUESTS, check, lambda name: name, f"{path}.requests")


def reference_problems(name: str, path: str, names: RequestNames) -> list[StatusCause]:
    """Problems of one reference, ``request`` or ``request/subrequest``."""
    request, slash, sub = name.partition("/")
    if "/" in sub:
        return [invalid(path, name, REFERENCE_TEXT)]
    problems = [problem for part in name.split("/") for problem in label_name(part, path)]
    if request not in names or (slash and sub not in names[request]):
        problems.append(invalid(path, name, REFERENCE_TEXT))
    return problems


def _admin_access(devices: Obj, path: str, review: Review) -> list[StatusCause]:
    for at, request in enumerate(entries(devices, "requests")):
        if mapping(request, "exactly").get("adminAccess"):
            if review.namespace_labels().get(ADMIN_ACCESS_LABEL) == "true":
                return []
            text = (
                f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
            )
            return [forbidden_field(f"{path}.requests[{at}].adminAccess", text)]
    return []


def _validate_claim(obj: Obj, review: Review) -> list[StatusCause]:
    if review.subresource == "status" and review.old is not None:
        names = request_names(mapping(obj, "spec", "devices"))

        def check(name: str, here: str) -> list[StatusCause]:
            return reference_problems(name, here, names)

        return status_problems(obj, review.old, check)
    if review.old is not None:
        changed = mapping(obj, "spec") != mapping(review.old, "spec")
        return [invalid("spec", obj.get("spec"), "field is immutable")] if changed else []
    devices, path = mapping(obj, "spec", "devices"), "spec.devices"
    return _admin_access(devices, path, review) + device_claim_problems(devices, path, review)


def _validate_template(obj: Obj, review: Review) -> list[StatusCause]:
    if review.old is not None:
        changed = mapping(obj, "spec") != mapping(review.old, "spec")
        return [invalid("spec", obj.get("spec"), "field is immutable")] if changed else []
    metadata = mapping(obj, "spec", "metadata")
    problems = label_problems(metadata.get("labels"), "spec.metadata.labels")
    devices, path = mapping(obj, "spec", "spec", "devices"), "spec.spec.devices"
    return _admin_access(devices, "spec.devices", review) + problems + device_claim_problems(devices, path, review)


def _validate_class(obj: Obj, review: Review) -> list[StatusCause]:
    spec = mapping(obj, "spec")
    problems = selectors(spec, "spec", review)
    problems += each(entries(spec, "config"), MAX_CONFIGS, configuration, "spec.config")
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended_resource(name):
        problems.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return problems


def _is_extended_resource(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return bool(slash) and not native and not name.startswith("requests.") and not label_key(f"requests.{name}")


CLAIM_RULES = WriteRules(
    default=lambda obj: _default_devices(mapping(obj, "spec", "devices")),
    prepare_update=forget_deallocated,
    validate=_validate_claim,
)
TEMPLATE_RULES = WriteRules(
    default=lambda obj: _default_devices(mapping(obj, "spec", "spec", "devices")),
    validate=_validate_template,
)
CLASS_RULES = WriteRules(validate=_validate_class)
