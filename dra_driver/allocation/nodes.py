"""Whether a node matches a v1 NodeSelector, a pod's nodeSelector or its required node affinity.

Follows k8s.io/component-helpers scheduling/corev1/nodeaffinity: terms are alternatives, requirements of a term all have
to hold, a term without any requirement matches nothing, and only ``metadata.name`` exists as a field.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Wire = Mapping[str, Any]


def node_matches(selector: Wire, node: Wire) -> bool:
    """Whether any term of a NodeSelector selects the node."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _term_matches(term: Wire, node: Wire) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    metadata = node.get("metadata", {})
    labels = metadata.get("labels") or {}
    named = {"metadata.name": metadata.get("name", "")}
    return all(_holds(item, labels) for item in expressions) and all(_holds(item, named) for item in fields)


def _holds(requirement: Wire, values: Mapping[str, str]) -> bool:
    operator = _OPERATORS.get(requirement.get("operator", ""))
    if operator is None:
        return False
    return operator(values.get(requirement.get("key", "")), list(requirement.get("values") or ()))


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _compares(value: str | None, bounds: list[str], holds: Callable[[int, int], bool]) -> bool:
    left, right = _number(value), _number(bounds[0] if len(bounds) == 1 else None)
    return left is not None and right is not None and holds(left, right)


_OPERATORS: Final[dict[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _values: value is not None,
    "DoesNotExist": lambda value, _values: value is None,
    "Gt": lambda value, values: _compares(value, values, lambda left, right: left > right),
    "Lt": lambda value, values: _compares(value, values, lambda left, right: left < right),
}
