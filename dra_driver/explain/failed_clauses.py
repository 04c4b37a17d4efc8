"""Which part of a selector turned a device down, and what was seen there.

Owns the walk over a selector's clauses for one device. Refuses to know whether the device is wanted for anything.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dra_driver.cel import DeviceView, compile_selector
from dra_driver.cel.attribute_refs import AttributeRefs, attribute_refs
from dra_driver.cel.conjuncts import conjuncts
from dra_driver.errors import CelEvaluationError, CelSyntaxError

Wire = Mapping[str, Any]

_MAX_SHOWN: Final = 160
_MAX_VALUES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedClause:
    """``clause`` is the text of the part that is false, ``place`` its number ("clause 2 of 3"; "" for the whole).

    ``seen`` are the values that the part looks at, ``memory = 40Gi``.
    """

    clause: str
    place: str
    seen: str


def failed_clauses(expression: str, driver: str, device: Wire) -> list[FailedClause]:
    """The parts that are false for the device, in their order; the whole when no part is to blame by itself."""
    parts = _parts(expression)
    found = [
        FailedClause(
            clause=short(part),
            place=f"clause {number} of {len(parts)}" if len(parts) > 1 else "",
            seen=_seen(part, driver, device),
        )
        for number, part in enumerate(parts, 1)
        if holds(part, driver, device) is False
    ]
    return found or [FailedClause(clause=short(expression), place="", seen=_seen(expression, driver, device))]


def holds(expression: str, driver: str, device: Wire) -> bool | None:
    """Whether the device is selected; None when that cannot be evaluated."""
    try:
        return compile_selector(expression).evaluate(DeviceView(driver, device))
    except (CelSyntaxError, CelEvaluationError, ValueError):
        return None


def short(expression: str) -> str:
    """On one line, cut when it is long."""
    flat = " ".join(expression.split())
    return flat if len(flat) <= _MAX_SHOWN else flat[: _MAX_SHOWN - 1] + "…"


def signature(expressions: Sequence[str], driver: str, device: Wire) -> Hashable | None:
    """Equal for devices that the expressions cannot tell apart; None when that is not known."""
    found: list[Hashable] = [driver, device.get("allowMultipleAllocations")]
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    for expression in expressions:
        inspected = _reads(expression)
        if inspected is None or inspected.everything:
            return None
        found += [_value(attributes, driver, name) for name in sorted(inspected.attributes)]
        found += [_value(capacity, driver, name) for name in sorted(inspected.capacity)]
    return tuple(found)


@lru_cache(maxsize=1024)
def _parts(expression: str) -> tuple[str, ...]:
    try:
        return conjuncts(expression)
    except CelSyntaxError:
        return (expression,)


def _reads(expression: str) -> AttributeRefs | None:
    try:
        return attribute_refs(expression)
    except CelSyntaxError:
        return None


def _seen(part: str, driver: str, device: Wire) -> str:
    inspected = _reads(part) or AttributeRefs()
    values = [_value(device.get("attributes"), driver, name) for name in sorted(inspected.attributes)]
    values += [_value(device.get("capacity"), driver, name) for name in sorted(inspected.capacity)]
    if "device.driver" in part:
        values.append(f"driver = {driver}")
    return ", ".join(values[:_MAX_VALUES])


def _value(values: Wire | None, driver: str, name: tuple[str, str]) -> str:
    """``memory = 80Gi``. An attribute has one value of some type, a capacity has ``value``."""
    domain, identifier = name
    known = values or {}
    found = known.get(f"{domain}/{identifier}") or (known.get(identifier) if domain == driver else None)
    if not isinstance(found, dict) or not found:
        return f"{identifier} is not there"
    value = found["value"] if "value" in found else next(iter(found.values()))
    return f"{identifier} = {str(value).lower() if isinstance(value, bool) else value}"
