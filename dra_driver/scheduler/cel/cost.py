"""The cost of a call in the units of Kubernetes' limit, and an upper bound of the cost of an expression.

Follows cel-go interpreter/runtimecost.go, ext/lists.go and ext/sets.go and k8s.io/apiserver pkg/cel/library/cost.go.
The table depends on the function and overload; a call in none of the tables costs 1. ``FAILED`` stands for an argument
whose evaluation failed. The bound is for any device of ordinary size. It is coarse, but never too low. None means that
no bound is known; then the expression is metered.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.ir import (
    Chain,
    Choice,
    Constant,
    Equality,
    FoldLoop,
    Invoke,
    IrNode,
    Logic,
    MakeList,
    MakeMap,
    MakeMessage,
    Member,
    OrElse,
)
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    AbortedError,
    CelQuantity,
    NamedFormat,
    Optional,
    Url,
    size_of,
    spend,
)

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


ORDINARY: Final = 256
"""Longest text and largest map of a device of ordinary size; the API allows 64 characters and 32 entries."""

_UNBOUNDED: Final = frozenset(
    [
        "replace",
        "join",
        "format",
        "flatten",
        "slice",
        "lists.range",
        "reverse",
        "distinct",
        "sort",
        "@sortByAssociatedKeys",
        "cel.@mapInsert",
        "isSorted",
        "sum",
        "min",
        "max",
        "indexOf",
        "lastIndexOf",
        "sets.contains",
        "sets.equivalent",
        "sets.intersects",
        "strings.quote",
        "getQuery",
        "validate",
        "check",
    ]
)
_KEEPS_SIZE: Final = frozenset(
    [
        "lowerAscii",
        "upperAscii",
        "substring",
        "trim",
        "charAt",
        "find",
        "bytes",
        "optional.of",
        "optional.ofNonZeroValue",
        "value",
        "dyn",
    ]
)
_SPLITS: Final = frozenset({"split", "findAll"})
_SMALL: Final = 64


class CostBound(NamedTuple):
    """The highest cost of a node, and the largest size of its result and the result's elements, None if unknown."""

    cost: int
    size: int | None


def cost_bound(node: IrNode) -> int | None:
    found = _bound(node, {0: ORDINARY})
    return None if found is None else found.cost


def _all(plans: tuple[IrNode, ...], sizes: dict[int, int | None]) -> list[CostBound] | None:
    found = [_bound(node, sizes) for node in plans]
    return None if None in found else [b for b in found if b is not None]


def _bound(node: IrNode, sizes: dict[int, int | None]) -> CostBound | None:
    if isinstance(node, Constant):
        return CostBound(0, _constant_size(node.value))
    if isinstance(node, Chain):
        return _chain(node, sizes)
    if isinstance(node, Choice):
        parts = _all((node.condition, node.yes, node.no), sizes)
        return None if parts is None else CostBound(sum(p.cost for p in parts), _larger(parts[1:]))
    if isinstance(node, Logic):
        parts = _all(node.terms, sizes)
        return None if parts is None else CostBound(sum(p.cost for p in parts), 1)
    if isinstance(node, Equality):
        return _equality(node, sizes)
    if isinstance(node, Invoke):
        return _invoke(node, sizes)
    if isinstance(node, FoldLoop):
        return _loop(node, sizes)
    return _others(node, sizes)


def _others(node: IrNode, sizes: dict[int, int | None]) -> CostBound | None:
    if isinstance(node, Member):
        item = _bound(node.item, sizes)
        return None if item is None else CostBound(item.cost, 1)
    if isinstance(node, OrElse):
        parts = _all((node.first, node.second), sizes)
        return None if parts is None else CostBound(parts[0].cost + parts[1].cost, _larger(parts))
    if isinstance(node, MakeList):
        parts = _all(node.elements, sizes)
        extra, count = LIST, len(node.elements)
    elif isinstance(node, MakeMap):
        parts = _all(tuple(p for key, value, _ in node.entries for p in (key, value)), sizes)
        extra, count = MAP, len(node.entries)
    elif isinstance(node, MakeMessage):
        parts = _all(tuple(value for _, value, _ in node.entries), sizes)
        extra, count = MESSAGE, 1
    else:
        return None
    if parts is None:
        return None
    largest = _larger([*parts, CostBound(0, count)])
    return CostBound(extra + sum(p.cost for p in parts), largest)


