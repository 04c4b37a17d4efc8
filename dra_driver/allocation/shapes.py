"""Objects that no API server returns: one clear error instead of Python's own.

Owns the translation. Checking every field of a large cluster beforehand would cost more than allocating, so what is
malformed is noticed where it is used, and only then looked for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from dra_driver.errors import AllocationError

T = TypeVar("T")
_MALFORMED: Final = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError)

_TEXT, _COUNT, _FLAG = "a text", "a whole number", "true or false"
_NAMED: Final = {"name!": _TEXT}
_DEVICE: Final = {
    **_NAMED,
    "attributes": {"*": {}},
    "capacity": {"*": {"value!": _TEXT, "requestPolicy": {"validRange": {"min": _TEXT, "max": _TEXT, "step": _TEXT}}}},
    "consumesCounters": [{"counterSet!": _TEXT, "counters": {"*": {"value!": _TEXT}}}],
    "taints": [{}],
    "allowMultipleAllocations": _FLAG,
}
_WAY: Final = {
    "deviceClassName": _TEXT,
    "allocationMode": _TEXT,
    "count": _COUNT,
    "selectors": [{"cel": {"expression": _TEXT}}],
    "tolerations": [{}],
    "capacity": {"requests": {"*": _TEXT}},
}
_SHAPES: Final[dict[str, Any]] = {
    "node": {"metadata!": {"name!": _TEXT, "labels": {"*": _TEXT}}},
    "claims": [
        {
            "metadata!": _NAMED,
            "spec!": {
                "devices": {
                    "requests": [{"name!": _TEXT, "exactly": _WAY, "firstAvailable": [{**_NAMED, **_WAY}]}],
                    "constraints": [{"requests": [_TEXT], "matchAttribute": _TEXT, "distinctAttribute": _TEXT}],
                    "config": [{"requests": [_TEXT], "opaque": {}}],
                }
            },
        }
    ],
    "slices": [
        {
            "metadata!": _NAMED,
            "spec!": {
                "driver!": _TEXT,
                "pool!": {"name!": _TEXT, "generation": _COUNT, "resourceSliceCount": _COUNT},
                "nodeName": _TEXT,
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{}], "matchFields": [{}]}]},
                "devices": [_DEVICE],
                "sharedCounters": [{"name!": _TEXT, "counters": {"*": {"value!": _TEXT}}}],
            },
        }
    ],
    "classes": [{"metadata!": _NAMED, "spec!": {"selectors": [{"cel": {"expression": _TEXT}}], "config": [{}]}}],
    "allocated": [
        {
            "metadata": {},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {"driver!": _TEXT, "pool!": _TEXT, "device!": _TEXT, "consumedCapacity": {"*": _TEXT}}
                        ]
                    }
                }
            },
        }
    ],
}


def guarded(work: Callable[[], T], wires: Mapping[str, Any]) -> T:
    """The result of ``work``. What only malformed objects can cause becomes an AllocationError that names the field.

    ``wires`` are the objects at hand under the names of ``_SHAPES``.
    """
    try:
        return work()
    except _MALFORMED as error:
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
    if kind == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == _FLAG else str)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else text[:60] + "…"
