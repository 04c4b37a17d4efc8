"""Defaults and validation of ResourceClaims with their status, ResourceClaimTemplates and DeviceClasses, and checks
that ResourceSlices share. Paths, messages and limits follow kubernetes/kubernetes
pkg/apis/resource/validation/validation.go and pkg/registry/resource/utils.go (1.36.2)."""

import re
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, dump, entries, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.rules.core import label_problems
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    c_identifier,
    dns_label,
    dns_subdomain,
    duplicate,
    forbidden_field,
    invalid,
    is_extended,
    label_key,
    label_value,
    required,
    too_long,
    too_many,
    unsupported,
)

MAX_REQUESTS = 32
MAX_SELECTORS = 32
MAX_CONFIGS = 32
MAX_OPAQUE_BYTES = 10 * 1024
MAX_EXPRESSION_BYTES = 10 * 1024
MAX_TOLERATIONS = 16
TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

T = TypeVar("T")
Check = Callable[[T, str], list[StatusCause]]


def each(items: Sequence[T], limit: int, check: Check[T], path: str) -> list[StatusCause]:
    """Check the items of a list; a list that is too long is one problem, and its items are not checked."""
    if limit >= 0 and len(items) > limit:
        return [too_many(path, len(items), limit)]
    return [problem for at, item in enumerate(items) for problem in check(item, f"{path}[{at}]")]


def _name_of(item: object) -> Hashable:
    return str(item.get("name", "")) if isinstance(item, dict) else str(item)


def each_unique(
    items: Sequence[T], limit: int, check: Check[T], path: str, key: Callable[[T], Hashable] = _name_of
) -> list[StatusCause]:
    """Like `each`; also reports items with a key (by default the item itself or its name) that an earlier item has."""
    problems = each(items, limit, check, path)
    if limit >= 0 and len(items) > limit:
        return problems
    seen: set[Hashable] = set()
    for at, item in enumerate(items):
        found = key(item)
        if found in seen:
            problems.append(duplicate(f"{path}[{at}]", found))
        seen.add(found)
    return problems


def label_name(name: str, path: str) -> list[StatusCause]:
    return [invalid(path, name, text) for text in dns_label(name)]


def driver_name(name: str, path: str) -> list[StatusCause]:
    """A driver's name: a subdomain of at most 63 characters, upper case allowed."""
    if not name:
        return [required(path)]
    problems = [too_long(path, 63)] if len(name) > 63 else []
    return problems + [invalid(path, name, text) for text in dns_subdomain(name.lower())]


def pool_name(name: str, path: str) -> list[StatusCause]:
    if not name:
        return [required(path)]
    problems = [too_long(path, 253)] if len(name) > 253 else []
    return problems + [invalid(path, part, text) for part in name.split("/") for text in dns_subdomain(part)]


def class_name(name: str, path: str) -> list[StatusCause]:
    return [invalid(path, name, text) for text in dns_subdomain(name)] if name else [required(path)]


def qualified_name(name: str, path: str) -> list[StatusCause]:
    """``[domain/]identifier``: names of attributes and capacities."""
    domain, slash, identifier = name.partition("/")
    if not slash:
        return _identifier(name, path)
    problems = driver_name(domain, path) if domain else [invalid(path, "", "the domain must not be empty")]
    if "/" in identifier:
        return []  # the real server also accepts "a/b/c": a gap that it keeps for compatibility
    return problems + (
        _identifier(identifier, path) if identifier else [invalid(path, "", "the name must not be empty")]
    )


def fully_qualified_name(name: str, path: str) -> list[StatusCause]:
    """A qualified name with its domain: matchAttribute and distinctAttribute."""
    problems = qualified_name(name, path)
    if "/" not in name:
        text = "a fully qualified name must be a domain and a name separated by a slash"
        problems.append(invalid(path, name, text))
    return problems


def _identifier(name: str, path: str) -> list[StatusCause]:
    problems = [too_long(path, 32)] if len(name) > 32 else []
    return problems + [invalid(path, name, text) for text in c_identifier(name[:32])]


def lower_uuid(text: str, path: str) -> list[StatusCause]:
    if _UUID.fullmatch(text):
        return []
    if not _UUID.fullmatch(text.lower()):
        wrong = f"invalid UUID length: {len(text)}" if len(text) != 36 else "invalid UUID format"
        return [invalid(path, text, f"error validating uid: {wrong}")]
    form = "`xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters"
    return [invalid(path, text, f"uid must be in RFC 4122 normalized form, {form}")]


