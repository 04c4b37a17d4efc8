"""Functions that Kubernetes adds to CEL and cel-python lacks: quantity, semver, the string extensions, equality.

Owns what they answer and which errors they give; an error is a value (`CELEvalError`), as everywhere in cel-python, so
that ``&&`` and ``||`` can absorb it. Sources: k8s.io/apiserver pkg/cel/library (quantity.go, semverlib.go), cel-go
ext/strings.go version 2, and the CEL specification for equality and order across numeric types. A method is a function
whose first argument is the receiver.
"""

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from celpy import celtypes
from celpy.evaluation import CELEvalError

from dra_driver.quantity import NANO, Quantity
from dra_driver.semver import Semver, from_loose

Value = Any
_Bool = celtypes.BoolType
_Int = celtypes.IntType
_String = celtypes.StringType
_NUMERIC: Final = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)
_ORDERED: Final = (_Bool, _String, celtypes.BytesType, celtypes.TimestampType, celtypes.DurationType)


def _function(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """Errors among the arguments win; a wrong type or value becomes an error value."""

    @wraps(function)
    def guarded(*arguments: Value) -> Value:
        for argument in arguments:
            if isinstance(argument, CELEvalError):
                return argument
        try:
            return function(*arguments)
        except TypeError:
            given = ", ".join(_type_name(argument) for argument in arguments)
            return CELEvalError(f"no such overload: {name}({given})")
        except KeyError as error:
            return CELEvalError(f"no such key: {error.args[0]}")
        except (ValueError, OverflowError) as error:
            return CELEvalError(str(error))

    return guarded


def _type_name(value: Value) -> str:
    return type(value).__name__.removesuffix("Type").lower()


def _of(kind: type, *values: Value) -> None:
    if not all(isinstance(value, kind) for value in values):
        raise TypeError


# --- equality and order ---


def equals(left: Value, right: Value) -> bool:
    """CEL equality: numbers by value whatever their type, else same type and same value.

    A quantity or version on the left compares with its own kind only and raises TypeError otherwise.
    """
    if isinstance(left, Quantity | Semver):
        _of(type(left), right)
        return bool(left == right)
    if isinstance(left, _NUMERIC) and isinstance(right, _NUMERIC):
        return bool(_plain(left) == _plain(right))
    if isinstance(left, celtypes.ListType) and isinstance(right, celtypes.ListType):
        return len(left) == len(right) and all(map(equals, left, right))
    if isinstance(left, celtypes.MapType) and isinstance(right, celtypes.MapType):
        return left.keys() == right.keys() and all(equals(left[key], right[key]) for key in left)
    if isinstance(left, str) and isinstance(right, str):
        return str.__eq__(left, right)  # cel-python's own results are sometimes plain Python strings
    return type(left) is type(right) and bool(left == right)


def _plain(number: Value) -> int | float:
    return float(number) if isinstance(number, float) else int(number)


def _plus(left: Value, right: Value) -> Value:
    """Concatenation with a CEL type as its result; cel-python gives a plain Python one."""
    for kind in (_String, celtypes.BytesType, celtypes.ListType):
        if isinstance(left, kind):
            _of(kind, right)
            return kind(operator.add(left, right))
    return operator.add(left, right)


def _at(container: Value, key: Value) -> Value:
    if isinstance(container, celtypes.ListType):
        if not 0 <= key < len(container):
            raise ValueError(f"index out of bounds: {key}")
    elif isinstance(key, float) and key.is_integer():
        key = _Int(int(key))
    return container[key]


def _contained(item: Value, container: Value) -> Value:
    if isinstance(container, celtypes.MapType):
        return _Bool(any(equals(key, item) for key in container))
    _of(celtypes.ListType, container)
    return _Bool(any(equals(element, item) for element in container))


def _compared(left: Value, right: Value) -> int:
    same = type(left) is type(right) and isinstance(left, _ORDERED)
    if not (same or (isinstance(left, _NUMERIC) and isinstance(right, _NUMERIC))):
        raise TypeError
    if isinstance(left, _NUMERIC):
        left, right = _plain(left), _plain(right)
    return int(left > right) - int(left < right)


def _includes(value: Value, item: Value) -> Value:
    elements = value if isinstance(value, celtypes.ListType) else (value,)
    return _Bool(any(equals(item, element) for element in elements))


# --- quantity and semver ---


def _quantity(text: Value) -> Quantity:
    _of(_String, text)
    return Quantity.parse(text)


def _is_quantity(text: Value) -> Value:
    _of(_String, text)
    return _Bool(_parses(Quantity.parse, text))


def _semver(text: Value, normalize: Value = False) -> Semver:
    _of(_String, text)
    return Semver.parse((from_loose(text) or text) if normalize else text)


def _is_semver(text: Value, normalize: Value = False) -> Value:
    return _Bool(_parses(lambda given: _semver(given, normalize), text))


def _parses(parse: Callable[[str], object], text: Value) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _compare_to(left: Value, right: Value) -> Value:
    if not isinstance(left, Quantity | Semver):
        raise TypeError
    _of(type(left), right)
    return _Int((left > right) - (left < right))


def _less(left: Value, right: Value) -> Value:
    return _Bool(_compare_to(left, right) < 0)


def _greater(left: Value, right: Value) -> Value:
    return _Bool(_compare_to(left, right) > 0)


def _operand(value: Value) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, _Int):
        return Quantity(int(value) * NANO)
    raise TypeError


