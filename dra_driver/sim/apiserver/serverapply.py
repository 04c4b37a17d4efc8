"""Server-side apply: merges a manager's configuration, drops fields that it no longer has, and detects conflicts.

metadata.managedFields has Apply operations only. Plain updates are not recorded, because that would cost time on every
write; so only appliers can conflict. Other semantics follow KEP-555 and k8s.io/apimachinery pkg/util/managedfields.

A set of fields (metav1.FieldsV1) is a tree: ``f:name`` a field, ``k:{"name":"x"}`` a list item by its keys, ``v:"x"`` a
member of a set, ``.`` the item itself; leaves are empty objects (sigs.k8s.io/structured-merge-diff
fieldpath/serialize.go).
"""

import json
from collections.abc import Iterator
from typing import Any

from dra_driver.core.errors import ConflictError
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, entries
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.schema import FieldType, fields_of, type_of

Path = tuple[str, ...]

_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


def apply(
    kind: ResourceKind, live: Obj | None, config: Obj, manager: str, now: str, *, force: bool, subresource: str
) -> Obj:
    """The object after ``manager`` applied ``config``. Raises ConflictError when another applier owns a field
    differently.
    """
    if not manager:
        raise bad_request(
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        )
    if entries(config, "metadata", "managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    type_ = type_of(kind)
    wanted = field_set(_managed_part(config), type_)
    result: Obj = copy_json(live) if live is not None else {}
    managers = [copy_json(entry) for entry in entries(result, "metadata", "managedFields")]
    mine = next((entry for entry in managers if _is_owned_by(entry, manager, subresource)), None)
    others = [entry for entry in managers if entry is not mine]
    _resolve_conflicts(result, config, wanted, others, type_, force=force)
    before = mine["fieldsV1"] if mine else {}
    merged = _merge(result, config, type_)
    for path in _longest_first(before):
        if not contains(wanted, path) and not any(contains(entry["fieldsV1"], path) for entry in others):
            remove_at(merged, path, type_)
    changed = live is None or _content(merged) != _content(live) or wanted != before
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": kind.api_version,
        "time": now if changed or mine is None else mine["time"],
        "fieldsType": "FieldsV1",
        "fieldsV1": wanted,
    }
    if subresource:
        entry["subresource"] = subresource
    merged.setdefault("metadata", {})["managedFields"] = [item for item in others if item["fieldsV1"]] + [entry]
    return merged


def _managed_part(config: Obj) -> Obj:
    metadata = {key: value for key, value in config.get("metadata", {}).items() if key not in _IDENTITY}
    body = {key: value for key, value in config.items() if key not in {"apiVersion", "kind", "metadata"}}
    return body | ({"metadata": metadata} if metadata else {})


def _content(obj: Obj) -> Obj:
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    return obj | {"metadata": metadata}


def _is_owned_by(entry: Obj, manager: str, subresource: str) -> bool:
    return (
        entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and entry.get("subresource", "") == subresource
    )


def _longest_first(fields: Obj) -> list[Path]:
    return sorted(paths(fields), key=len, reverse=True)


def _resolve_conflicts(
    live: Obj, config: Obj, wanted: Obj, others: list[Obj], type_: FieldType, *, force: bool
) -> None:
    """With ``force``, take fields over from other managers; else raise ConflictError if a value would change."""
    found: list[tuple[str, Path]] = []
    for entry in others:
        for path in paths(wanted):
            if not contains(entry["fieldsV1"], path) or path[-1].startswith("k:"):
                continue
            if value_at(live, path, type_) != value_at(config, path, type_):
                found.append((entry["manager"], path))
                if force:
                    entry["fieldsV1"] = without(entry["fieldsV1"], path)
    if found and not force:
        raise _conflict(found)


def _conflict(found: list[tuple[str, Path]]) -> ConflictError:
    causes: list[Obj] = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": _dotted(path)}
        for manager, path in found
    ]
    plural = "conflict" if len(causes) == 1 else "conflicts"
    fields = "\n".join(f"- {cause['field']}" for cause in causes)
    listed = (
        f"{causes[0]['message']}: {causes[0]['field']}"
        if len(causes) == 1
        else f"conflicts with {', '.join(sorted({repr(manager) for manager, _ in found}))}:\n{fields}"
    )
    message = f"Apply failed with {len(causes)} {plural}: {listed}"
    return ConflictError(message, status=409, reason="Conflict", details={"causes": causes})


def _dotted(path: Path) -> str:
    """``.spec.containers[name="a"].image``"""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        else:
            inside = step[2:].strip("{}").replace('":', "=").replace('"', "", 1) if step.startswith("k:") else step[2:]
            text += f"[{inside}]"
    return text


def _merge(target: Obj, config: Obj, field: FieldType) -> Obj:
    for key, value in config.items():
        inner = inner_type(field, key)
        if not merges(inner, value):
            target[key] = copy_json(value)
        elif isinstance(value, dict):
            nested = target.get(key)
            target[key] = _merge(nested if isinstance(nested, dict) else {}, value, inner)
        else:
            target[key] = _merge_list(target.get(key) or [], value, inner)
    return target


def _merge_list(current: list[Obj], config: list[Obj], field: FieldType) -> list[Obj]:
    """Items of ``config`` in its order, merged with the current ones; other items follow in their order."""
    by_step = {item_step(field, item): item for item in current}
    merged = []
    for item in config:
        existing = by_step.pop(item_step(field, item), None)
        if isinstance(item, dict):
            merged.append(_merge(existing if existing is not None else {}, item, field.inner))
        else:
            merged.append(item)
    return merged + list(by_step.values())


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