def _constant_size(value: object) -> int:
    size = size_of(value) or 1
    if type(value) in LISTS:
        return max([size, *(_constant_size(item) for item in value)])  # type: ignore[attr-defined]
    if type(value) in MAPS:
        pairs = value.items()  # type: ignore[attr-defined]
        return max([size, *(_constant_size(part) for pair in pairs for part in pair)])
    return size


def _larger(parts: list[CostBound]) -> int | None:
    return None if any(p.size is None for p in parts) else max((p.size or 1 for p in parts), default=1)


def _chain(node: Chain, sizes: dict[int, int | None]) -> CostBound | None:
    base = CostBound(0, sizes.get(node.slot)) if node.base is None else _bound(node.base, sizes)
    keys = _all(tuple(q.key for q in node.qualifiers if not q.constant), sizes)
    if base is None or keys is None:
        return None
    return CostBound(base.cost + sum(k.cost for k in keys) + len(node.qualifiers) + 1, base.size)


def _equality(node: Equality, sizes: dict[int, int | None]) -> CostBound | None:
    parts = _all((node.left, node.right), sizes)
    if parts is None:
        return None
    known = [p.size for p in parts if p.size is not None]
    if not known:
        return None
    return CostBound(parts[0].cost + parts[1].cost + min(known) // 10 + 1, 1)


def _invoke(node: Invoke, sizes: dict[int, int | None]) -> CostBound | None:
    parts = _all(node.arguments, sizes)
    if parts is None or node.function in _UNBOUNDED or any(p.size is None for p in parts):
        return None
    size = max((p.size or 1 for p in parts), default=1)
    if size > 10 * ORDINARY:
        return None
    # The costs of all other functions grow with the sizes of their arguments. A text stands for any value of its size.
    largest = "x" * size
    cost = cost_of_call(node.function, node.overload)([largest] * max(2, len(parts)), largest)
    return CostBound(sum(p.cost for p in parts) + max(cost, 1), _result_size(node, parts))


def _result_size(node: Invoke, parts: list[CostBound]) -> int | None:
    if node.function in _KEEPS_SIZE:
        return max(_SMALL, parts[0].size or 1)
    if node.function in _SPLITS:
        return (parts[0].size or 1) + 2
    if node.function == "_+_":
        return sum(p.size or 1 for p in parts) + _SMALL
    if node.function in {"first", "last", "optional.unwrap", "unwrapOpt", "string", "optional.none", "includes"}:
        return max([_SMALL, *(p.size or 1 for p in parts)]) * 4
    if node.function in {"getHost", "getHostname", "getPort", "getScheme", "getEscapedPath", "url"}:
        return None
    return _SMALL


def _loop(node: FoldLoop, sizes: dict[int, int | None]) -> CostBound | None:
    over, initial = _bound(node.over, sizes), _bound(node.initial, sizes)
    if over is None or initial is None or over.size is None:
        return None
    inner = {**sizes, **dict.fromkeys(node.variables, over.size)}
    if not node.variables:
        inner[node.accumulator] = initial.size
        result = _bound(node.result, inner)
        return None if result is None else CostBound(initial.cost + result.cost + 2, result.size)
    # An accumulator may become a list with one element per step, each of the size of a step's result.
    inner[node.accumulator] = ORDINARY
    parts = _all((node.condition, node.step, node.result), inner)
    if parts is None:
        return None
    rounds = over.size
    grown = None if parts[1].size is None else max(rounds, parts[1].size, initial.size or 1)
    cost = over.cost + initial.cost + rounds * (parts[0].cost + parts[1].cost) + parts[0].cost + parts[2].cost
    return CostBound(cost + 2, grown)
