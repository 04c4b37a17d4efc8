"""JSON merge patch (RFC 7386): null deletes, objects merge, everything else replaces."""

from typing import Any

from dra_driver.sim.apiserver.jsonvalue import copy_json


def merge(target: Any, patch: Any) -> Any:
    """``target`` with ``patch`` merged into it; changes ``target`` in place where it is an object."""
    if not isinstance(patch, dict):
        return copy_json(patch)
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result
