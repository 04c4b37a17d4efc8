"""Operations on values of any type: selection, presence, equality, order, arithmetic, membership and size.

Selection follows cel-go interpreter/attributes.go: missing keys, valid indexes, and chains that start with an optional,
which are optional as a whole. Equality follows cel-go common/types and k8s.io/apiserver pkg/cel: comparing some types
is an error (a version with a string), lists and maps ignore such errors of their elements, and numbers of different
types compare. Errors of arithmetic are those of common/types/overflow.go: integers stay within 64 bits, division
truncates toward zero, arithmetic never mixes types.
"""

import math
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    MISSING,
    NUMBERS,
    CelQuantity,
    ConcatList,
    Duration,
    EvalError,
    GrowingList,
    NamedFormat,
    Optional,
    Timestamp,
    TypeValue,
    UInt,
    Url,
    check_size,
    check_text,
    no_overload,
    size_of,
    spend,
    type_name,
)

_KEYS: Final = frozenset({str, int, UInt, bool, float})
# Types that cel-go loses when an optional in a variable is selected from or read.
_LOST: Final = frozenset({CelQuantity, Semver, Url, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface})


def check_key(key: Any) -> Any:
    """Returns ``key`` if it can be an index. Raises EvalError otherwise."""
    if type(key) not in _KEYS:
        raise EvalError(f"invalid qualifier type: {type_name(key)}")
    return key


def shown(key: Any) -> str:
    return str(int(key)) if type(key) is UInt else ("true" if key else "false") if type(key) is bool else str(key)


def lookup(target: Any, key: Any) -> Any:
    """``target[key]``. Raises EvalError for a missing key or index."""
    found = find(target, key)
    if found is MISSING:
        kind = "index out of bounds" if type(target) in LISTS else "no such key"
        raise EvalError(f"{kind}: {shown(key)}")
    return found


def find(target: Any, key: Any) -> Any:
    """``target[key]`` or MISSING. Raises EvalError for an index that a list cannot have."""
    kind = type(target)
    if kind in MAPS:
        return target.find(key)
    if kind in LISTS:
        index = _index(key)
        return target[index] if 0 <= index < len(target) else MISSING
    return MISSING


def _index(key: Any) -> int:
    kind = type(key)
    if kind is int:
        return key  # type: ignore[no-any-return]
    if kind is float and -(2.0**63) < key < 2.0**63 and key == int(key):
        return int(key)
    if kind is UInt and key < 2**63:
        return int(key)
    raise EvalError(f"unsupported index value {shown(key)} in list")


def unwrapped(optional: Optional) -> Any:
    """The value of an optional at the start of a chain. Raises EvalError for types that cel-go loses."""
    value = optional.value
    while type(value) is Optional:
        if not value.present:
            raise EvalError("unsupported conversion to ref.Val")
        value = value.value
    if type(value) in _LOST:
        raise EvalError(f"unsupported conversion to ref.Val: {type_name(value)}")
    return value.name if type(value) is TypeValue else value


# Types whose comparison with another type is an error, not false.
_STRICT: Final = frozenset(
    {CelQuantity, Semver, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface, Url, NamedFormat}
)
_PLAIN: Final = frozenset({int, bool, UInt, str, bytes, type(None), Duration})


def equal(a: Any, b: Any) -> bool:
    """``a == b``. Raises EvalError for types that cannot be compared."""
    kind = type(a)
    if kind is type(b) and kind in _PLAIN:
        return bool(a == b)
    if a is None or b is None:
        return False
    return _equal(kind, a, b)


def _equal(kind: type, a: Any, b: Any) -> bool:
    if kind in NUMBERS:
        return type(b) in NUMBERS and a == a and b == b and compare_numbers(a, b) == 0  # noqa: PLR0124
    if kind in LISTS:
        return type(b) in LISTS and _equal_lists(a, b)
    if kind in MAPS:
        return type(b) in MAPS and _equal_maps(a, b)
    if kind in _STRICT:
        return _equal_strict(a, b)
    if kind is Optional:
        if type(b) is not Optional or not (a.present and b.present):
            return type(b) is Optional and a.present == b.present
        return go_equal(a.value, b.value)
    if kind is Timestamp:
        return type(b) is Timestamp and bool(a.ns == b.ns)
    if kind is TypeValue:
        return type(b) is TypeValue and bool(a.name == b.name)
    return False


def go_equal(a: Any, b: Any) -> bool:
    """Go's ``a.Equal(b)``. Unlike ``==`` it has no special case for null on the right."""
    kind = type(a)
    if kind is type(b) and kind in _PLAIN:
        return bool(a == b)
    return _equal(kind, a, b)


def _equal_strict(a: Any, b: Any) -> bool:
    if type_name(a) != type_name(b):
        raise no_overload()
    if isinstance(a, CelQuantity):
        if b.derived:
            raise no_overload()
        return bool(a.quantity == b.quantity)
    if isinstance(a, Url):
        return bool(a.text == b.text)
    if isinstance(a, NamedFormat):
        return bool(a.name == b.name)
    return bool(a == b)


def _equal_lists(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    spend(len(a))
    failed: EvalError | None = None
    for one, two in zip(a, b, strict=True):
        try:
            if not equal(one, two):
                return False
        except EvalError as error:
            failed = failed or error
    if failed is not None and type(a) is ConcatList:
        raise failed
    return True


def _equal_maps(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    spend(len(a))
    for key in a.keys():  # noqa: SIM118  not a dict
        other = b.find(key)
        if other is MISSING:
            return False
        try:
            if not equal(a.find(key), other):
                return False
        except EvalError:
            continue
    return True


def list_contains(items: Any, wanted: Any) -> bool:
    """Whether an element equals ``wanted``. Elements that cannot be compared count as different."""
    spend(len(items))
    for item in items:
        try:
            if go_equal(wanted, item):
                return True
        except EvalError:
            continue
    return False


def compare_numbers(a: Any, b: Any) -> int:
    """-1, 0 or 1 for ints, uints and doubles in any combination; integers are rounded to doubles as in Go."""
    if type(a) is float or type(b) is float:
        a, b = float(a), float(b)
    return int(a > b) - int(a < b)


def compare(a: Any, b: Any) -> int:
    """Order of two values of one type, or two numbers. Raises EvalError for anything else."""
    kind = type(a)
    if kind is type(b) and kind in {int, str, bytes, bool}:
        return int(a > b) - int(a < b)
    if kind in NUMBERS and type(b) in NUMBERS:
        if a != a or b != b:  # noqa: PLR0124  NaN is not itself
            raise EvalError("NaN values cannot be ordered")
        return compare_numbers(a, b)
    if (kind is Duration or kind is Timestamp) and type(b) is kind:
        return int(a.ns > b.ns) - int(a.ns < b.ns)
    if kind is UInt and type(b) is UInt:
        return int(a > b) - int(a < b)
    raise no_overload()


def comparable(value: Any) -> bool:
    return type(value) in NUMBERS or type(value) in {str, bytes, bool, Duration, Timestamp}


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
