"""Finds the clauses of a selector that reject a device, and the device's values that they read."""

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import AttributeRefs, DeviceView, compile_selector, find_attribute_refs, split_conjuncts

Wire = Mapping[str, Any]

_MAX_SHOWN: Final = 160
_MAX_VALUES: Final = 4


class FailedClause(Struct, frozen=True, kw_only=True):
    """A false clause: its text, and in ``place`` its number ("clause 2 of 3"; "" for the whole expression).

    ``seen`` lists the values that the clause reads, such as ``memory = 40Gi``.
    """

    clause: str
    place: str
    seen: str


def failed_clauses(expression: str, driver: str, device: Wire) -> list[FailedClause]:
    """Returns the clauses that are false for the device, in order; the whole expression when no single clause is."""
    parts = _parts(expression)
    found = [
        FailedClause(
            clause=short(part),
            place=f"clause {number} of {len(parts)}" if len(parts) > 1 else "",
            seen=_values_read(part, driver, device),
        )
        for number, part in enumerate(parts, 1)
        if is_selected_by(part, driver, device) is False
    ]
    return found or [FailedClause(clause=short(expression), place="", seen=_values_read(expression, driver, device))]


def is_selected_by(expression: str, driver: str, device: Wire) -> bool | None:
    """Whether the expression selects the device; None when it cannot be evaluated."""
    try:
        return compile_selector(expression).evaluate(DeviceView(driver, device, lists=True))
    except (CelSyntaxError, CelEvaluationError, ValueError):
        return None


def short(expression: str) -> str:
    """Returns the expression on one line, at most _MAX_SHOWN characters."""
    flat = " ".join(expression.split())
    return flat if len(flat) <= _MAX_SHOWN else flat[: _MAX_SHOWN - 1] + "…"


def signature(expressions: Sequence[str], driver: str, device: Wire) -> Hashable | None:
    """Returns a key that is equal for devices the expressions cannot distinguish; None when that is unknown."""
    found: list[Hashable] = [driver, device.get("allowMultipleAllocations")]
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    for expression in expressions:
        refs = _refs(expression)
        if refs is None or refs.everything:
            return None
        found += [_value(attributes, driver, name) for name in sorted(refs.attributes)]
        found += [_value(capacity, driver, name) for name in sorted(refs.capacity)]
    return tuple(found)


@lru_cache(maxsize=1024)
def _parts(expression: str) -> tuple[str, ...]:
    try:
        return split_conjuncts(expression)
    except CelSyntaxError:
        return (expression,)


def _refs(expression: str) -> AttributeRefs | None:
    try:
        return find_attribute_refs(expression)
    except CelSyntaxError:
        return None


def _values_read(part: str, driver: str, device: Wire) -> str:
    refs = _refs(part) or AttributeRefs()
    values = [_value(device.get("attributes"), driver, name) for name in sorted(refs.attributes)]
    values += [_value(device.get("capacity"), driver, name) for name in sorted(refs.capacity)]
    if "device.driver" in part:
        values.append(f"driver = {driver}")
    return ", ".join(values[:_MAX_VALUES])


def _value(values: Wire | None, driver: str, name: tuple[str, str]) -> str:
    """Returns ``memory = 80Gi``. An attribute has one value of some type, a capacity has ``value``."""
    domain, identifier = name
    known = values or {}
    found = known.get(f"{domain}/{identifier}") or (known.get(identifier) if domain == driver else None)
    if not isinstance(found, dict) or not found:
        return f"{identifier} is missing"
    value = found["value"] if "value" in found else next(iter(found.values()))
    return f"{identifier} = {str(value).lower() if isinstance(value, bool) else value}"
