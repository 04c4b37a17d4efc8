"""The cost of a call in the units of Kubernetes' limit, and an upper bound of the cost of an expression.

Follows cel-go interpreter/runtimecost.go, ext/lists.go and ext/sets.go and k8s.io/apiserver pkg/cel/library/cost.go; a
call in none of the tables costs 1. ``FAILED`` is an argument whose evaluation failed. The bound, for any device of
ordinary size, is never too low; without one (None) the expression is metered.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel import ir, values

COST_LIMIT: Final = 1_000_000  # CELSelectorExpressionMaxCost of k8s.io/api resource/v1
SELECT: Final = 1
LIST: Final = 10
MAP: Final = 30
MESSAGE: Final = 40
_STRING_FACTOR: Final = 0.1
_REGEX_FACTOR: Final = 0.25
FAILED: Final = object()

Cost = Callable[[Sequence[object], object], int]  # computes the cost from the arguments and the result


def _size(value: object) -> int:
    size = values.size_of(value)
    return 1 if size is None else size


def _inner_size(value: object) -> int:
    while isinstance(value, values.Optional) and value.present:
        value = value.value
    return _size(value)


def _traversal(size: float, factor: float = 1.0) -> int:
    return math.ceil(float(size) * factor * _STRING_FACTOR)


def _tree(value: object) -> int:
    if isinstance(value, str):
        return int(len(value.encode("utf-8", "surrogatepass")) * _STRING_FACTOR)
    if isinstance(value, bytes):
        return int(len(value) * _STRING_FACTOR)
    if isinstance(value, range):
        return len(value)
    if isinstance(value, values.LISTS):
        values.spend(len(value))
        return sum(map(_tree, value))
    if isinstance(value, values.CelMap):
        values.spend(len(value))
        return sum(_tree(key) + _tree(item) for key, item in value.items())
    return 1


def _regex(text_size: int, pattern_size: int) -> int:
    return _traversal(1.0 + text_size) * math.ceil(pattern_size * _REGEX_FACTOR)


def _validate(arguments: Sequence[object], _result: object) -> int:
    named_format, text = arguments
    return _regex(_size(text), named_format.regex_size) if isinstance(named_format, values.NamedFormat) else 1


def _contains_ip(arguments: Sequence[object], by_text: bool) -> int:
    network, other = map(_size, arguments)
    return _traversal(2 * network) + (_traversal(other) if by_text else 0)


def _contains_cidr(arguments: Sequence[object], by_text: bool) -> int:
    return _contains_ip(arguments, by_text) + _traversal(_size(arguments[0])) + 1


def _join(_arguments: Sequence[object], result: object) -> int:
    return _traversal(_size(result), 2.0)


def _output(_arguments: Sequence[object], result: object) -> int:
    return _size(result) + 1 + LIST


def _flatten(arguments: Sequence[object], _result: object) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    if type(depth) is not int:
        raise values.AbortedError("flatten() takes an int")
    # Go's conversion turns a negative depth into a huge number.
    cost = float(_size(arguments[0])) * float(depth)
    return (2**63 if cost < 0 else int(cost)) + 1 + LIST


def _self_compare(items: object) -> int:
    if not isinstance(items, values.LISTS):
        raise values.AbortedError("sorting takes a list")
    size = len(items)
    factor = 2.1 if size and type(items[0]) in {str, bytes} else 2.0
    return int(float(size * size) * factor) + 1 + LIST


def _sets(factor: float) -> Cost:
    return lambda of, _result: 1 + int(float(_size(of[0]) * _size(of[1])) * factor)


def _minimum(arguments: Sequence[object], _result: object) -> int:
    return _traversal(min(_inner_size(arguments[0]), _inner_size(arguments[1])))


_READS_ONCE: Final = (
    *("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity"),
    *("semver", "isSemver"),
)
_READS_TEXT_ONCE: Final = (
    *("starts_with_string", "ends_with_string", "string_to_bytes", "bytes_to_string", "strings_quote", "string_format"),
)
_WALKS: Final = ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf")
_ORDERS: Final = ("less", "less_equals", "greater", "greater_equals")
_SORTED: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")

# By overload; these take precedence over the table by function.
_TRACKED: Final[dict[str, Cost]] = {
    **dict.fromkeys(("list_slice", "lists_range", "list_reverse"), _output),
    **dict.fromkeys(("list_flatten", "list_flatten_int"), _flatten),
    **dict.fromkeys(("list_distinct", *(f"list_{kind}_sort" for kind in _SORTED)), lambda of, _: _self_compare(of[0])),
    **dict.fromkeys((f"list_{kind}_sortByAssociatedKeys" for kind in _SORTED), lambda of, _: _self_compare(of[1])),
    "list_sets_contains_list": _sets(1.0),
    "list_sets_intersects_list": _sets(1.0),
    "list_sets_equivalent_list": _sets(2.0),
    "cidr_ip": lambda _of, _: 1,
    "cidr_contains_ip_string": lambda of, _: _contains_ip(of, by_text=True),
    "cidr_contains_ip_ip": lambda of, _: _contains_ip(of, by_text=False),
    "cidr_contains_cidr_string": lambda of, _: _contains_cidr(of, by_text=True),
    "cidr_contains_cidr": lambda of, _: _contains_cidr(of, by_text=False),
}
_BY_FUNCTION: Final[dict[str, Cost]] = {
    **dict.fromkeys(_WALKS, lambda of, _: _tree(of[0])),
    **dict.fromkeys(_READS_ONCE, lambda of, _: _traversal(_size(of[0]))),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), lambda of, _: _traversal(_size(of[0]), 2.0)),
    **dict.fromkeys(("find", "findAll"), lambda of, _: _regex(_size(of[0]), _size(of[1]))),
    "join": _join,
    "validate": _validate,
    "check": lambda _of, _: 350_000,
    "containsIP": lambda of, _: _contains_ip(of, by_text=False),
    "containsCIDR": lambda of, _: _contains_cidr(of, by_text=False),
}
_BY_OVERLOAD: Final[dict[str, Cost]] = {
    **dict.fromkeys(_READS_TEXT_ONCE, lambda of, _: _traversal(_inner_size(of[0]))),
    **dict.fromkeys((f"{order}_{kind}" for order in _ORDERS for kind in ("string", "bytes")), _minimum),
    **dict.fromkeys(("equals", "not_equals"), _minimum),
    **dict.fromkeys(("add_string", "add_bytes"), lambda of, _: _traversal(_inner_size(of[0]) + _inner_size(of[1]))),
    "in_list": lambda of, _: _inner_size(of[1]),
    "matches_string": lambda of, _: _regex(_inner_size(of[0]), _inner_size(of[1])),
    "contains_string": lambda of, _: _traversal(_inner_size(of[0])) * _traversal(_inner_size(of[1])),
}
NEEDS_RESULT: Final = frozenset({_join, _output})
"""Costs that need the result. All others are charged before the call, so that a call beyond the limit is not made."""
_UNIT_EQUALITY: Final = frozenset({values.CelQuantity, Semver, values.NamedFormat, values.Url})


def cost_of_call(function: str, overload: str) -> Cost:
    """The cost function of a call; ``overload`` is empty if the checker left several overloads."""
    return (
        _TRACKED.get(overload) or _BY_FUNCTION.get(function) or _BY_OVERLOAD.get(overload) or (lambda _arguments, _: 1)
    )


def cost_of_equality(left: object, right: object, negated: bool) -> int:
    """The cost of ``==`` and ``!=``. With ``==`` values of Kubernetes' types cost 1, whatever their size."""
    kind = type(left)
    if isinstance(left, str) and isinstance(right, str):
        return _traversal(min(len(left), len(right)))
    if not negated and (kind in _UNIT_EQUALITY or kind.__module__ == "ipaddress"):
        return 1
    return _minimum((left, right), None)


