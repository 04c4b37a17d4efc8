"""Equality and order of values.

Follows cel-go common/types and k8s.io/apiserver pkg/cel: comparing some types is an error (a version with a string),
lists and maps ignore such errors of their elements, and numbers of different types compare.
"""

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
    NamedFormat,
    Optional,
    Timestamp,
    TypeValue,
    UInt,
    Url,
    no_overload,
    type_name,
)
from dra_driver.scheduler.cel.work_limits import spend

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
    """Whether the type has an order."""
    return type(value) in NUMBERS or type(value) in {str, bytes, bool, Duration, Timestamp}
