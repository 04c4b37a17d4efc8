"""An upper bound of what an expression can cost, on any device of ordinary size.

Owns a coarse estimate: it need not be close, only never too low. None means that nothing is known and the expression is
metered.
"""

from typing import Final, NamedTuple

from dra_driver.cel.cost import LIST, MAP, MESSAGE, cost_of_call
from dra_driver.cel.ir import (
    Chain,
    Choice,
    Constant,
    Equality,
    Invoke,
    Logic,
    Loop,
    MakeList,
    MakeMap,
    MakeMessage,
    Member,
    OrElse,
    Plan,
)
from dra_driver.cel.values import LISTS, MAPS, size_of

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


class Bound(NamedTuple):
    """Most that evaluation costs and largest size of the result (of its elements too), None where unknown."""

    cost: int
    size: int | None


def bound(plan: Plan) -> int | None:
    """The upper bound in cost units, None where there is none."""
    found = _bound(plan, {0: ORDINARY})
    return None if found is None else found.cost


def _all(plans: tuple[Plan, ...], sizes: dict[int, int | None]) -> list[Bound] | None:
    found = [_bound(plan, sizes) for plan in plans]
    return None if None in found else [b for b in found if b is not None]


def _bound(plan: Plan, sizes: dict[int, int | None]) -> Bound | None:
    if isinstance(plan, Constant):
        return Bound(0, _constant_size(plan.value))
    if isinstance(plan, Chain):
        return _chain(plan, sizes)
    if isinstance(plan, Choice):
        parts = _all((plan.condition, plan.yes, plan.no), sizes)
        return None if parts is None else Bound(sum(p.cost for p in parts), _larger(parts[1:]))
    if isinstance(plan, Logic):
        parts = _all(plan.terms, sizes)
        return None if parts is None else Bound(sum(p.cost for p in parts), 1)
    if isinstance(plan, Equality):
        return _equality(plan, sizes)
    if isinstance(plan, Invoke):
        return _invoke(plan, sizes)
    if isinstance(plan, Loop):
        return _loop(plan, sizes)
    return _others(plan, sizes)


def _others(plan: Plan, sizes: dict[int, int | None]) -> Bound | None:
    if isinstance(plan, Member):
        item = _bound(plan.item, sizes)
        return None if item is None else Bound(item.cost, 1)
    if isinstance(plan, OrElse):
        parts = _all((plan.first, plan.second), sizes)
        return None if parts is None else Bound(parts[0].cost + parts[1].cost, _larger(parts))
    if isinstance(plan, MakeList):
        parts = _all(plan.elements, sizes)
        extra, count = LIST, len(plan.elements)
    elif isinstance(plan, MakeMap):
        parts = _all(tuple(p for key, value, _ in plan.entries for p in (key, value)), sizes)
        extra, count = MAP, len(plan.entries)
    elif isinstance(plan, MakeMessage):
        parts = _all(tuple(value for _, value, _ in plan.entries), sizes)
        extra, count = MESSAGE, 1
    else:
        return None
    if parts is None:
        return None
    largest = _larger([*parts, Bound(0, count)])
    return Bound(extra + sum(p.cost for p in parts), largest)


def _constant_size(value: object) -> int:
    size = size_of(value) or 1
    if type(value) in LISTS:
        return max([size, *(_constant_size(item) for item in value)])  # type: ignore[attr-defined]
    if type(value) in MAPS:
        pairs = value.items()  # type: ignore[attr-defined]
        return max([size, *(_constant_size(part) for pair in pairs for part in pair)])
    return size


def _larger(parts: list[Bound]) -> int | None:
    return None if any(p.size is None for p in parts) else max((p.size or 1 for p in parts), default=1)


def _chain(plan: Chain, sizes: dict[int, int | None]) -> Bound | None:
    base = Bound(0, sizes.get(plan.slot)) if plan.base is None else _bound(plan.base, sizes)
    keys = _all(tuple(q.key for q in plan.qualifiers if not q.constant), sizes)
    if base is None or keys is None:
        return None
    return Bound(base.cost + sum(k.cost for k in keys) + len(plan.qualifiers) + 1, base.size)


def _equality(plan: Equality, sizes: dict[int, int | None]) -> Bound | None:
    parts = _all((plan.left, plan.right), sizes)
    if parts is None:
        return None
    known = [p.size for p in parts if p.size is not None]
    if not known:
        return None
    return Bound(parts[0].cost + parts[1].cost + min(known) // 10 + 1, 1)


def _invoke(plan: Invoke, sizes: dict[int, int | None]) -> Bound | None:
    parts = _all(plan.arguments, sizes)
    if parts is None or plan.function in _UNBOUNDED or any(p.size is None for p in parts):
        return None
    size = max((p.size or 1 for p in parts), default=1)
    if size > 10 * ORDINARY:
        return None
    # Costs of the functions that remain grow with the sizes of their arguments; a text stands for anything of its size.
    largest = "x" * size
    cost = cost_of_call(plan.function, plan.overload)([largest] * max(2, len(parts)), largest)
    return Bound(sum(p.cost for p in parts) + max(cost, 1), _result_size(plan, parts))


def _result_size(plan: Invoke, parts: list[Bound]) -> int | None:
    if plan.function in _KEEPS_SIZE:
        return max(_SMALL, parts[0].size or 1)
    if plan.function in _SPLITS:
        return (parts[0].size or 1) + 2
    if plan.function == "_+_":
        return sum(p.size or 1 for p in parts) + _SMALL
    if plan.function in {"first", "last", "optional.unwrap", "unwrapOpt", "string", "optional.none", "includes"}:
        return max([_SMALL, *(p.size or 1 for p in parts)]) * 4
    if plan.function in {"getHost", "getHostname", "getPort", "getScheme", "getEscapedPath", "url"}:
        return None
    return _SMALL


def _loop(plan: Loop, sizes: dict[int, int | None]) -> Bound | None:
    over, initial = _bound(plan.over, sizes), _bound(plan.initial, sizes)
    if over is None or initial is None or over.size is None:
        return None
    inner = {**sizes, **dict.fromkeys(plan.variables, over.size)}
    if not plan.variables:
        inner[plan.accumulator] = initial.size
        result = _bound(plan.result, inner)
        return None if result is None else Bound(initial.cost + result.cost + 2, result.size)
    # An accumulator may become a list with one element for each step, each as large as a step makes it.
    inner[plan.accumulator] = ORDINARY
    parts = _all((plan.condition, plan.step, plan.result), inner)
    if parts is None:
        return None
    rounds = over.size
    grown = None if parts[1].size is None else max(rounds, parts[1].size, initial.size or 1)
    cost = over.cost + initial.cost + rounds * (parts[0].cost + parts[1].cost) + parts[0].cost + parts[2].cost
    return Bound(cost + 2, grown)
