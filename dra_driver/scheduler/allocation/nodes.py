"""Whether a node matches a v1 NodeSelector, a pod's required node affinity or the node selection of a slice.

Follows k8s.io/component-helpers scheduling/corev1/nodeaffinity: a selector matches if one term does, a term if all its
requirements do, and a term without requirements matches nothing. The only field is ``metadata.name``. A malformed term
matches nothing in a pod's affinity; in a ResourceSlice it ends the scheduling attempt.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.core.errors import AllocationError

Wire = Mapping[str, Any]

_INT64: Final = 2**63
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_NAME: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


def node_matches(selector: Wire, node: Wire) -> bool:
    """Whether any term of a NodeSelector selects the node; malformed terms select nothing."""
    return any(
        not _term_problem(term) and _term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ()
    )


def reaches(placement: Wire, node: Wire) -> bool:
    """Whether devices with this node selection (of a slice's spec, or of a device) can be used on the node.

    Raises AllocationError on a malformed node selector.
    """
    if placement.get("nodeName"):
        return bool(placement["nodeName"] == node["metadata"]["name"])
    if placement.get("allNodes"):
        return True
    selector = placement.get("nodeSelector")
    if selector is None:
        return False
    problem = next(filter(None, map(_term_problem, selector.get("nodeSelectorTerms") or ())), "")
    if problem:
        raise AllocationError(f"failed to parse node selector: {problem}")
    return node_matches(selector, node)


def _term_matches(term: Wire, node: Wire) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    metadata = node.get("metadata", {})
    labels = metadata.get("labels") or {}
    if not all(_OPERATORS[item["operator"]](labels.get(item["key"]), item.get("values") or []) for item in expressions):
        return False
    name = metadata.get("name", "")
    # Fields other than the name are empty, and a node without a name has no fields to compare.
    return not name or all(
        ((name if item["key"] == "metadata.name" else "") in item["values"]) == (item["operator"] == "In")
        for item in fields
    )


def _term_problem(term: Wire) -> str:
    """What is wrong with the term; empty if it is valid."""
    for item in term.get("matchExpressions") or ():
        problem = _label_problem(item.get("key", ""), item.get("operator", ""), item.get("values") or [])
        if problem:
            return problem
    for item in term.get("matchFields") or ():
        if item.get("operator") not in ("In", "NotIn"):
            return f"operator {item.get('operator')!r} is not supported for fields: expected In or NotIn"
        if len(item.get("values") or ()) != 1:
            return f"field {item.get('key')} must be compared with one value"
    return ""


def _label_problem(key: str, operator: str, values: list[str]) -> str:
    prefix, slash, name = key.rpartition("/")
    if not name or not _NAME.match(name) or (slash and not (_PREFIX.match(prefix) and len(prefix) <= 253)):
        return f"{key!r} is not the name of a label"
    if operator not in _OPERATORS:
        return f"operator {operator!r} is not supported: expected one of {', '.join(_OPERATORS)}"
    if operator in ("In", "NotIn") and not values:
        return f"operator {operator} of label {key} needs values"
    if operator in ("Exists", "DoesNotExist") and values:
        return f"operator {operator} of label {key} takes no values"
    if operator in ("Gt", "Lt") and (len(values) != 1 or _number(values[0]) is None):
        return f"operator {operator} of label {key} needs one integer"
    wrong = next((value for value in values if not _NAME.match(value)), None)
    return "" if wrong is None else f"{wrong!r} cannot be the value of label {key}"


def _number(text: str | None) -> int | None:
    """A 64-bit integer; None for anything else."""
    if text is None or len(text) > 64 or not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -_INT64 <= value < _INT64 else None


def _compares(value: str | None, bounds: list[str], holds: Callable[[int, int], bool]) -> bool:
    left, right = _number(value), _number(bounds[0])
    return left is not None and right is not None and holds(left, right)


_OPERATORS: Final[dict[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _values: value is not None,
    "DoesNotExist": lambda value, _values: value is None,
    "Gt": lambda value, values: _compares(value, values, lambda left, right: left > right),
    "Lt": lambda value, values: _compares(value, values, lambda left, right: left < right),
}