ORDINARY: Final = 256
"""Longest text and largest map of a device of ordinary size; the API allows 64 characters and 32 entries."""

_UNBOUNDED: Final = frozenset(
    {
        *("replace", "join", "format", "flatten", "slice", "lists.range", "reverse", "distinct", "sort"),
        *("@sortByAssociatedKeys", "cel.@mapInsert", "isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"),
        *("sets.contains", "sets.equivalent", "sets.intersects", "strings.quote", "getQuery", "validate", "check"),
    }
)
_KEEPS_SIZE: Final = frozenset(
    {
        *("lowerAscii", "upperAscii", "substring", "trim", "charAt", "find", "bytes", "value", "dyn"),
        *("optional.of", "optional.ofNonZeroValue"),
    }
)
_SPLITS: Final = frozenset({"split", "findAll"})
_GROWS: Final = frozenset({"first", "last", "optional.unwrap", "unwrapOpt", "string", "optional.none", "includes"})
_PARTS_OF_URL: Final = frozenset({"getHost", "getHostname", "getPort", "getScheme", "getEscapedPath", "url"})
_SMALL: Final = 64


class CostBound(NamedTuple):
    """The highest cost of a node, and the largest size of its result and the result's elements, None if unknown."""

    cost: int
    size: int | None


class _UnboundedError(Exception):
    """The cost of a node has no bound."""


_Sizes = dict[int, int | None]


def cost_bound(node: ir.IrNode) -> int | None:
    try:
        return _bound(node, {0: ORDINARY}).cost
    except _UnboundedError:
        return None


