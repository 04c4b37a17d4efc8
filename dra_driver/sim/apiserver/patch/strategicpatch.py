"""Strategic merge patch: a merge patch in which lists merge by the keys in the schema.

Directives ``$patch``, ``$retainKeys``, ``$setElementOrder/x`` and ``$deleteFromPrimitiveList/x`` follow
k8s.io/apimachinery pkg/util/strategicpatch/patch.go.
"""

from typing import Any

from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json
from dra_driver.sim.apiserver.schema import FieldType, fields_of

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_UNTYPED = FieldType(name="any")


def strategic_merge(target: Any, patch: Obj, field: FieldType) -> Obj:
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


def _merged(target: Any, value: Any, field: FieldType) -> Any:
    if isinstance(value, dict):
        return strategic_merge(target, value, field)
    if isinstance(value, list) and "merge" in field.patch:
        current = target if isinstance(target, list) else []
        return _merge_list(current, value, field) if field.patch_key else _union(current, value)
    return copy_json(value)


def _union(current: list[Any], added: list[Any]) -> list[Any]:
    return current + [item for item in added if item not in current]


def _merge_list(current: list[Any], patch: list[Any], field: FieldType) -> list[Any]:
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


def _delete_primitives(result: Obj, name: str, values: list[Any]) -> None:
    if isinstance(result.get(name), list):
        result[name] = [item for item in result[name] if item not in values]


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    """Items in the given order; items that it lacks stay behind the item that they followed."""

    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    wanted = [identity(entry) for entry in order]
    named = sorted((item for item in items if identity(item) in wanted), key=lambda item: wanted.index(identity(item)))
    result = list(named)
    for at, item in enumerate(items):
        if identity(item) not in wanted:
            before = items[at - 1] if at else None
            result.insert(result.index(before) + 1 if before is not None else 0, item)
    return result
