"""Server-side apply: merge a manager's configuration, drop fields that it no longer has, and detect conflicts. Follows
KEP-555 and k8s.io/apimachinery pkg/util/managedfields, but records only Apply operations, so only appliers conflict.

Fields are paths of steps: ``f:name`` a field, ``k:{"name":"x"}`` a list item by its keys, ``v:"x"`` a member of a set.
In metav1.FieldsV1 they are a tree in which ``.`` is an item itself (sigs.k8s.io/structured-merge-diff
fieldpath/serialize.go).
"""

import json
from collections.abc import Iterable, Iterator

from dra_driver.core.errors import ConflictError
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, child, copy_json, entries
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.schema import FieldType, fields_of, type_of

Path = tuple[str, ...]

_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


def apply(
    kind: ResourceKind, live: Obj | None, config: Obj, manager: str, now: str, *, force: bool, subresource: str
) -> Obj:
    """The object after ``manager`` applied ``config``. Raises ConflictError when another applier owns a field with
    another value."""
    if not manager:
        raise bad_request(
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        )
    if entries(config, "metadata", "managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    type_ = type_of(kind)
    wanted = dict(_members(_managed_part(config), type_))
    result: Obj = copy_json(live) if live is not None else {}
    mine, others = None, list[Obj]()
    for entry in entries(result, "metadata", "managedFields"):
        owner = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
        if mine is None and owner == (manager, "Apply", subresource):
            mine = entry
        else:
            others.append(entry)
    conflicts = _conflicts(wanted, dict(_members(result, type_)), others)
    if conflicts and not force:
        raise _conflict(conflicts)
    for entry, path in conflicts:
        entry["fieldsV1"] = _tree(each for each in _paths(entry["fieldsV1"]) if each != path)
    before = set(_paths(mine["fieldsV1"])) if mine else set()
    merged = _merge(result, config, type_)
    kept = {*wanted, *(path for entry in others for path in _paths(entry["fieldsV1"]))}
    # List items first and whole: without its key fields, an item cannot be found.
    for path in sorted(before - kept, key=lambda each: (not each[-1].startswith("k:"), each)):
        _remove(merged, path, type_)
    changed = live is None or _content(merged) != _content(live) or wanted.keys() != before
    mine = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": kind.api_version,
        "time": now if changed or mine is None else mine["time"],
        "fieldsType": "FieldsV1",
        "fieldsV1": _tree(wanted),
        **({"subresource": subresource} if subresource else {}),
    }
    child(merged, "metadata")["managedFields"] = [*(item for item in others if item["fieldsV1"]), mine]
    return merged


def _managed_part(config: Obj) -> Obj:
    metadata = {key: value for key, value in config.get("metadata", {}).items() if key not in _IDENTITY}
    body = {key: value for key, value in config.items() if key not in {"apiVersion", "kind", "metadata"}}
    return body | ({"metadata": metadata} if metadata else {})


def _content(obj: Obj) -> Obj:
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    return obj | {"metadata": metadata}


def _conflicts(wanted: dict[Path, object], live: dict[Path, object], others: list[Obj]) -> list[tuple[Obj, Path]]:
    differing = [path for path in wanted if path not in live or live[path] != wanted[path]]
    fields = [path for path in differing if not path[-1].startswith("k:")]
    return [
        (entry, path) for entry in others for path in sorted({*_paths(entry["fieldsV1"])} & {*fields}, key=fields.index)
    ]


def _conflict(found: list[tuple[Obj, Path]]) -> ConflictError:
    causes: list[Obj] = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{entry["manager"]}"', "field": _dotted(path)}
        for entry, path in found
    ]
    if len(causes) == 1:
        listed = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        managers = ", ".join(sorted({repr(entry["manager"]) for entry, _ in found}))
        fields = "\n".join(f"- {cause['field']}" for cause in causes)
        listed = f"{len(causes)} conflicts: conflicts with {managers}:\n{fields}"
    message = f"Apply failed with {listed}"
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
        inner = _inner_type(field, key)
        if not _merges(inner, value):
            target[key] = copy_json(value)
        elif isinstance(value, dict):
            nested = target.get(key)
            target[key] = _merge(nested if isinstance(nested, dict) else {}, value, inner)
        else:
            target[key] = _merge_list(target.get(key) or [], value, inner)
    return target


def _merge_list(current: list[Obj], config: list[Obj], field: FieldType) -> list[Obj]:
    by_step = {_item_step(field, item): item for item in current}
    merged = []
    for item in config:
        existing = by_step.pop(_item_step(field, item), None)
        if isinstance(item, dict):
            merged.append(_merge(existing if existing is not None else {}, item, field.inner))
        else:
            merged.append(item)
    return merged + list(by_step.values())


# Keys of map lists that objects may leave out because the schema gives them a value (ports of containers and services).
_KEY_DEFAULTS = {"protocol": "TCP"}


def _inner_type(field: FieldType, key: str) -> FieldType:
    if field.is_map:
        return field.inner
    return fields_of(field.name).get(key, FieldType(name="any", atomic=True))


def _item_step(field: FieldType, item: object) -> str:
    if field.list_type == "map" and isinstance(item, dict):
        values = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in sorted(field.keys)}
        present = {key: value for key, value in values.items() if value is not None}
        return "k:" + json.dumps(present, separators=(",", ":"))
    return "v:" + json.dumps(item, separators=(",", ":"))


def _merges(field: FieldType, value: object) -> bool:
    if field.atomic or field.name == "any":
        return False
    if isinstance(value, list):
        return field.list_type in {"map", "set"}
    return isinstance(value, dict)


def _members(value: object, field: FieldType, at: Path = ()) -> Iterator[tuple[Path, object]]:
    """The fields that ``value`` has, with their values: those without fields inside, and list items themselves."""
    if not value or not _merges(field, value):
        if at:
            yield at, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _members(item, _inner_type(field, key), (*at, f"f:{key}"))
    elif isinstance(value, list):
        for item in value:
            here = (*at, _item_step(field, item))
            yield here, item
            if field.list_type != "set":
                yield from _members(item, field.inner, here)


def _paths(tree: Obj, at: Path = ()) -> Iterator[Path]:
    for step, inner in tree.items():
        if step == ".":
            yield at
        elif inner:
            yield from _paths(inner, (*at, step))
        else:
            yield (*at, step)


def _tree(paths: Iterable[Path]) -> Obj:
    tree: Obj = {}
    for path in paths:
        inside = child(tree, *path)
        if path[-1].startswith("k:"):
            inside["."] = {}
    return tree


def _remove(value: object, path: Path, field: FieldType) -> None:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        key = step[2:]
        if rest:
            _remove(value.get(key), rest, _inner_type(field, key))
        else:
            value.pop(key, None)
    elif isinstance(value, list):
        found = [item for item in value if _item_step(field, item) == step]
        if not rest:
            value[:] = [item for item in value if item not in found]
        elif found:
            _remove(found[0], rest, field.inner)
