"""The cost of a call, in the units of Kubernetes' limit.

Follows cel-go interpreter/runtimecost.go, ext/lists.go and ext/sets.go and k8s.io/apiserver pkg/cel/library/cost.go.
The table depends on the function and overload; a call in none of the tables costs 1. ``FAILED`` stands for an argument
whose evaluation failed.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.values import LISTS, MAPS, CelQuantity, NamedFormat, Optional, Url, size_of
from dra_driver.scheduler.cel.work_limits import AbortedError, spend

COST_LIMIT: Final = 1_000_000
"""CELSelectorExpressionMaxCost of k8s.io/api resource/v1."""
SELECT: Final = 1
LIST: Final = 10
MAP: Final = 30
MESSAGE: Final = 40
_STRING_FACTOR: Final = 0.1
_REGEX_FACTOR: Final = 0.25
FAILED: Final = object()

Cost = Callable[[list[Any], Any], int]
"""Computes the cost from the arguments and the result."""


def _size(value: Any) -> int:
    size = size_of(value)
    return 1 if size is None else size


def _size_through_optional(value: Any) -> int:
    while type(value) is Optional and value.present:
        value = value.value
    return _size(value)


def _traversal(size: int, factor: float = 1.0) -> int:
    return math.ceil(float(size) * factor * _STRING_FACTOR)


def _tree(value: Any) -> int:
    """The cost of traversing a value and everything in it."""
    kind = type(value)
    if kind is str:
        return int(len(value.encode("utf-8", "surrogatepass")) * _STRING_FACTOR)
    if kind is bytes:
        return int(len(value) * _STRING_FACTOR)
    if kind is range:
        return len(value)
    if kind in LISTS:
        spend(len(value))
        return sum(map(_tree, value))
    if kind in MAPS:
        spend(len(value))
        return sum(_tree(key) + _tree(item) for key, item in value.items())
    return 1


def _one(_arguments: list[Any], _result: Any) -> int:
    return 1


def _first(factor: float) -> Cost:
    return lambda arguments, _result: math.ceil(float(_size(arguments[0])) * factor * _STRING_FACTOR)


def _walk(arguments: list[Any], _result: Any) -> int:
    return _tree(arguments[0])


def _join(_arguments: list[Any], result: Any) -> int:
    return _traversal(_size(result), 2.0)


def _regex(text_size: int, pattern_size: int) -> int:
    return math.ceil((1.0 + text_size) * _STRING_FACTOR) * math.ceil(pattern_size * _REGEX_FACTOR)


def _search(arguments: list[Any], _result: Any) -> int:
    return _regex(_size(arguments[0]), _size(arguments[1]))


def _contains_ip(arguments: list[Any], by_text: bool) -> int:
    network = _size(arguments[0])
    return _traversal(2 * network) + (_traversal(_size(arguments[1])) if by_text else 0)


def _contains_cidr(arguments: list[Any], by_text: bool) -> int:
    return _contains_ip(arguments, by_text) + _traversal(_size(arguments[0])) + 1


def _validate(arguments: list[Any], _result: Any) -> int:
    if type(arguments[0]) is not NamedFormat:
        return 1
    return _regex(_size(arguments[1]), arguments[0].regex_size)


_BY_FUNCTION: Final[dict[str, Cost]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk),
    **dict.fromkeys(
        [
            "url",
            "lowerAscii",
            "upperAscii",
            "substring",
            "trim",
            "cidr",
            "isIP",
            "isCIDR",
            "ip",
            "quantity",
            "isQuantity",
            "semver",
            "isSemver",
        ],
        _first(1.0),
    ),
    **dict.fromkeys(("replace", "split"), _first(2.0)),
    "ip.isCanonical": _first(2.0),
    "join": _join,
    "find": _search,
    "findAll": _search,
    "validate": _validate,
    "check": lambda _arguments, _result: 350_000,
}


def _minimum(arguments: list[Any], _result: Any) -> int:
    return _traversal(min(_size_through_optional(arguments[0]), _size_through_optional(arguments[1])))


def _sum(arguments: list[Any], _result: Any) -> int:
    return _traversal(_size_through_optional(arguments[0]) + _size_through_optional(arguments[1]))


def _matches(arguments: list[Any], _result: Any) -> int:
    return _regex(_size_through_optional(arguments[0]), _size_through_optional(arguments[1]))


def _substring(arguments: list[Any], _result: Any) -> int:
    return _traversal(_size_through_optional(arguments[0])) * _traversal(_size_through_optional(arguments[1]))


def _text(arguments: list[Any], _result: Any) -> int:
    return _traversal(_size_through_optional(arguments[0]))


def _in_list(arguments: list[Any], _result: Any) -> int:
    return _size_through_optional(arguments[1])


def _output(_arguments: list[Any], result: Any) -> int:
    return _size(result) + 1 + LIST


def _flatten(arguments: list[Any], _result: Any) -> int:
    depth = 1.0
    if len(arguments) == 2:
        if type(arguments[1]) is not int:
            raise AbortedError("flatten() takes an int")
        depth = float(arguments[1])
    # Go's conversion turns a negative depth into a huge number.
    cost = float(_size(arguments[0])) * depth
    return (2**63 if cost < 0 else int(cost)) + 1 + LIST


def _self_compare(position: int) -> Cost:
    def cost(arguments: list[Any], _result: Any) -> int:
        items = arguments[position]
        if type(items) not in LISTS:
            raise AbortedError("sorting takes a list")
        size = len(items)
        factor = 2.1 if size and type(items[0]) in {str, bytes} else 2.0
        return int(float(size * size) * factor) + 1 + LIST

    return cost


def _sets(factor: float) -> Cost:
    return lambda arguments, _result: 1 + int(float(_size(arguments[0]) * _size(arguments[1])) * factor)


_ORDERED: Final = ("less", "less_equals", "greater", "greater_equals")
_SORTED: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_BY_OVERLOAD: Final[dict[str, Cost]] = {
    **dict.fromkeys(
        [
            "starts_with_string",
            "ends_with_string",
            "string_to_bytes",
            "bytes_to_string",
            "strings_quote",
            "string_format",
        ],
        _text,
    ),
    "in_list": _in_list,
    **dict.fromkeys((f"{order}_{kind}" for order in _ORDERED for kind in ("string", "bytes")), _minimum),
    "equals": _minimum,
    "not_equals": _minimum,
    "add_string": _sum,
    "add_bytes": _sum,
    "matches_string": _matches,
    "contains_string": _substring,
}
# These take precedence over the tables by function.
_TRACKED: Final[dict[str, Cost]] = {
    "list_slice": _output,
    "lists_range": _output,
    "list_reverse": _output,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": _self_compare(0),
    **dict.fromkeys((f"list_{kind}_sort" for kind in _SORTED), _self_compare(0)),
    **dict.fromkeys((f"list_{kind}_sortByAssociatedKeys" for kind in _SORTED), _self_compare(1)),
    "list_sets_contains_list": _sets(1.0),
    "list_sets_intersects_list": _sets(1.0),
    "list_sets_equivalent_list": _sets(2.0),
    "cidr_ip": _one,
    "cidr_contains_ip_string": lambda arguments, _result: _contains_ip(arguments, by_text=True),
    "cidr_contains_ip_ip": lambda arguments, _result: _contains_ip(arguments, by_text=False),
    "cidr_contains_cidr_string": lambda arguments, _result: _contains_cidr(arguments, by_text=True),
    "cidr_contains_cidr": lambda arguments, _result: _contains_cidr(arguments, by_text=False),
}
_OPEN: Final[dict[str, Cost]] = {
    "containsIP": lambda arguments, _result: _contains_ip(arguments, by_text=False),
    "containsCIDR": lambda arguments, _result: _contains_cidr(arguments, by_text=False),
}
NEEDS_RESULT: Final = frozenset({_join, _output})
"""Costs that need the result. All others are charged before the call, so that a call beyond the limit is not made."""
_UNIT_EQUALITY: Final = frozenset({CelQuantity, Semver, NamedFormat, Url})


def cost_of_call(function: str, overload: str) -> Cost:
    """The cost function of a call; ``overload`` is empty if the checker left several overloads."""
    for table, key in ((_TRACKED, overload), (_BY_FUNCTION, function), (_OPEN, function), (_BY_OVERLOAD, overload)):
        if key in table:
            return table[key]
    return _one


def cost_of_equality(left: Any, right: Any, negated: bool) -> int:
    """The cost of ``==`` and ``!=``. With ``==`` values of Kubernetes' types cost 1, whatever their size."""
    kind = type(left)
    if kind is str and type(right) is str:
        return math.ceil(float(min(len(left), len(right))) * _STRING_FACTOR)
    if not negated and (kind in _UNIT_EQUALITY or kind.__module__ == "ipaddress"):
        return 1
    return _minimum([left, right], None)
