"""Apply a patch in one of the four formats of the Kubernetes API: JSON patch (RFC 6902 with pointers of RFC 6901, all
or nothing), merge patch (RFC 7386), strategic merge patch (k8s.io/apimachinery pkg/util/strategicpatch/patch.go), and
server-side apply (`serverapply`)."""

from msgspec import Struct

from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.schema import FieldType, decode, fields_of, type_of
from dra_driver.sim.apiserver.serverapply import apply

MAX_OPERATIONS = 10_000  # k8s.io/apiserver pkg/endpoints/handlers/patch.go maxJSONPatchOperations


def apply_json_patch(target: object, operations: object) -> object:
    """``target`` after all operations; changes it in place. Raises 400 or 422 if one fails."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch must be a list of operations")
    if len(operations) > MAX_OPERATIONS:
        limit = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise status_error(413, "RequestEntityTooLarge", limit)
    for operation in operations:
        if not isinstance(operation, dict) or "op" not in operation or "path" not in operation:
            raise bad_request("every operation of a JSON patch needs op and path")
        target = _apply(target, operation)
    return target


def _failed(message: str) -> Exception:
    return status_error(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")


def _apply(target: object, operation: Obj) -> object:
    op, path = operation["op"], _pointer(operation["path"])
    if op == "add":
        return _set(target, path, copy_json(operation.get("value")), insert=True)
    if op == "replace":
        _get(target, path)
        return _set(target, path, copy_json(operation.get("value")), insert=False)
    if op == "remove":
        _remove(target, path)
        return target
    if op == "test":
        if _get(target, path) != operation.get("value"):
            raise _failed(f"testing value {operation['path']} failed: test failed")
        return target
    if op in {"move", "copy"}:
        source = _pointer(operation.get("from", ""))
        value = copy_json(_get(target, source))
        if op == "move":
            _remove(target, source)
        return _set(target, path, value, insert=True)
    raise bad_request(f"Unexpected kind: {op}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise bad_request(f"JSON pointer {text!r} must start with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(container: list[object], step: str, *, end: int) -> int:
    if not step.isdigit() or int(step) >= end:
        raise _failed(f"invalid array index {step!r}: the list has {len(container)} items")
    return int(step)


def _step(container: object, step: str) -> object:
    if isinstance(container, list):
        return container[_index(container, step, end=len(container))]
    if isinstance(container, dict) and step in container:
        return container[step]
    raise _failed(f"nonexistent path: {step!r} is missing")


def _get(target: object, path: list[str]) -> object:
    for step in path:
        target = _step(target, step)
    return target


def _set(target: object, path: list[str], value: object, *, insert: bool) -> object:
    if not path:
        return value
    parent, last = _get(target, path[:-1]), path[-1]
    if isinstance(parent, list) and insert:
        parent.insert(len(parent) if last == "-" else _index(parent, last, end=len(parent) + 1), value)
    elif isinstance(parent, list):
        parent[_index(parent, last, end=len(parent))] = value
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _failed(f"nonexistent path: {last!r} has no object around it")
    return target


def _remove(target: object, path: list[str]) -> None:
    if not path:
        raise _failed("the whole object cannot be removed")
    parent, last = _get(target, path[:-1]), path[-1]
    _step(parent, last)
    if isinstance(parent, list):
        del parent[int(last)]
    elif isinstance(parent, dict):
        del parent[last]


def merge(target: object, patch: Obj) -> Obj:
    """``target`` with ``patch`` merged into it; changes ``target`` in place where it is an object."""
    result: Obj = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value) if isinstance(value, dict) else copy_json(value)
    return result


_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_UNTYPED = FieldType(name="any")


def strategic_merge(target: object, patch: Obj, field: FieldType) -> Obj:
    """``target`` with ``patch`` merged into it; ``field`` is the type of both. Changes ``target`` in place."""
    result: Obj = target if isinstance(target, dict) else {}
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: copy_json(value) for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if _RETAIN in patch:
        for key in [key for key in result if key not in patch[_RETAIN]]:
            del result[key]
    fields = fields_of(field.name) if not field.wraps else {}
    for key, value in patch.items():
        if key in {_DIRECTIVE, _RETAIN} or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_PRIMITIVES):
            _delete_primitives(result, key.removeprefix(_DELETE_PRIMITIVES), value)
        elif value is None:
            result.pop(key, None)
        else:
            inner = field.inner if field.is_map else fields.get(key, _UNTYPED)
            result[key] = _merged(result.get(key), value, inner)
    for key, order in patch.items():
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            if isinstance(result.get(name), list):
                result[name] = _ordered(result[name], order, fields.get(name, _UNTYPED).patch_key)
    return result


def _merged(target: object, value: object, field: FieldType) -> object:
    if isinstance(value, dict):
        return strategic_merge(target, value, field)
    if isinstance(value, list) and "merge" in field.patch:
        current = target if isinstance(target, list) else []
        if field.patch_key:
            return _merge_list(current, value, field)
        return current + [item for item in value if item not in current]
    return copy_json(value)


def _merge_list(current: list[Obj], patch: list[Obj], field: FieldType) -> list[Obj]:
    key = field.patch_key
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [copy_json(item) for item in patch if _DIRECTIVE not in item]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item!r} does not contain declared merge key: {key}")
        at = next((at for at, other in enumerate(current) if other.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            current = [other for other in current if other.get(key) != item[key]]
        elif at is None:
            current.append(strategic_merge({}, item, field.inner))
        else:
            current[at] = strategic_merge(current[at], item, field.inner)
    return current


def _delete_primitives(result: Obj, name: str, values: list[object]) -> None:
    if isinstance(result.get(name), list):
        result[name] = [item for item in result[name] if item not in values]


def _ordered(items: list[object], order: list[object], key: str) -> list[object]:

    def identity(item: object) -> object:
        return item.get(key) if isinstance(item, dict) else item

    wanted = [identity(entry) for entry in order]
    named = (item for item in items if identity(item) in wanted)
    result = sorted(named, key=lambda item: wanted.index(identity(item)))
    for at, item in enumerate(items):
        if identity(item) not in wanted:
            before = items[at - 1] if at else None
            result.insert(result.index(before) + 1 if before is not None else 0, item)
    return result


JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


class Patch(Struct, frozen=True, kw_only=True):
    """A change: ``body`` is a list of operations for JSON patches, else an object; ``type`` one of `PATCH_TYPES`.
    ``manager`` (owner of the fields) and ``force`` (take over others' fields) are for apply patches."""

    body: object
    type: str = MERGE_PATCH
    manager: str = ""
    force: bool = False

    @property
    def is_apply(self) -> bool:
        return self.type == APPLY_PATCH


def apply_patch(kind: ResourceKind, old: Obj | None, patch: Patch, *, now: str, subresource: str = "") -> Obj:
    """A new object: ``old`` with ``patch`` applied. Raises InvalidObjectError (400, 422) or ConflictError (apply)."""
    if patch.type == JSON_PATCH:
        changed = apply_json_patch(copy_json(old), patch.body)
    elif not isinstance(patch.body, dict):
        raise bad_request(f"a patch of type {patch.type} must be an object, got {type(patch.body).__name__}")
    elif patch.is_apply:
        config = copy_json(patch.body)
        decode(kind, config)
        changed = apply(kind, old, config, patch.manager, now, force=patch.force, subresource=subresource)
    elif patch.type == STRATEGIC_PATCH:
        changed = strategic_merge(copy_json(old), patch.body, type_of(kind))
    else:
        changed = merge(copy_json(old), patch.body)
    if not isinstance(changed, dict):
        raise bad_request(f"the patch would turn the {kind.kind} into a {type(changed).__name__}")
    return changed
