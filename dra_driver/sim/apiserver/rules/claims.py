"""Defaults and validation of ResourceClaims with their status, ResourceClaimTemplates and DeviceClasses.

Follows kubernetes/kubernetes pkg/apis/resource/validation/validation.go and pkg/registry/resource/utils.go (1.36.2).
"""

from collections.abc import Callable
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, entries, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.rules.dra import (
    MAX_CONFIGS,
    MAX_OPAQUE_BYTES,
    MAX_REQUESTS,
    binding_conditions,
    class_name,
    configuration,
    driver_name,
    each,
    each_unique,
    fully_qualified_name,
    json_object,
    label_name,
    lower_uuid,
    pool_name,
    selectors,
    tolerations,
)
from dra_driver.sim.apiserver.rules.meta import label_problems
from dra_driver.sim.apiserver.rules.slices import node_selector_problems
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    forbidden_field,
    invalid,
    label_key,
    required,
    too_long,
    too_many,
    unsupported,
)

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
    names = request_names(devices)

    def check_sub(sub: Obj, here: str) -> list[StatusCause]:
        return label_name(sub.get("name", ""), f"{here}.name") + _requested(sub, here, review)

    def check_request(request: Obj, here: str) -> list[StatusCause]:
        problems = label_name(request.get("name", ""), f"{here}.name")
        if wrong := _one_of_problems(request, here):
            return problems + wrong
        if "exactly" in request:
            return problems + _requested(request["exactly"], f"{here}.exactly", review)
        subs, where = entries(request, "firstAvailable"), f"{here}.firstAvailable"
        return problems + each_unique(subs, MAX_SUBREQUESTS, check_sub, where)

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
        *each_unique(entries(devices, "requests"), MAX_REQUESTS, check_request, f"{path}.requests"),
        *each(entries(devices, "constraints"), MAX_CONSTRAINTS, check_constraint, f"{path}.constraints"),
        *each(entries(devices, "config"), MAX_CONFIGS, check_config, f"{path}.config"),
    ]


def references(owner: Obj, path: str, names: RequestNames) -> list[StatusCause]:

    def check(name: str, here: str) -> list[StatusCause]:
        return reference_problems(name, here, names)

    return each_unique(entries(owner, "requests"), MAX_REQUESTS, check, f"{path}.requests")


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


MAX_RESULTS = 32
MAX_RESERVATIONS = 256
MAX_CONDITIONS = 8
MAX_IPS = 16

ReferenceCheck = Callable[[str, str], list[StatusCause]]