def json_object(value: object, path: str, limit: int) -> list[StatusCause]:
    """Free-form data: an object of at most ``limit`` bytes as JSON."""
    if value is None:
        return [required(path)]
    if len(dump(value)) > limit:
        return [too_long(path, limit)]
    return [] if isinstance(value, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]


def configuration(config: Obj, path: str) -> list[StatusCause]:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    problems = driver_name(opaque.get("driver", ""), f"{path}.opaque.driver")
    return problems + json_object(opaque.get("parameters"), f"{path}.opaque.parameters", MAX_OPAQUE_BYTES)


def selectors(owner: Obj, path: str, review: Review) -> list[StatusCause]:

    def check(selector: Obj, here: str) -> list[StatusCause]:
        if selector.get("cel") is None:
            return [required(f"{here}.cel")]
        expression = selector["cel"].get("expression", "")
        where = f"{here}.cel.expression"
        if len(expression.encode()) > MAX_EXPRESSION_BYTES:
            return [too_long(where, MAX_EXPRESSION_BYTES)]
        if not expression:
            return [required(where)]
        wrong = review.check_cel(expression)
        return [invalid(where, expression, wrong)] if wrong else []

    return each(entries(owner, "selectors"), MAX_SELECTORS, check, f"{path}.selectors")


def tolerations(owner: Obj, path: str) -> list[StatusCause]:

    def check(toleration: Obj, here: str) -> list[StatusCause]:
        problems = [invalid(f"{here}.key", toleration["key"], text) for text in label_key(toleration.get("key") or "a")]
        operator, value = toleration.get("operator", ""), toleration.get("value", "")
        if operator == "Exists" and value:
            problems.append(invalid(f"{here}.value", value, "must be empty for operator `Exists`"))
        elif operator == "Equal":
            problems += [invalid(f"{here}.value", value, text) for text in label_value(value)]
        elif operator != "Exists":
            problems.append(unsupported(f"{here}.operator", operator, ["Equal", "Exists"]))
        effect = toleration.get("effect", "")
        return problems + (one_of(effect, f"{here}.effect", TAINT_EFFECTS) if effect else [])

    return each(entries(owner, "tolerations"), MAX_TOLERATIONS, check, f"{path}.tolerations")


def one_of(value: str, path: str, known: Sequence[str]) -> list[StatusCause]:
    if value in known:
        return []
    return [unsupported(path, value, known)] if value else [required(path)]


def taint(item: Obj, path: str) -> list[StatusCause]:
    key, value = item.get("key", ""), item.get("value", "")
    problems = [invalid(f"{path}.key", key, text) for text in label_key(key)]
    problems += [invalid(f"{path}.value", value, text) for text in label_value(value)]
    return problems + one_of(item.get("effect", ""), f"{path}.effect", TAINT_EFFECTS)


def binding_conditions(owner: Obj, path: str) -> list[StatusCause]:
    """bindingConditions and bindingFailureConditions: both or none, disjoint, at most four each."""
    conditions, failures = entries(owner, "bindingConditions"), entries(owner, "bindingFailureConditions")

    def check(name: str, here: str) -> list[StatusCause]:
        return [invalid(here, name, text) for text in label_key(name)]

    problems = each_unique(conditions, 4, check, f"{path}.bindingConditions")
    problems += each_unique(failures, 4, check, f"{path}.bindingFailureConditions")
    overlap = "bindingFailureConditions must not overlap with bindingConditions"
    problems += [
        invalid(f"{path}.bindingFailureConditions[{at}]", name, overlap)
        for at, name in enumerate(failures)
        if name in conditions
    ]
    if bool(failures) != bool(conditions):
        missing, given = "bindingConditions", "bindingFailureConditions"
        if conditions:
            missing, given = given, missing
        problems.append(invalid(f"{path}.{missing}", [], f"{missing} are required to use {given}"))
    return problems


_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def node_selector_problems(selector: object, path: str) -> list[StatusCause]:
    """Problems of a core/v1 NodeSelector: no terms, unknown operators, missing or surplus values."""
    terms = entries(selector, "nodeSelectorTerms")
    if not terms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    return [
        problem
        for at, term in enumerate(terms)
        for field in ("matchExpressions", "matchFields")
        for problem in each(entries(term, field), -1, _requirement, f"{path}.nodeSelectorTerms[{at}].{field}")
    ]


