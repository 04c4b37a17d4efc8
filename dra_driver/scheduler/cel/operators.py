"""Operations on values of any type: selection, presence, equality, order, arithmetic, membership and size.

Selection follows cel-go interpreter/attributes.go: chains that start with an optional are optional as a whole. Equality
follows common/types and k8s.io/apiserver pkg/cel: comparing some types is an error (a version with a string), lists and
maps ignore such errors of their elements, and numbers of different types compare. Arithmetic follows
common/types/overflow.go: 64 bits, division truncates toward zero, types never mix.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel import values

Function = Callable[..., object]  # a function of CEL, called with values of the types that its overloads declare

_KEYS: Final = frozenset({str, int, values.UInt, bool, float})
# Types that cel-go loses when an optional in a variable is selected from or read.
_LOST: Final = frozenset(
    {values.CelQuantity, Semver, values.Url, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface}
)


def check_key(key: object) -> object:
    """Returns ``key`` if it can be an index. Raises EvalError otherwise."""
    if type(key) not in _KEYS:
        raise values.EvalError(f"invalid qualifier type: {values.type_name(key)}")
    return key


def shown(key: object) -> str:
    return (
        str(int(key)) if type(key) is values.UInt else ("true" if key else "false") if type(key) is bool else str(key)
    )


def lookup(target: object, key: object) -> object:
    found = find(target, key)
    if found is values.MISSING:
        kind = "index out of bounds" if isinstance(target, values.LISTS) else "no such key"
        raise values.EvalError(f"{kind}: {shown(key)}")
    return found


def find(target: object, key: object) -> object:
    """``target[key]`` or MISSING. Raises EvalError for an index that a list cannot have."""
    if isinstance(target, values.CelMap):
        return target.find(key)
    if isinstance(target, values.LISTS):
        index = _index(key)
        return target[index] if 0 <= index < len(target) else values.MISSING
    return values.MISSING


def _index(key: object) -> int:
    if type(key) is int:
        return key
    if type(key) is float and -(2.0**63) < key < 2.0**63 and key == int(key):
        return int(key)
    if type(key) is values.UInt and key < 2**63:
        return int(key)
    raise values.EvalError(f"unsupported index value {shown(key)} in list")


def unwrapped(optional: values.Optional) -> object:
    """The value of an optional at the start of a chain. Raises EvalError for types that cel-go loses."""
    value = optional.value
    while isinstance(value, values.Optional):
        if not value.present:
            raise values.EvalError("unsupported conversion to ref.Val")
        value = value.value
    if type(value) in _LOST:
        raise values.EvalError(f"unsupported conversion to ref.Val: {values.type_name(value)}")
    return value.name if isinstance(value, values.TypeValue) else value


# Types whose comparison with another type is an error, not false.
_STRICT: Final = frozenset(
    {values.CelQuantity, Semver, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface, values.Url, values.NamedFormat}
)
_PLAIN: Final = frozenset({int, bool, values.UInt, str, bytes, type(None), values.Duration, values.TypeValue})


def equal(a: object, b: object) -> bool:
    if a is None or b is None:
        return a is b
    return go_equal(a, b)


def differs(a: object, b: object) -> bool:
    """``a != b``. Values that cannot be compared differ."""
    try:
        return not equal(a, b)
    except values.EvalError:
        return True


def go_equal(a: object, b: object) -> bool:
    """Go's ``a.Equal(b)``. Unlike ``==`` it has no special case for null on the right."""
    kind = type(a)
    if kind is type(b) and kind in _PLAIN:
        return bool(a == b)
    if values.is_number(a):
        return values.is_number(b) and a == a and b == b and compare_numbers(a, b) == 0  # noqa: PLR0124
    if isinstance(a, values.LISTS):
        return isinstance(b, values.LISTS) and _equal_lists(a, b)
    if isinstance(a, values.CelMap):
        return isinstance(b, values.CelMap) and _equal_maps(a, b)
    if kind in _STRICT:
        return _equal_strict(a, b)
    if isinstance(a, values.Optional) and isinstance(b, values.Optional):
        return go_equal(a.value, b.value) if a.present and b.present else a.present is b.present
    return isinstance(a, values.Timestamp) and isinstance(b, values.Timestamp) and a.ns == b.ns