def _bounds(nodes: Iterable[ir.IrNode], sizes: _Sizes) -> list[CostBound]:
    return [_bound(node, sizes) for node in nodes]


def _total(parts: Iterable[CostBound]) -> int:
    return sum(part.cost for part in parts)


def _larger(parts: Iterable[CostBound]) -> int | None:
    sizes = [part.size for part in parts]
    return None if None in sizes else max((size or 1 for size in sizes), default=1)


def _bound(node: ir.IrNode, sizes: _Sizes) -> CostBound:
    match node:
        case ir.Constant(value):
            return CostBound(0, _constant_size(value))
        case ir.Chain():
            base = CostBound(0, sizes.get(node.slot)) if node.base is None else _bound(node.base, sizes)
            keys = _bounds((qualifier.key for qualifier in node.qualifiers), sizes)
            return CostBound(base.cost + _total(keys) + len(node.qualifiers) + 1, base.size)
        case ir.Choice():
            parts = _bounds((node.condition, node.yes, node.no), sizes)
            return CostBound(_total(parts), _larger(parts[1:]))
        case ir.Logic(_, terms):
            return CostBound(_total(_bounds(terms, sizes)), 1)
        case ir.Equality(_, left, right):
            parts = _bounds((left, right), sizes)
            known = [part.size for part in parts if part.size is not None]
            if not known:
                raise _UnboundedError
            return CostBound(_total(parts) + min(known) // 10 + 1, 1)
        case ir.Member(item, _):
            return CostBound(_bound(item, sizes).cost, 1)
        case ir.OrElse(first, second, _):
            parts = _bounds((first, second), sizes)
            return CostBound(_total(parts), _larger(parts))
        case ir.MakeList() | ir.MakeMap() | ir.MakeMessage():
            return _made(node, sizes)
        case ir.Invoke():
            return _invoke(node, sizes)
        case ir.FoldLoop():
            return _loop(node, sizes)


def _made(node: ir.MakeList | ir.MakeMap | ir.MakeMessage, sizes: _Sizes) -> CostBound:
    match node:
        case ir.MakeList(elements, _):
            parts, made = _bounds(elements, sizes), CostBound(LIST, len(elements))
        case ir.MakeMap(entries):
            keys_and_values = (part for key, value, _ in entries for part in (key, value))
            parts, made = _bounds(keys_and_values, sizes), CostBound(MAP, len(entries))
        case ir.MakeMessage(_, fields):
            parts, made = _bounds((value for _, value, _ in fields), sizes), CostBound(MESSAGE, 1)
    return CostBound(_total([*parts, made]), _larger([*parts, made]))


def _constant_size(value: object) -> int:
    parts: Iterable[object] = value if isinstance(value, values.LISTS) else ()
    if isinstance(value, values.CelMap):
        parts = [part for pair in value.items() for part in pair]
    return max([values.size_of(value) or 1, *map(_constant_size, parts)])


def _invoke(node: ir.Invoke, sizes: _Sizes) -> CostBound:
    parts = _bounds(node.arguments, sizes)
    size = _larger(parts)
    if node.function in _UNBOUNDED or size is None or size > 10 * ORDINARY:
        raise _UnboundedError
    # The costs of all other functions grow with the sizes of their arguments. A text stands for any value of its size.
    largest = "x" * size
    cost = cost_of_call(node.function, node.overload)([largest] * max(2, len(parts)), largest)
    return CostBound(_total(parts) + max(cost, 1), _result_size(node.function, [part.size or 1 for part in parts]))


def _result_size(function: str, sizes: list[int]) -> int | None:
    if function in _PARTS_OF_URL:
        return None
    if function in _KEEPS_SIZE:
        return max(_SMALL, sizes[0])
    if function in _SPLITS:
        return sizes[0] + 2
    if function == "_+_":
        return sum(sizes) + _SMALL
    return max([_SMALL, *sizes]) * 4 if function in _GROWS else _SMALL


def _loop(node: ir.FoldLoop, sizes: _Sizes) -> CostBound:
    over, initial = _bounds((node.over, node.initial), sizes)
    if over.size is None:
        raise _UnboundedError
    inner = {**sizes, **dict.fromkeys(node.variables, over.size)}
    if not node.variables:
        inner[node.accumulator] = initial.size
        bound = _bound(node.result, inner)
        return CostBound(initial.cost + bound.cost + 2, bound.size)
    # An accumulator may become a list with one element per step, each of the size of a step's result.
    inner[node.accumulator] = ORDINARY
    condition, step, result = _bounds((node.condition, node.step, node.result), inner)
    rounds = over.size
    grown = None if step.size is None else max(rounds, step.size, initial.size or 1)
    cost = over.cost + initial.cost + rounds * (condition.cost + step.cost) + condition.cost + result.cost
    return CostBound(cost + 2, grown)