def _requirement(item: Obj, path: str) -> list[StatusCause]:
    operator, values = item.get("operator", ""), entries(item, "values")
    problems = [invalid(f"{path}.key", item.get("key", ""), text) for text in label_key(item.get("key", ""))]
    if operator in {"In", "NotIn"} and not values:
        problems.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in {"Exists", "DoesNotExist"} and values:
        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        problems.append(forbidden_field(f"{path}.values", text))
    elif operator not in _SELECTOR_OPERATORS:
        problems.append(unsupported(f"{path}.operator", operator, _SELECTOR_OPERATORS))
    return problems


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
    check = partial(reference_problems, names=names)
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
    if review.old is not None:
        return status_problems(obj, review.old) if review.subresource == "status" else _changed_spec(obj, review.old)
    devices, path = mapping(obj, "spec", "devices"), "spec.devices"
    return _admin_access(devices, path, review) + device_claim_problems(devices, path, review)


def _changed_spec(obj: Obj, old: Obj) -> list[StatusCause]:
    changed = mapping(obj, "spec") != mapping(old, "spec")
    return [invalid("spec", obj.get("spec"), "field is immutable")] if changed else []


def _validate_template(obj: Obj, review: Review) -> list[StatusCause]:
    if review.old is not None:
        return _changed_spec(obj, review.old)
    metadata = mapping(obj, "spec", "metadata")
    problems = label_problems(metadata.get("labels"), "spec.metadata.labels")
    devices, path = mapping(obj, "spec", "spec", "devices"), "spec.spec.devices"
    return _admin_access(devices, "spec.devices", review) + problems + device_claim_problems(devices, path, review)


def _validate_class(obj: Obj, review: Review) -> list[StatusCause]:
    spec = mapping(obj, "spec")
    problems = selectors(spec, "spec", review)
    problems += each(entries(spec, "config"), MAX_CONFIGS, configuration, "spec.config")
    name = spec.get("extendedResourceName")
    if name is not None and (not is_extended(name) or name.startswith("requests.") or label_key(f"requests.{name}")):
        problems.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return problems


MAX_RESULTS = 32
MAX_RESERVATIONS = 256
MAX_CONDITIONS = 8
MAX_IPS = 16

DeviceKey = tuple[str, str, str, str | None]


def device_key(item: Obj) -> DeviceKey:
    return (item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID"))


def status_problems(obj: Obj, old: Obj) -> list[StatusCause]:
    status, before = mapping(obj, "status"), mapping(old, "status")
    allocation, reserved = status.get("allocation"), entries(status, "reservedFor")

    def check_consumer(item: Obj, path: str) -> list[StatusCause]:
        return [required(f"{path}.{field}") for field in ("resource", "name", "uid") if not item.get(field)]

    problems = each_unique(
        reserved, MAX_RESERVATIONS, check_consumer, "status.reservedFor", lambda item: item.get("uid", "")
    )
    allocated = {device_key(item) for item in entries(allocation, "devices", "results")}
    check_device = partial(_device_status, allocated=allocated)
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
        names = request_names(mapping(obj, "spec", "devices"))
        problems += _allocation(allocation, "status.allocation", partial(reference_problems, names=names))
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


def _allocation(allocation: Obj, path: str, check_reference: Check[str]) -> list[StatusCause]:
    def check_result(item: Obj, here: str) -> list[StatusCause]:
        problems = check_reference(item.get("request", ""), f"{here}.request") + _device(item, here)
        return problems + binding_conditions(item, here)

    def check_config(item: Obj, here: str) -> list[StatusCause]:
        problems = one_of(item.get("source", ""), f"{here}.source", ["FromClaim", "FromClass"])
        requests, where = entries(item, "requests"), f"{here}.requests"
        return problems + each_unique(requests, MAX_REQUESTS, check_reference, where) + configuration(item, here)

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


def _device_status(item: Obj, path: str, allocated: set[DeviceKey]) -> list[StatusCause]:
    problems = _device(item, path)
    driver, pool, device, share = device_key(item)
    if (driver, pool, device, share) not in allocated:
        shown = {"Driver": driver, "Pool": pool, "Device": device, "ShareID": share or ""}
        problems.append(invalid(path, shown, "must be an allocated device in the claim"))
    conditions = entries(item, "conditions")
    if len(conditions) > MAX_CONDITIONS:
        problems.append(too_many(f"{path}.conditions", len(conditions), MAX_CONDITIONS))
    problems += each(conditions, -1, _condition, f"{path}.conditions")
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
    default=lambda obj: _default_devices(mapping(obj, "spec", "spec", "devices")), validate=_validate_template
)
CLASS_RULES = WriteRules(validate=_validate_class)