def _equal_strict(a: object, b: object) -> bool:
    if values.type_name(a) != values.type_name(b):
        raise values.no_overload()
    if isinstance(a, values.CelQuantity) and isinstance(b, values.CelQuantity):
        if b.derived:
            raise values.no_overload()
        return a.quantity == b.quantity
    return bool(a == b)


def _equal_lists(a: Sequence[object], b: Sequence[object]) -> bool:
    if len(a) != len(b):
        return False
    values.spend(len(a))
    failed: values.EvalError | None = None
    for one, two in zip(a, b, strict=True):
        try:
            if not equal(one, two):
                return False
        except values.EvalError as error:
            failed = failed or error
    if failed is not None and type(a) is values.ConcatList:
        raise failed
    return True


def _equal_maps(a: values.CelMap, b: values.CelMap) -> bool:
    if len(a) != len(b):
        return False
    values.spend(len(a))
    for key, value in a.items():
        other = b.find(key)
        if other is values.MISSING:
            return False
        try:
            if not equal(value, other):
                return False
        except values.EvalError:
            continue
    return True


def list_contains(items: Sequence[object], wanted: object) -> bool:
    """Return whether an element equals ``wanted``. Elements that cannot be compared count as different."""
    values.spend(len(items))
    for item in items:
        try:
            if go_equal(wanted, item):
                return True
        except values.EvalError:
            continue
    return False


def compare_numbers(a: float, b: float) -> int:
    """-1, 0 or 1 for ints, uints and doubles in any combination; integers are rounded to doubles as in Go."""
    if type(a) is float or type(b) is float:
        a, b = float(a), float(b)
    return int(a > b) - int(a < b)


def compare(a: object, b: object) -> int:
    """Order of two values of one type, or two numbers. Raises EvalError for anything else."""
    if values.is_number(a) and values.is_number(b):
        if a != a or b != b:  # noqa: PLR0124  NaN is not itself
            raise values.EvalError("NaN values cannot be ordered")
        return compare_numbers(a, b)
    if type(a) is not type(b) or not comparable(a):
        raise values.no_overload()
    one: Any = getattr(a, "ns", a)
    two: Any = getattr(b, "ns", b)
    return int(one > two) - int(one < two)


_COMPARABLE: Final = frozenset({int, values.UInt, float, str, bytes, bool, values.Duration, values.Timestamp})


def comparable(value: object) -> bool:
    return type(value) in _COMPARABLE


_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1
_UMAX: Final = 2**64 - 1
_NS: Final = 10**9
_FIRST_SECOND: Final = -62135596800
_LAST_SECOND: Final = 253402300799


def checked_int(value: int) -> int:
    if _MIN <= value <= _MAX:
        return value
    raise values.EvalError("integer overflow")


def checked_uint(value: int) -> values.UInt:
    if 0 <= value <= _UMAX:
        return values.UInt(value)
    raise values.EvalError("unsigned integer overflow")


def checked_timestamp(ns: int, offset_s: int = 0) -> values.Timestamp:
    if _FIRST_SECOND <= ns // _NS <= _LAST_SECOND:
        return values.Timestamp(ns, offset_s)
    raise values.EvalError("timestamp overflow")


def _join_texts(a: str, b: str) -> str:
    values.check_text(len(a) + len(b))
    return a + b


