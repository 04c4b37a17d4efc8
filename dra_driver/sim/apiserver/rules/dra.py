"""Validation that claims, classes and slices of resource.k8s.io share: names, opaque parameters, tolerations.

Follows kubernetes/kubernetes pkg/apis/resource/validation/validation.go (1.36.2): paths, messages and limits are
the same.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj, dump, entries
from dra_driver.sim.apiserver.kind import Review
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    c_identifier,
    dns_label,
    dns_subdomain,
    duplicate,
    invalid,
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

Check = Callable[[Any, str], list[StatusCause]]


def each(items: Sequence[Any], limit: int, check: Check, path: str) -> list[StatusCause]:
    """Check the items of a list; a list that is too long is one problem, and its items are not checked."""
    if limit >= 0 and len(items) > limit:
        return [too_many(path, len(items), limit)]
    return [problem for at, item in enumerate(items) for problem in check(item, f"{path}[{at}]")]


def _name_of(item: Any) -> Hashable:
    return str(item.get("name", "")) if isinstance(item, dict) else item


def each_unique(
    items: Sequence[Any], limit: int, check: Check, path: str, key: Callable[[Any], Hashable] = _name_of
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
    """A DNS label: devices, requests, counters."""
    return [invalid(path, name, text) for text in dns_label(name)]


def driver_name(name: str, path: str) -> list[StatusCause]:
    """A driver's name: a subdomain of at most 63 characters, upper case allowed."""
    if not name:
        return [required(path)]
    problems = [too_long(path, 63)] if len(name) > 63 else []
    return problems + [invalid(path, name, text) for text in dns_subdomain(name.lower())]


def pool_name(name: str, path: str) -> list[StatusCause]:
    """A pool's name: subdomains separated by slashes."""
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
    """A share's ID."""
    if _UUID.fullmatch(text):
        return []
    if not _UUID.fullmatch(text.lower()):
        wrong = f"invalid UUID length: {len(text)}" if len(text) != 36 else "invalid UUID format"
        return [invalid(path, text, f"error validating uid: {wrong}")]
    form = "`xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters"
    return [invalid(path, text, f"uid must be in RFC 4122 normalized form, {form}")]


def json_object(value: Any, path: str, limit: int) -> list[StatusCause]:
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
        if effect and effect not in TAINT_EFFECTS:
            problems.append(unsupported(f"{here}.effect", effect, TAINT_EFFECTS))
        return problems

    return each(entries(owner, "tolerations"), MAX_TOLERATIONS, check, f"{path}.tolerations")


def taint(item: Obj, path: str) -> list[StatusCause]:
    key, value, effect = item.get("key", ""), item.get("value", ""), item.get("effect", "")
    problems = [invalid(f"{path}.key", key, text) for text in label_key(key)]
    problems += [invalid(f"{path}.value", value, text) for text in label_value(value)]
    if not effect:
        problems.append(required(f"{path}.effect"))
    elif effect not in TAINT_EFFECTS:
        problems.append(unsupported(f"{path}.effect", effect, TAINT_EFFECTS))
    return problems


def binding_conditions(owner: Obj, path: str) -> list[StatusCause]:
    """bindingConditions and bindingFailureConditions: both or none, disjoint, at most four each."""
    conditions, failures = entries(owner, "bindingConditions"), entries(owner, "bindingFailureConditions")

    def check(name: str, here: str) -> list[StatusCause]:
        return [invalid(here, name, text) for text in label_key(name)]

    problems = each_unique(conditions, 4, check, f"{path}.bindingConditions")
    problems += each_unique(failures, 4, check, f"{path}.bindingFailureConditions")
    for at, name in enumerate(failures):
        if name in conditions:
            text = "bindingFailureConditions must not overlap with bindingConditions"
            problems.append(invalid(f"{path}.bindingFailureConditions[{at}]", name, text))
    if failures and not conditions:
        text = "bindingConditions are required to use bindingFailureConditions"
        problems.append(invalid(f"{path}.bindingConditions", conditions, text))
    if conditions and not failures:
        text = "bindingFailureConditions are required to use bindingConditions"
        problems.append(invalid(f"{path}.bindingFailureConditions", failures, text))
    return problems
