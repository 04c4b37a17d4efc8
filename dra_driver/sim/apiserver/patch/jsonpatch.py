"""JSON patch (RFC 6902): a list of operations on JSON pointers (RFC 6901), all or nothing."""

from typing import Any

from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json

MAX_OPERATIONS = 10_000  # k8s.io/apiserver pkg/endpoints/handlers/patch.go maxJSONPatchOperations


def apply_json_patch(target: Any, operations: object) -> Any:
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


def _apply(target: Any, operation: Obj) -> Any:
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


def _index(container: list[Any], step: str, *, end: int) -> int:
    if not step.isdigit() or int(step) >= end:
        raise _failed(f"invalid array index {step!r}: the list has {len(container)} items")
    return int(step)


def _step(container: Any, step: str) -> Any:
    if isinstance(container, list):
        return container[_index(container, step, end=len(container))]
    if isinstance(container, dict) and step in container:
        return container[step]
    raise _failed(f"nonexistent path: {step!r} is missing")


def _get(target: Any, path: list[str]) -> Any:
    for step in path:
        target = _step(target, step)
    return target


def _set(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
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


def _remove(target: Any, path: list[str]) -> None:
    if not path:
        raise _failed("the whole object cannot be removed")
    parent, last = _get(target, path[:-1]), path[-1]
    _step(parent, last)
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