def _join_lists(a: Sequence[object], b: Sequence[object]) -> Sequence[object]:
    if isinstance(a, values.GrowingList):
        values.check_size(len(b))
        a.extend(b)
        return a
    if not len(a) or not len(b):
        return a if not len(b) else b
    values.check_size(len(a) + len(b))
    return values.ConcatList([*a, *b])


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise values.EvalError("division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide_doubles(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a:  # noqa: PLR0124  NaN is not itself
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise values.EvalError("modulus by zero")
    if a == _MIN and b == -1:
        raise values.EvalError("integer overflow")
    return -(abs(a) % abs(b)) if a < 0 else abs(a) % abs(b)


def _of_uints(compute: Callable[[int, int], int]) -> Function:
    return lambda a, b: checked_uint(compute(int(a), int(b)))


_KINDS_OF_LISTS: Final = (list, range, values.ConcatList, values.GrowingList)
_ADDITION: Final[Mapping[tuple[type, type], Function]] = {
    (int, int): lambda a, b: checked_int(a + b),
    (values.UInt, values.UInt): _of_uints(operator.add),
    (float, float): operator.add,
    (str, str): _join_texts,
    (bytes, bytes): _join_texts,
    (values.Duration, values.Duration): lambda a, b: values.Duration(checked_int(a.ns + b.ns)),
    (values.Timestamp, values.Duration): lambda a, b: checked_timestamp(a.ns + b.ns, a.offset_s),
    (values.Duration, values.Timestamp): lambda a, b: checked_timestamp(a.ns + b.ns, b.offset_s),
    **{(one, two): _join_lists for one in _KINDS_OF_LISTS for two in _KINDS_OF_LISTS},
}
_SUBTRACTION: Final[Mapping[tuple[type, type], Function]] = {
    (int, int): lambda a, b: checked_int(a - b),
    (values.UInt, values.UInt): _of_uints(operator.sub),
    (float, float): operator.sub,
    (values.Duration, values.Duration): lambda a, b: values.Duration(checked_int(a.ns - b.ns)),
    (values.Timestamp, values.Timestamp): lambda a, b: values.Duration(checked_int(a.ns - b.ns)),
    (values.Timestamp, values.Duration): lambda a, b: checked_timestamp(a.ns + checked_int(-b.ns), a.offset_s),
}
_MULTIPLICATION: Final[Mapping[tuple[type, type], Function]] = {
    (int, int): lambda a, b: checked_int(a * b),
    (values.UInt, values.UInt): _of_uints(operator.mul),
    (float, float): operator.mul,
}
_DIVISION: Final[Mapping[tuple[type, type], Function]] = {
    (int, int): lambda a, b: checked_int(_quotient(a, b)),
    (values.UInt, values.UInt): _of_uints(_quotient),
    (float, float): _divide_doubles,
}
_REMAINDER: Final[Mapping[tuple[type, type], Function]] = {
    (int, int): _modulo,
    (values.UInt, values.UInt): _of_uints(_modulo),
}
_NEGATION: Final[Mapping[type, Function]] = {
    int: lambda value: checked_int(-value),
    float: operator.neg,
    bool: operator.not_,
    values.Duration: lambda value: values.Duration(checked_int(-value.ns)),
}


def _arithmetic(by_types: Mapping[tuple[type, type], Function]) -> Callable[[object, object], object]:
    def computed(a: object, b: object) -> object:
        compute = by_types.get((type(a), type(b)))
        if compute is None:
            raise values.no_overload()
        return compute(a, b)

    return computed


add = _arithmetic(_ADDITION)


def negate(value: object) -> object:
    compute = _NEGATION.get(type(value))
    if compute is None:
        raise values.no_overload("-_")
    return compute(value)


def logical_not(value: object) -> bool:
    if type(value) is bool:
        return not value
    raise values.no_overload("!_")


def not_strictly_false(value: object) -> bool:
    return value if type(value) is bool else True


def _ordering(test: Callable[[int], bool], name: str) -> Callable[[object, object], bool]:
    def ordered(a: object, b: object) -> bool:
        if not comparable(a):
            raise values.no_overload(name)
        return test(compare(a, b))

    return ordered


def contained(item: object, aggregate: object) -> bool:
    if isinstance(aggregate, values.CelMap):
        return aggregate.contains(item)
    if isinstance(aggregate, values.LISTS):
        return list_contains(aggregate, item)
    raise values.no_overload()


def size(value: object) -> int:
    found = values.size_of(value)
    if found is None or isinstance(value, values.ADDRESSES):
        raise values.no_overload("size")
    return found


FUNCTIONS: Final[dict[str, Function]] = {
    "_+_": add,
    "_-_": _arithmetic(_SUBTRACTION),
    "_*_": _arithmetic(_MULTIPLICATION),
    "_/_": _arithmetic(_DIVISION),
    "_%_": _arithmetic(_REMAINDER),
    "-_": negate,
    "!_": logical_not,
    "@not_strictly_false": not_strictly_false,
    "_<_": _ordering(lambda order: order < 0, "_<_"),
    "_<=_": _ordering(lambda order: order <= 0, "_<=_"),
    "_>_": _ordering(lambda order: order > 0, "_>_"),
    "_>=_": _ordering(lambda order: order >= 0, "_>=_"),
    "@in": contained,
    "size": size,
}
"""Implementations by function, for all overloads of each."""