def _add(left: Value, right: Value) -> Quantity:
    _of(Quantity, left)
    return Quantity.__add__(left, _operand(right))


def _sub(left: Value, right: Value) -> Quantity:
    _of(Quantity, left)
    return Quantity.__sub__(left, _operand(right))


def _as_integer(value: Value) -> Value:
    _of(Quantity, value)
    if not value.is_integer():
        raise ValueError(f"cannot convert quantity {value} to an integer: it has a fraction or exceeds 64 bits")
    return _Int(value.nano // NANO)


def _is_integer(value: Value) -> Value:
    _of(Quantity, value)
    return _Bool(value.is_integer())


def _as_float(value: Value) -> Value:
    _of(Quantity, value)
    return celtypes.DoubleType(value.nano / NANO)


def _sign(value: Value) -> Value:
    _of(Quantity, value)
    return _Int((value.nano > 0) - (value.nano < 0))


def _part(name: str) -> Callable[[Value], Value]:
    def read(version: Value) -> Value:
        _of(Semver, version)
        return _Int(getattr(version, name))

    return read


# --- strings ---


def _lower_ascii(text: Value) -> Value:
    _of(_String, text)
    return _String("".join(c.lower() if c.isascii() else c for c in text))


def _upper_ascii(text: Value) -> Value:
    _of(_String, text)
    return _String("".join(c.upper() if c.isascii() else c for c in text))


def _char_at(text: Value, index: Value) -> Value:
    _of(_String, text)
    if not 0 <= index <= len(text):
        raise ValueError(f"index out of range: {index}")
    return _String(str(text)[index : index + 1])


def _index_of(text: Value, part: Value, start: Value = 0) -> Value:
    _of(_String, text, part)
    if not 0 <= start <= len(text):
        raise ValueError(f"index out of range: {start}")
    return _Int(str(text).find(part, start))


def _last_index_of(text: Value, part: Value, start: Value | None = None) -> Value:
    _of(_String, text, part)
    end = len(text) if start is None else int(start) + len(part)
    return _Int(str(text).rfind(part, 0, end))


def _replace(text: Value, old: Value, new: Value, limit: Value = -1) -> Value:
    _of(_String, text, old, new)
    return _String(str(text).replace(old, new, max(int(limit), -1)))


def _split(text: Value, separator: Value, limit: Value = -1) -> Value:
    _of(_String, text, separator)
    if limit == 0:
        return celtypes.ListType()
    most = -1 if limit < 0 else int(limit) - 1
    pieces = str(text).split(separator, most) if separator else _characters(str(text), most)
    return celtypes.ListType(map(_String, pieces))


def _characters(text: str, most: int) -> list[str]:
    if most < 0 or most >= len(text):
        return list(text)
    return [*text[:most], text[most:]]


def _substring(text: Value, start: Value, end: Value | None = None) -> Value:
    _of(_String, text)
    stop = len(text) if end is None else int(end)
    if not 0 <= start <= stop <= len(text):
        raise ValueError(f"substring {start} to {stop} is outside of a text of {len(text)} characters")
    return _String(str(text)[start:stop])


def _trim(text: Value) -> Value:
    _of(_String, text)
    return _String(str(text).strip())


def _join(parts: Value, separator: Value = "") -> Value:
    _of(celtypes.ListType, parts)
    _of(_String, *parts)
    return _String(str(separator).join(parts))


_NAMED: Final[dict[str, Callable[..., Value]]] = {
    "_==_": lambda left, right: _Bool(equals(left, right)),
    "_!=_": lambda left, right: _Bool(not equals(left, right)),
    "_<_": lambda left, right: _Bool(_compared(left, right) < 0),
    "_<=_": lambda left, right: _Bool(_compared(left, right) <= 0),
    "_>_": lambda left, right: _Bool(_compared(left, right) > 0),
    "_>=_": lambda left, right: _Bool(_compared(left, right) >= 0),
    "_+_": _plus,
    "_[_]": _at,
    "_in_": _contained,
    "includes": _includes,
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "semver": _semver,
    "isSemver": _is_semver,
    "compareTo": _compare_to,
    "isLessThan": _less,
    "isGreaterThan": _greater,
    "add": _add,
    "sub": _sub,
    "sign": _sign,
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "asApproximateFloat": _as_float,
    "major": _part("major"),
    "minor": _part("minor"),
    "patch": _part("patch"),
    "lowerAscii": _lower_ascii,
    "upperAscii": _upper_ascii,
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": _trim,
    "join": _join,
    "dyn": lambda value: value,
}

FUNCTIONS: Final = {name: _function(name, function) for name, function in _NAMED.items()}
"""What is handed to every program. Names between underscores are operators."""
