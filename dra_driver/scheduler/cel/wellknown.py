"""Names of types, and the protobuf messages that an expression can construct: wrappers, Duration, Timestamp and JSON.
Other messages of the environment (Any, Empty, ...) are refused."""

from typing import Final

from dra_driver.scheduler.cel import types as t
from dra_driver.scheduler.cel.types import Type
from dra_driver.scheduler.cel.values import (
    LISTS,
    AbortedError,
    CelMap,
    Duration,
    EvalError,
    Timestamp,
    UInt,
    is_number,
    no_overload,
    type_name,
)

_P: Final = "google.protobuf."
_WRAPPERS: Final = {
    "BoolValue": t.BOOL,
    "BytesValue": t.BYTES,
    "DoubleValue": t.DOUBLE,
    "FloatValue": t.DOUBLE,
    "Int32Value": t.INT,
    "Int64Value": t.INT,
    "StringValue": t.STRING,
    "UInt32Value": t.UINT,
    "UInt64Value": t.UINT,
}
TYPE_NAMES: Final[dict[str, Type]] = {
    "bool": t.BOOL,
    "bytes": t.BYTES,
    "double": t.DOUBLE,
    "int": t.INT,
    "uint": t.UINT,
    "string": t.STRING,
    "list": t.list_of(t.DYN),
    "map": t.map_of(t.DYN, t.DYN),
    "null_type": t.NULL,
    "type": t.TYPE,
    "optional_type": t.optional_of(t.DYN),
    "net.IP": t.IP,
    "net.CIDR": t.CIDR,
    _P + "Duration": t.DURATION,
    _P + "Timestamp": t.TIMESTAMP,
}
"""Type name -> type."""

_STRUCT: Final = t.map_of(t.STRING, t.DYN)
_LIST: Final = t.list_of(t.DYN)
MESSAGE_TYPES: Final[dict[str, Type]] = {
    **{_P + name: Type(term.kind, term.name, (), nullable=True) for name, term in _WRAPPERS.items()},
    _P + "Duration": t.DURATION,
    _P + "Timestamp": t.TIMESTAMP,
    _P + "Value": t.DYN,
    _P + "Struct": _STRUCT,
    _P + "ListValue": _LIST,
}
"""Message -> type of its literals."""

MESSAGES: Final[dict[str, dict[str, Type]]] = {
    **{_P + name: {"value": term} for name, term in _WRAPPERS.items()},
    _P + "Duration": {"seconds": t.INT, "nanos": t.INT},
    _P + "Timestamp": {"seconds": t.INT, "nanos": t.INT},
    _P + "Struct": {"fields": _STRUCT},
    _P + "ListValue": {"values": _LIST},
    _P + "Value": {
        "null_value": t.NULL,
        "number_value": t.DOUBLE,
        "string_value": t.STRING,
        "bool_value": t.BOOL,
        "struct_value": _STRUCT,
        "list_value": _LIST,
    },
}
"""Message -> its fields and their types."""

_ZERO: Final[dict[str, object]] = {"bool": False, "bytes": b"", "double": 0.0, "int": 0, "string": "", "uint": UInt(0)}
_LIMITS: Final = {"Int32Value": (-(2**31), 2**31), "UInt32Value": (0, 2**32)}


def make(name: str, fields: dict[str, object]) -> object:
    """The value of a message literal. Raises EvalError on a field value out of range."""
    short = name.removeprefix(_P)
    if short in _WRAPPERS:
        value = fields.get("value", _ZERO[_WRAPPERS[short].name])
        if short not in _LIMITS and short != "FloatValue":
            return value
        if not is_number(value):
            raise no_overload(type_name(value))
        if short == "FloatValue":
            return _single(value)
        low, high = _LIMITS[short]
        if not low <= value < high:
            raise EvalError("integer overflow" if low else "unsigned integer overflow")
        return value
    if short in {"Value", "Struct", "ListValue"}:
        empty: dict[str, object] = {"Struct": CelMap({}), "ListValue": []}
        return _json(next(reversed(fields.values()), empty.get(short)))
    seconds, nanos = _integer(fields.get("seconds", 0)), _integer(fields.get("nanos", 0))
    if not -(2**31) <= nanos < 2**31:
        raise EvalError("integer overflow")
    total = seconds * 10**9 + nanos
    if short == "Timestamp":
        return Timestamp(total)
    # Go's duration saturates if a protobuf duration does not fit 64 bits of nanoseconds.
    return Duration(max(-(2**63), min(2**63 - 1, total)))


def _json(value: object) -> object:
    """The value as JSON, in which every number is a double. Raises EvalError for types that JSON does not have."""
    if isinstance(value, LISTS):
        return [_json(item) for item in value]
    if isinstance(value, CelMap):
        return CelMap.of((key, _json(item)) for key, item in value.items())
    if is_number(value):
        return float(value)
    if isinstance(value, str | bool) or value is None:
        return value
    raise EvalError(f"a value of type {type_name(value)} cannot be converted to JSON")


def _single(value: float) -> float:
    import struct  # noqa: PLC0415  for one rare message

    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _integer(value: object) -> int:
    if type(value) is not int:
        raise AbortedError("expected an int in a message field")
    return value