def device_key(item: Obj) -> tuple[Any, ...]:
    return (item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID"))


def shown_device(item: Obj) -> Obj:
    driver, pool, device, share = device_key(item)
    return {"Driver": driver, "Pool": pool, "Device": device, "ShareID": share or ""}


def status_problems(obj: Obj, old: Obj, check_reference: ReferenceCheck) -> list[StatusCause]:
    status, before = mapping(obj, "status"), mapping(old, "status")
    allocation, reserved = status.get("allocation"), entries(status, "reservedFor")
    problems = each_unique(
        reserved, MAX_RESERVATIONS, _consumer, "status.reservedFor", lambda item: item.get("uid", "")
    )
    allocated = {device_key(item) for item in entries(allocation, "devices", "results")}

    def check_device(item: Obj, path: str) -> list[StatusCause]:
        return _device_status(item, path, allocated)

    problems += each_unique(entries(status, "devices"), -1, check_device, "status.devices", device_key)
    if reserved and allocation is None:
        text = "may not be specified when `allocated` is not set"
        problems.append(forbidden_field("status.reservedFor", text))
    elif dig(obj, "metadata", "deletionTimestamp") and any(
        item not in entries(before, "reservedFor") for item in reserved
    ):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        problems.append(forbidden_field("status.reservedFor", text))
    if allocation is not None and before.get("allocation") is not None:
        if allocation != before["allocation"]:
            problems.append(invalid("status.allocation", allocation, "field is immutable"))
    elif allocation is not None:
        problems += _allocation(allocation, "status.allocation", check_reference)
    return problems


def forget_deallocated(obj: Obj, old: Obj, subresource: str) -> None:
    """Drop status.devices of devices that are no longer allocated (strategy's dropDeallocatedStatusDevices)."""
    if subresource != "status" or not entries(obj, "status", "devices"):
        return
    had = {device_key(item) for item in entries(old, "status", "allocation", "devices", "results")}
    has = {device_key(item) for item in entries(obj, "status", "allocation", "devices", "results")}
    kept = [copy_json(item) for item in obj["status"]["devices"] if device_key(item) not in had - has]
    obj["status"]["devices"] = kept
    if not kept:
        del obj["status"]["devices"]


def _consumer(item: Obj, path: str) -> list[StatusCause]:
    return [required(f"{path}.{field}") for field in ("resource", "name", "uid") if not item.get(field)]


def _allocation(allocation: Obj, path: str, check_reference: ReferenceCheck) -> list[StatusCause]:
    def check_result(item: Obj, here: str) -> list[StatusCause]:
        problems = check_reference(item.get("request", ""), f"{here}.request") + _device(item, here)
        return problems + binding_conditions(item, here)

    def check_config(item: Obj, here: str) -> list[StatusCause]:
        source, problems = item.get("source", ""), []
        if not source:
            problems.append(required(f"{here}.source"))
        elif source not in {"FromClaim", "FromClass"}:
            problems.append(unsupported(f"{here}.source", source, ["FromClaim", "FromClass"]))
        requests, where = entries(item, "requests"), f"{here}.requests"
        problems += each_unique(requests, MAX_REQUESTS, check_reference, where)
        return problems + configuration(item, here)

    devices = mapping(allocation, "devices")
    problems = each(entries(devices, "results"), MAX_RESULTS, check_result, f"{path}.devices.results")
    problems += each(entries(devices, "config"), 2 * MAX_CONFIGS, check_config, f"{path}.devices.config")
    if "nodeSelector" in allocation:
        problems += node_selector_problems(allocation["nodeSelector"], f"{path}.nodeSelector")
    return problems


def _device(item: Obj, path: str) -> list[StatusCause]:
    return [
        *driver_name(item.get("driver", ""), f"{path}.driver"),
        *pool_name(item.get("pool", ""), f"{path}.pool"),
        *label_name(item.get("device", ""), f"{path}.device"),
        *(lower_uuid(item["shareID"], f"{path}.shareID") if "shareID" in item else []),
    ]


def _device_status(item: Obj, path: str, allocated: set[tuple[Any, ...]]) -> list[StatusCause]:
    problems = _device(item, path)
    if device_key(item) not in allocated:
        problems.append(invalid(path, shown_device(item), "must be an allocated device in the claim"))
    conditions = entries(item, "conditions")
    if len(conditions) > MAX_CONDITIONS:
        problems.append(too_many(f"{path}.conditions", len(conditions), MAX_CONDITIONS))
    problems += [
        problem for at, each_ in enumerate(conditions) for problem in _condition(each_, f"{path}.conditions[{at}]")
    ]
    if item.get("data") is not None:
        problems += json_object(item["data"], f"{path}.data", MAX_OPAQUE_BYTES)
    network, where = mapping(item, "networkData"), f"{path}.networkData"
    for field, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(field, "").encode()) > limit:
            problems.append(too_long(f"{where}.{field}", limit))
    if len(entries(network, "ips")) > MAX_IPS:
        problems.append(too_many(f"{where}.ips", len(entries(network, "ips")), MAX_IPS))
    return problems


def _condition(item: Obj, path: str) -> list[StatusCause]:
    problems = [] if item.get("type") else [required(f"{path}.type")]
    if item.get("status") not in {"True", "False", "Unknown"}:
        problems.append(unsupported(f"{path}.status", item.get("status", ""), ["False", "True", "Unknown"]))
    return problems + [required(f"{path}.{field}") for field in ("lastTransitionTime", "reason") if not item.get(field)]


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
