"""Sets of fields as server-side apply records them (metav1.FieldsV1), and access to values by their members.

A set is a tree: ``f:name`` a field, ``k:{"name":"x"}`` a list item by its keys, ``v:"x"`` a member of a set, ``.``
the item itself; leaves are empty objects. Format: sigs.k8s.io/structured-merge-diff fieldpath/serialize.go.
"""

import json
from collections.abc import Iterator
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.schema import FieldType, fields_of

Path = tuple[str, ...]

# Keys of map lists that objects may leave out because the schema gives them a value (ports of containers and services).
_KEY_DEFAULTS = {"protocol": "TCP"}


def inner_type(field: FieldType, key: str) -> FieldType:
    """The type of one field of an object or free-key map; untyped if the schema lacks it."""
    if field.is_map:
        return field.inner
    return fields_of(field.name).get(key, FieldType(name="any", atomic=True))


def item_step(field: FieldType, item: Any) -> str:
    """The step for a list item in a set."""
    if field.list_type == "map":
        values = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in sorted(field.keys)}
        present = {key: value for key, value in values.items() if value is not None}
        return "k:" + json.dumps(present, separators=(",", ":"))
    return "v:" + json.dumps(item, separators=(",", ":"))


def merges(field: FieldType, value: Any) -> bool:
    """Whether apply looks inside ``value`` instead of replacing it whole."""
    if field.atomic or field.name == "any":
        return False
    if isinstance(value, list):
        return field.list_type in {"map", "set"}
    return isinstance(value, dict)


def field_set(value: Any, field: FieldType) -> Obj:
    """The set of fields that ``value`` has."""
    if not merges(field, value):
        return {}
    if isinstance(value, dict):
        return {f"f:{key}": field_set(item, inner_type(field, key)) for key, item in value.items()}
    if field.list_type == "set":
        return {item_step(field, item): {} for item in value}
    return {item_step(field, item): {".": {}} | field_set(item, field.inner) for item in value}


def paths(fields: Obj, before: Path = ()) -> Iterator[Path]:
    """Every member of a set as a path of steps."""
    for step, inner in fields.items():
        if step == "." or not inner:
            yield (*before, step) if step != "." else before
        if inner:
            yield from paths(inner, (*before, step))


def contains(fields: Obj, path: Path) -> bool:
    """Whether the set has this member."""
    for step in path:
        if step not in fields:
            return False
        fields = fields[step]
    return not fields or "." in fields


def without(fields: Obj, path: Path) -> Obj:
    """The set without one member and without branches that become empty."""
    if not path:
        return {step: inner for step, inner in fields.items() if step != "."}
    step = path[0]
    if step not in fields:
        return fields
    rest = without(fields[step], path[1:]) if len(path) > 1 or fields[step] else None
    kept = {key: value for key, value in fields.items() if key != step}
    return kept | {step: rest} if rest else kept


_MISSING = object()


def value_at(value: Any, path: Path, field: FieldType) -> Any:
    """The value of a member; for a missing one a marker that equals no other value."""
    for step in path:
        if step.startswith("f:"):
            key = step[2:]
            if not isinstance(value, dict) or key not in value:
                return _MISSING
            value, field = value[key], inner_type(field, key)
        else:
            found = [item for item in value if item_step(field, item) == step] if isinstance(value, list) else []
            if not found:
                return _MISSING
            value, field = found[0], field.inner
    return value


def remove_at(value: Any, path: Path, field: FieldType) -> None:
    """Remove a member from ``value`` in place, if it exists."""
    if not path:
        return
    parent = value_at(value, path[:-1], field)
    last = path[-1]
    if last.startswith("f:") and isinstance(parent, dict):
        parent.pop(last[2:], None)
    elif isinstance(parent, list):
        inner = field
        for step in path[:-1]:
            inner = inner_type(inner, step[2:]) if step.startswith("f:") else inner.inner
        parent[:] = [item for item in parent if item_step(inner, item) != last]
