"""Operators on values of any type: arithmetic, order, membership and size.

Errors are those of cel-go (common/types/overflow.go): integers stay within 64 bits, division truncates toward zero,
arithmetic never mixes types.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from dra_driver.scheduler.cel.equality import comparable, compare, list_contains
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    ConcatList,
    Duration,
    EvalError,
    GrowingList,
    Timestamp,
    UInt,
    no_overload,
    size_of,
)
from dra_driver.scheduler.cel.work_limits import check_size, check_text

_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1
_UMAX: Final = 2**64 - 1
_NS: Final = 10**9
_FIRST_SECOND: Final = -62135596800
_LAST_SECOND: Final = 253402300799


def checked_int(value: int) -> int:
    if _MIN <= value <= _MAX:
        return value
    raise EvalError("integer overflow")


def checked_uint(value: int) -> UInt:
    if 0 <= value <= _UMAX:
        return UInt(value)
    raise EvalError("unsigned integer overflow")


def checked_timestamp(ns: int, offset_s: int = 0) -> Timestamp:
    if _FIRST_SECOND <= ns // _NS <= _LAST_SECOND:
        return Timestamp(ns, offset_s)
    raise EvalError("timestamp overflow")


def add(a: Any, b: Any) -> Any:
    kind = type(a)
    if kind is GrowingList:
        if type(b) not in LISTS:
            raise no_overload()
        check_size(len(b))
        a.extend(b)
        return a
    if kind in LISTS and type(b) in LISTS:
        if not len(a) or not len(b):
            return a if not len(b) else b
        check_size(len(a) + len(b))
        return ConcatList([*a, *b])
    if kind is not type(b):
        return _add_times(a, b)
    if kind is int:
        return checked_int(a + b)
    if kind is str or kind is bytes:
        check_text(len(a) + len(b))
        return a + b
    if kind is float:
        return a + b
    if kind is UInt:
        return checked_uint(int(a) + int(b))
    if kind is Duration:
        return Duration(checked_int(a.ns + b.ns))
    raise no_overload()


def _add_times(a: Any, b: Any) -> Timestamp:
    if type(a) is Timestamp and type(b) is Duration:
        return checked_timestamp(a.ns + b.ns, a.offset_s)
    if type(a) is Duration and type(b) is Timestamp:
        return checked_timestamp(a.ns + b.ns, b.offset_s)
    raise no_overload()


def subtract(a: Any, b: Any) -> Any:
    kind = type(a)
    if kind is Timestamp and type(b) is Duration:
        return checked_timestamp(a.ns + checked_int(-b.ns), a.offset_s)
    if kind is not type(b):
        raise no_overload()
    if kind is int:
        return checked_int(a - b)
    if kind is float:
        return a - b
    if kind is UInt:
        return checked_uint(int(a) - int(b))
    if kind is Duration or kind is Timestamp:
        return Duration(checked_int(a.ns - b.ns))
    raise no_overload()


def multiply(a: Any, b: Any) -> Any:
    kind = type(a)
    if kind is not type(b):
        raise no_overload()
    if kind is int:
        return checked_int(a * b)
    if kind is float:
        return a * b
    if kind is UInt:
        return checked_uint(int(a) * int(b))
    raise no_overload()


def divide(a: Any, b: Any) -> Any:
    kind = type(a)
    if kind is not type(b):
        raise no_overload()
    if kind is float:
        return _divide_doubles(a, b)
    if kind is int or kind is UInt:
        if b == 0:
            raise EvalError("division by zero")
        quotient = abs(int(a)) // abs(int(b))
        return UInt(quotient) if kind is UInt else checked_int(quotient if (a < 0) == (b < 0) else -quotient)
    raise no_overload()


def _divide_doubles(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a:  # noqa: PLR0124  NaN is not itself
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def modulo(a: Any, b: Any) -> Any:
    kind = type(a)
    if kind is not type(b) or kind not in {int, UInt}:
        raise no_overload()
    if b == 0:
        raise EvalError("modulus by zero")
    if kind is int and a == _MIN and b == -1:
        raise EvalError("integer overflow")
    rest = abs(int(a)) % abs(int(b))
    return UInt(rest) if kind is UInt else (-rest if a < 0 else rest)


def negate(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return checked_int(-value)
    if kind is float:
        return -value
    if kind is bool:
        return not value
    if kind is Duration:
        return Duration(checked_int(-value.ns))
    raise no_overload("-_")


def logical_not(value: Any) -> bool:
    if type(value) is bool:
        return not value
    raise no_overload("!_")


def not_strictly_false(value: Any) -> bool:
    return value if type(value) is bool else True


def _ordering(test: Callable[[int], bool], name: str) -> Callable[[Any, Any], bool]:
    def ordered(a: Any, b: Any) -> bool:
        if not comparable(a):
            raise no_overload(name)
        return test(compare(a, b))

    return ordered


less = _ordering(lambda order: order < 0, "_<_")
less_equals = _ordering(lambda order: order <= 0, "_<=_")
greater = _ordering(lambda order: order > 0, "_>_")
greater_equals = _ordering(lambda order: order >= 0, "_>=_")


def contained(item: Any, aggregate: Any) -> bool:
    """``item in aggregate``."""
    kind = type(aggregate)
    if kind in MAPS:
        return bool(aggregate.contains(item))
    if kind in LISTS:
        return list_contains(aggregate, item)
    raise no_overload()


def size(value: Any) -> int:
    kind = type(value)
    if kind is str or kind is bytes or kind in LISTS or kind in MAPS:
        return size_of(value) or 0
    raise no_overload("size")


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "!_": logical_not,
    "@not_strictly_false": not_strictly_false,
    "_<_": less,
    "_<=_": less_equals,
    "_>_": greater,
    "_>=_": greater_equals,
    "@in": contained,
    "size": size,
}
"""Implementations by function, for all overloads of each."""
