"""Conversions between types, and the parts of timestamps and durations (cel-go common/types ConvertToType,
common/stdlib/standard.go). Times without a zone are UTC, as in Kubernetes."""

import re
from collections.abc import Callable
from typing import Final

from dra_driver.scheduler.cel import text
from dra_driver.scheduler.cel.operators import Function, checked_int, checked_timestamp, checked_uint
from dra_driver.scheduler.cel.values import Duration, EvalError, Timestamp, TypeValue, UInt, type_name

_NS: Final = 10**9
_INT: Final = re.compile(r"[+-]?[0-9]{1,400}\Z")
_UINT: Final = re.compile(r"[0-9]{1,400}\Z")
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _failed(value: object, target: str) -> EvalError:
    return EvalError(f"type conversion error from '{type_name(value)}' to '{target}'")


def to_int(value: str | float | Duration | Timestamp) -> int:
    if isinstance(value, str):
        number = int(value) if _INT.match(value) else None
        if number is None or not -(2**63) <= number < 2**63:
            raise _failed(value, "int")
        return number
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, Timestamp):
        return value.ns // _NS
    if type(value) is not float:
        return checked_int(int(value))
    # cel-go refuses the smallest 64-bit integer too.
    if value <= -(2.0**63):
        raise EvalError("integer overflow")
    return text.int_of_double(value)


def to_uint(value: str | float) -> UInt:
    if isinstance(value, str):
        number = int(value) if _UINT.match(value) else None
        if number is None or number >= 2**64:
            raise _failed(value, "uint")
        return UInt(number)
    if type(value) is float and (value != value or not 0 <= value < 2.0**64):  # noqa: PLR0124  NaN is not itself
        raise EvalError("unsigned integer overflow")
    return checked_uint(int(value))


def to_double(value: str | float) -> float:
    number = text.parse_double(value) if isinstance(value, str) else float(value)
    if number is None:
        raise _failed(value, "double")
    return number


def to_bool(value: str | bool) -> bool:
    if isinstance(value, str):
        if value not in _BOOLS:
            raise _failed(value, "bool")
        return _BOOLS[value]
    return value


def to_bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def to_string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return text.double_text(value)
    if isinstance(value, bytes):
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise EvalError("invalid UTF-8 in bytes, cannot convert to string") from error
    if isinstance(value, Duration):
        return text.duration_text(value)
    if isinstance(value, Timestamp):
        return text.timestamp_text(value)
    return str(value)


def to_duration(value: str | int | Duration) -> Duration:
    duration = text.parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, Duration):
        raise _failed(value, "google.protobuf.Duration")
    return duration


def to_timestamp(value: str | int | Timestamp) -> Timestamp:
    if isinstance(value, str):
        timestamp = text.parse_timestamp(value)
        if timestamp is None:
            raise _failed(value, "google.protobuf.Timestamp")
        return checked_timestamp(timestamp.ns, timestamp.offset_s)
    return value if isinstance(value, Timestamp) else checked_timestamp(value * _NS)


def type_of(value: object) -> TypeValue:
    return TypeValue(type_name(value))


def to_dyn(value: object) -> object:
    return value


# --- parts of times


def _zone_offset_s(zone: str, seconds: int) -> int:
    if ":" not in zone:
        return _named_offset_s(zone, seconds)
    hours, _, minutes = zone.partition(":")
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", hours) or not re.fullmatch(r"[+-]?[0-9]{1,9}", minutes):
        raise EvalError(f"{zone!r} is not a time zone")
    total = int(hours) * 60 + (-int(minutes) if zone[0] == "-" else int(minutes))
    return total * 60


def _named_offset_s(zone: str, seconds: int) -> int:
    if zone in {"", "UTC", "Local"}:
        return 0
    if not 0 < len(zone) < 100 or zone[0] in "/\\" or ".." in zone or "\\" in zone:
        raise EvalError(f"unknown time zone {zone}")
    from zoneinfo import ZoneInfo  # noqa: PLC0415  only for named zones

    try:
        rules = ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:
        raise EvalError(f"unknown time zone {zone}") from error
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415  only for named zones

    # Python's calendar ends with year 9999; the rules of a zone do not change within a day of its limits.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(-62135510400, min(253402214400, seconds)))
    offset = moment.astimezone(rules).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _part(read: Callable[[int, int, int, int, int], int]) -> Callable[..., int]:
    def part(value: Timestamp, zone: str = "UTC") -> int:
        seconds, ns = divmod(value.ns, _NS)
        return read(*text.civil(seconds + _zone_offset_s(zone, seconds)), ns)

    return part


def _either(of_timestamp: Callable[..., int], unit_ns: int) -> Callable[..., int]:
    """A function for timestamps and durations; of a duration it returns the whole length in the unit."""

    def part(value: Timestamp | Duration, *zone: str) -> int:
        if isinstance(value, Duration):
            return int(abs(value.ns) // unit_ns) * (1 if value.ns >= 0 else -1)
        return of_timestamp(value, *zone)

    return part


FUNCTIONS: Final[dict[str, Function]] = {
    "int": to_int,
    "uint": to_uint,
    "double": to_double,
    "bool": to_bool,
    "bytes": to_bytes,
    "string": to_string,
    "duration": to_duration,
    "timestamp": to_timestamp,
    "type": type_of,
    "dyn": to_dyn,
    "getFullYear": _part(lambda year, _month, _day, _rest, _ns: year),
    "getMonth": _part(lambda _year, month, _day, _rest, _ns: month - 1),
    "getDayOfYear": _part(
        lambda year, month, day, _rest, _ns: text.days_of(year, month, day) - text.days_of(year, 1, 1)
    ),
    "getDayOfMonth": _part(lambda _year, _month, day, _rest, _ns: day - 1),
    "getDate": _part(lambda _year, _month, day, _rest, _ns: day),
    "getDayOfWeek": _part(lambda year, month, day, _rest, _ns: (text.days_of(year, month, day) + 4) % 7),
    "getHours": _either(_part(lambda _year, _month, _day, rest, _ns: rest // 3600), 3600 * _NS),
    "getMinutes": _either(_part(lambda _year, _month, _day, rest, _ns: rest % 3600 // 60), 60 * _NS),
    "getSeconds": _either(_part(lambda _year, _month, _day, rest, _ns: rest % 60), _NS),
    "getMilliseconds": _either(_part(lambda _year, _month, _day, _rest, ns: ns // 10**6), 10**6),
}
