"""An upper bound of the cost of an expression on any device of ordinary size.

The estimate is coarse, but never too low. None means that no bound is known; then the expression is metered.
"""

from typing import Final, NamedTuple

from dra_driver.scheduler.cel.cost import LIST, MAP, MESSAGE, cost_of_call
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
from dra_driver.scheduler.cel.values import LISTS, MAPS, size_of

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
    """The upper bound in cost units, None if no bound is known."""
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
