"""The fields of a policy's spec with what each says, and which of them it leaves to the default. Pure.

A policy applies alone, so a field of a GPU comes from the one policy that applies to it or from nowhere else.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("availability", "Open"),
    ("forms.whole", "true"),
    ("forms.migProfiles", "all"),
    ("sharing.strategy", "Exclusive"),
    ("sharing.interval", "Default"),
    ("sharing.maxShares", "no limit"),
    ("sharing.defaultComputePercent", "100"),
    ("sharing.reservedMemory", "what the driver keeps"),
    ("taints", "none"),
    ("attributes", "none"),
    ("health.taint", "default rules"),
    ("health.ignore", "nothing"),
    ("health.evict", "nothing"),
    ("health.calmSeconds", "by cause"),
    ("health.evictionGraceSeconds", "60"),
    ("usage.overGrant.action", "Report"),
    ("usage.overGrant.graceSeconds", "60"),
    ("usage.overGrant.overheadPerProcess", "512Mi"),
    ("usage.idle.afterMinutes", "never"),
    ("usage.idle.action", "Report"),
)
"""Each field below ``spec`` that decides what a GPU may be used as, and what holds without it."""
_OF_STRATEGY: Final[Mapping[str, frozenset[str]]] = {
    "sharing.interval": frozenset({"TimeSlicing"}),
    "sharing.maxShares": frozenset({"TimeSlicing", "MPS"}),
    "sharing.defaultComputePercent": frozenset({"TimeSlicing", "MPS"}),
    "sharing.reservedMemory": frozenset({"TimeSlicing", "MPS"}),
}


class FieldValue(NamedTuple):
    """One field; ``given`` is False where the default holds."""

    field: str
    value: str
    given: bool


def field_values(spec: Mapping[str, Any]) -> list[FieldValue]:
    """All fields that mean something with this spec, in the order of the documentation. Null is absent."""
    strategy = _value(spec, "sharing.strategy") or "Exclusive"
    found = []
    for name, default in FIELDS:
        value = _value(spec, name)
        if value is None and strategy not in _OF_STRATEGY.get(name, {strategy}):
            continue
        found.append(FieldValue(name, default if value is None else _text(value), value is not None))
    return found


def _value(spec: Mapping[str, Any], path: str) -> Any:
    found: Any = spec
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(", ", ": "), ensure_ascii=False)
