"""Translates Python's errors on malformed objects into one AllocationError that names the field.

Checking every field of a large cluster in advance would take longer than allocating. So a malformed field is noticed
where it is used, and only then searched for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from dra_driver.core.errors import AllocationError
from dra_driver.core.text import quoted

T = TypeVar("T")
MALFORMED: Final = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError)
"""What Python raises on values of other types than the API has."""

_TEXT, _COUNT, _FLAG, _NUMBER = "a text", "a whole number", "true or false", "a text or a number"
_NAMED: Final = {"name!": _TEXT}
_POLICY: Final = {
    "default": _NUMBER,
    "validRange": {"min": _NUMBER, "max": _NUMBER, "step": _NUMBER},
    "validValues": [_NUMBER],
}
_REQUIREMENT: Final = {"key!": _TEXT, "operator!": _TEXT, "values": [_TEXT]}
_PLACED: Final = {
    "nodeName": _TEXT,
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}],
    },
}
_AMOUNTS: Final = {"*": {"value!": _NUMBER}}
_DEVICE: Final = {
    **_NAMED,
    **_PLACED,
    "attributes": {
        "*": {
            **{"string": _TEXT, "int": _COUNT, "bool": _FLAG, "version": _TEXT},
            **{"strings": [_TEXT], "ints": [_COUNT], "bools": [_FLAG], "versions": [_TEXT]},
        }
    },
    "capacity": {"*": {"value!": _NUMBER, "requestPolicy": _POLICY}},
    "consumesCounters": [{"counterSet!": _TEXT, "counters": _AMOUNTS}],
    "taints": [{"key": _TEXT, "value": _TEXT, "effect": _TEXT}],
    "allowMultipleAllocations": _FLAG,
    "bindingConditions": [_TEXT],
    "bindingFailureConditions": [_TEXT],
}
_SELECTORS: Final = [{"cel": {"expression": _TEXT}}]
_CONFIG: Final = [{"requests": [_TEXT], "opaque": {"driver": _TEXT}}]
_REQUEST_SPEC: Final = {
    "deviceClassName": _TEXT,
    "allocationMode": _TEXT,
    "count": _COUNT,
    "adminAccess": _FLAG,
    "selectors": _SELECTORS,
    "tolerations": [{"key": _TEXT, "operator": _TEXT, "value": _TEXT, "effect": _TEXT}],
    "capacity": {"requests": {"*": _NUMBER}},
}
_CLAIM_SPEC: Final = {
    "devices": {
        "requests": [{"name!": _TEXT, "exactly": _REQUEST_SPEC, "firstAvailable": [{**_NAMED, **_REQUEST_SPEC}]}],
        "constraints": [{"requests": [_TEXT], "matchAttribute": _TEXT, "distinctAttribute": _TEXT}],
        "config": _CONFIG,
    }
}
_SLICE_SPEC: Final = {
    "driver!": _TEXT,
    "pool!": {"name!": _TEXT, "generation": _COUNT, "resourceSliceCount": _COUNT},
    **_PLACED,
    "devices": [_DEVICE],
    "sharedCounters": [{"name!": _TEXT, "counters": _AMOUNTS}],
}
_RESULT: Final = {"driver!": _TEXT, "pool!": _TEXT, "device!": _TEXT, "consumedCapacity": {"*": _NUMBER}}
_SHAPES: Final[dict[str, Any]] = {
    "node": {"metadata!": {"name!": _TEXT, "labels": {"*": _TEXT}}},
    "claims": [{"metadata!": _NAMED, "spec!": _CLAIM_SPEC}],
    "slices": [{"metadata!": _NAMED, "spec!": _SLICE_SPEC}],
    "classes": [{"metadata!": _NAMED, "spec!": {"selectors": _SELECTORS, "config": _CONFIG}}],
    "allocated": [{"metadata": {}, "status": {"allocation": {"devices": {"results": [_RESULT]}}}}],
}


def guarded(work: Callable[[], T], wires: Mapping[str, Any]) -> T:
    """The result of ``work``. An error of ``MALFORMED`` becomes an AllocationError that names the malformed field.

    ``wires`` are the objects that ``work`` reads, under the names of ``_SHAPES``.
    """
    try:
        return work()
    except MALFORMED as error:
        found = next(filter(None, (_problem(wire, _SHAPES[name], name) for name, wire in wires.items())), "")
        why = found or f"an object is not as an API server returns it: {type(error).__name__}: {str(error)[:200]}"
        raise AllocationError(why) from error


def _problem(value: Any, shape: Any, path: str) -> str:
    """What is wrong with the value, empty when nothing is."""
    if isinstance(shape, str):
        return "" if _is(value, shape) else f"{path} is {_shown(value)}, expected {shape}"
    if isinstance(shape, list):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return f"{path} is {_shown(value)}, expected a list"
        problems = (_problem(item, shape[0], f"{path}[{index}]") for index, item in enumerate(value))
        return next(filter(None, problems), "")
    if not isinstance(value, Mapping):
        return f"{path} is {_shown(value)}, expected an object"
    for key, inner in shape.items():
        name = key.removesuffix("!")
        if key == "*":
            problems = (_problem(item, inner, f"{path}.{of}") for of, item in value.items())
            problem = next(filter(None, problems), "")
        elif value.get(name) is None:
            problem = f"{path}.{name} is missing" if key.endswith("!") else ""
        else:
            problem = _problem(value[name], inner, f"{path}.{name}")
        if problem:
            return problem
    return ""


def _is(value: Any, kind: str) -> bool:
    if kind == _NUMBER:
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if kind == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == _FLAG else str)


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
