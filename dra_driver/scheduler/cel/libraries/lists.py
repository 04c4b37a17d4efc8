"""Functions on lists, sets, maps and optionals, and ``includes``: k8s.io/apiserver pkg/cel/library/lists.go, cel-go
ext/lists.go (version 3), ext/sets.go, cel/library.go (optionals), k8s.io/dynamic-resource-allocation cel/compile.go."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from dra_driver.scheduler.cel import values
from dra_driver.scheduler.cel.operators import Function, add, checked_int, comparable, compare, go_equal, list_contains

_MAX_INCLUDES: Final = 48
_TIMES: Final = (values.Duration, values.Timestamp)


def _same(a: object, b: object) -> bool:
    try:
        return go_equal(a, b)
    except values.EvalError:
        return False


def is_sorted(items: Sequence[object]) -> bool:
    values.spend(len(items))
    previous, first = None, True
    for item in items:
        if not comparable(item):
            raise values.no_overload()
        # A pair that cannot be compared counts as sorted.
        if not first and _order(previous, item) > 0:
            return False
        previous, first = item, False
    return True


def _order(a: object, b: object) -> int:
    try:
        return compare(a, b)
    except values.EvalError:
        return 0


def _sum_from(zero: object) -> Callable[[Sequence[object]], object]:
    def total(items: Sequence[object]) -> object:
        if type(items) is range:
            return checked_int(sum(items))
        values.spend(len(items))
        result = zero
        for item in items:
            result = add(result, item)
        return result

    return total


def sum_of(items: Sequence[object]) -> object:
    """``sum()`` where the checker left several overloads: the type of the first element decides."""
    kind = type(items[0]) if len(items) else int
    zero = {values.UInt: values.UInt(0), float: 0.0, values.Duration: values.Duration(0)}.get(kind, 0)
    return _sum_from(zero)(items)


def _extreme(name: str, replaced: int) -> Callable[[Sequence[object]], object]:
    def extreme(items: Sequence[object]) -> object:
        if not len(items):
            raise values.EvalError(f"{name} called on empty list")
        values.spend(len(items))
        result, first = None, True
        for item in items:
            if not comparable(item):
                raise values.no_overload()
            if first or _order(result, item) == replaced:
                result, first = item, False
        return result

    return extreme


def index_of(items: Sequence[object], wanted: object) -> int:
    values.spend(len(items))
    return next((position for position, item in enumerate(items) if _same(item, wanted)), -1)


def last_index_of(items: Sequence[object], wanted: object) -> int:
    values.spend(len(items))
    return next((p for p in range(len(items) - 1, -1, -1) if _same(items[p], wanted)), -1)


def slice_of(items: Sequence[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise values.EvalError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise values.EvalError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(items) < end:
        raise values.EvalError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return list(items[start:end])


def flatten(items: Sequence[object], depth: int = 1) -> list[object]:
    if not isinstance(items, values.LISTS):
        raise values.no_overload(f"{values.type_name(items)}.flatten()")
    if type(depth) is not int:
        raise values.no_overload("list.flatten(int)")
    if depth < 0:
        raise values.EvalError("level must be non-negative")
    flat: list[object] = []
    _flatten(items, depth, flat)
    return flat


def _flatten(items: Sequence[object], depth: int, flat: list[object]) -> None:
    values.spend(len(items))
    for item in items:
        if isinstance(item, values.LISTS) and depth:
            _flatten(item, depth - 1, flat)
        else:
            flat.append(item)
            if len(flat) % 4096 == 0:
                values.check_size(len(flat))


def sort(items: Sequence[object]) -> object:
    return sort_by_keys(items, items)


def sort_by_keys(items: Sequence[object], keys: Sequence[object]) -> object:
    if not isinstance(items, values.LISTS) or not isinstance(keys, values.LISTS):
        raise values.no_overload("sort")
    if len(items) != len(keys):
        raise values.EvalError(f"sortBy expected {len(items)} keys, got {len(keys)}")
    if not len(items):
        return items
    kind = type(keys[0])
    if not comparable(keys[0]):
        raise values.EvalError("list elements must be comparable")
    if len(keys) > 1 and any(type(key) is not kind for key in keys):
        raise values.EvalError("list elements must have the same type")
    values.spend(len(items))
    if kind is float and any(key != key for key in keys):  # noqa: PLR0124  NaN has no place in an order
        return list(items)
    order: Sequence[Any] = [key.ns if isinstance(key, _TIMES) else key for key in keys]
    return [items[at] for at in sorted(range(len(items)), key=order.__getitem__)]


def distinct(items: Sequence[object]) -> object:
    unique: list[object] = []
    simple: set[object] = set()
    for item in items:
        if type(item) in {str, bool, bytes}:
            if (type(item), item) not in simple:
                simple.add((type(item), item))
                unique.append(item)
            continue
        values.spend(len(unique))
        if not any(_same(item, other) for other in unique):
            unique.append(item)
    return unique


# --- sets


def _covers(items: Sequence[object], wanted: Sequence[object]) -> bool:
    return all(list_contains(items, item) for item in wanted)


def intersects(one: Sequence[object], two: Sequence[object]) -> bool:
    return any(list_contains(two, item) for item in one)


# --- maps


def map_insert(target: values.CelMap, *entry: object) -> values.CelMap:
    """The map with one more key, or with all entries of another map. Raises EvalError for a key that exists."""
    if type(target) is not values.GrowingMap:
        target = values.GrowingMap(dict(target.data))
    more = entry[0]
    for key, value in list(more.items()) if isinstance(more, values.CelMap) and len(entry) == 1 else [entry]:
        if target.contains(key):
            raise values.EvalError("insert failed: key already exists")
        target.data[values.encode_key(key)] = value
    return target


# --- optionals


_FALSE_IF_ZERO: Final = (type(None), int, float, str, bytes, list, range, values.CelMap)


def of_non_zero(value: object) -> values.Optional:
    if isinstance(value, values.Duration):
        zero = not value.ns
    elif isinstance(value, values.Timestamp):
        zero = value.ns == -62135596800 * 10**9  # cel-go compares with Go's zero time, which is year 1
    else:
        zero = isinstance(value, _FALSE_IF_ZERO) and not value
    return values.NONE if zero else values.Optional(value)


def optional_value(value: values.Optional) -> object:
    if not value.present:
        raise values.EvalError("optional.none() dereference")
    return value.value


def unwrap(items: Sequence[object]) -> list[object]:
    values.spend(len(items))
    optionals = [item for item in items if isinstance(item, values.Optional)]
    if len(optionals) < len(items):
        raise values.EvalError("value is not optional")
    return [item.value for item in optionals if item.present]


def includes(target: Sequence[object], item: object) -> bool:
    if not isinstance(target, values.LISTS):
        return _same(target, item)
    for position, other in enumerate(target):
        if position >= _MAX_INCLUDES:
            raise values.EvalError(f"'includes' function cannot be applied to lists longer than {_MAX_INCLUDES} values")
        if _same(other, item):
            return True
    return False


FUNCTIONS: Final[dict[str, Function]] = {
    "isSorted": is_sorted,
    "sum": sum_of,
    "min": _extreme("min", 1),
    "max": _extreme("max", -1),
    "slice": slice_of,
    "flatten": flatten,
    "sort": sort,
    "@sortByAssociatedKeys": sort_by_keys,
    "distinct": distinct,
    "reverse": lambda items: list(items)[::-1] if values.check_size(len(items)) >= 0 else [],
    "lists.range": lambda count: range(max(0, count)),
    "first": lambda items: values.Optional(items[0]) if len(items) else values.NONE,
    "last": lambda items: values.Optional(items[-1]) if len(items) else values.NONE,
    "sets.contains": _covers,
    "sets.equivalent": lambda one, two: _covers(one, two) and _covers(two, one),
    "sets.intersects": intersects,
    "cel.@mapInsert": map_insert,
    "optional.of": values.Optional,
    "optional.ofNonZeroValue": of_non_zero,
    "optional.none": lambda: values.NONE,
    "hasValue": lambda value: value.present,
    "value": optional_value,
    "optional.unwrap": unwrap,
    "unwrapOpt": unwrap,
    "includes": includes,
}
OVERLOADS: Final[dict[str, Function]] = {
    "list_a_index_of_int": index_of,
    "list_a_last_index_of_int": last_index_of,
    "list_int_sum_int": _sum_from(0),
    "list_uint_sum_uint": _sum_from(values.UInt(0)),
    "list_double_sum_double": _sum_from(0.0),
    "list_duration_sum_duration": _sum_from(values.Duration(0)),
}
"""Implementations of overloads that differ from their function's."""
