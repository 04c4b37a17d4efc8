"""Formats and parses numbers, durations and timestamps as Go does: shortest ``%g``, time.Duration, RFC 3339."""

import math
import re
from typing import TYPE_CHECKING, Final

from dra_driver.scheduler.cel.values import Duration, EvalError, Timestamp

if TYPE_CHECKING:
    from decimal import Decimal

_NS: Final = 10**9
_UNITS: Final = {"ns": 1, "us": 1000, "µs": 1000, "μs": 1000, "ms": 10**6, "s": _NS, "m": 60 * _NS, "h": 3600 * _NS}
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9](?:_?[0-9])*)?\.?(?:[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9](?:_?[0-9])*)?|inf(?:inity)?|nan)\Z", re.I
)
_HEX_FLOAT: Final = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+\Z", re.I)


def double_text(value: float) -> str:
    """``%g`` with the fewest digits that parse to the same value."""
    if not math.isfinite(value):
        return _special(value)
    number = _decimal(value)
    exponent = number.adjusted()
    if not value or -4 <= exponent < 6:
        return plain_double_text(value)
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits))
    mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{'-' if sign else ''}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def plain_double_text(value: float) -> str:
    return f"{_decimal(value):f}" if math.isfinite(value) else _special(value)


def _decimal(value: float) -> "Decimal":
    from decimal import Decimal  # noqa: PLC0415  only for doubles in texts

    return Decimal(repr(value)).normalize()


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def parse_double(text: str) -> float | None:
    """The result of strconv.ParseFloat; None where it fails."""
    if len(text) > 4096 or not text.isascii():
        return None
    if _HEX_FLOAT.match(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    if not _FLOAT.match(text) or not any(c.isalnum() for c in text) or text[1:].lower() == "nan":
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isinf(value) and "n" not in text.lower() else value


def duration_text(value: Duration) -> str:
    seconds = int(math.copysign(abs(value.ns) // _NS, value.ns))
    rest = value.ns - seconds * _NS
    return plain_double_text(float(seconds) + rest / 1e9) + "s"


def parse_duration(text: str) -> Duration | None:
    """The result of time.ParseDuration; None where it fails."""
    sign, rest = (text[0], text[1:]) if text[:1] in {"+", "-"} else ("", text)
    if rest == "0":
        return Duration(0)
    total, position = 0, 0
    while position < len(rest):
        part = _DURATION_PART.match(rest, position)
        if part is None or not (part[1] or part[3]) or len(part[1]) > 20:
            return None
        unit = _UNITS[part[4]]
        total += int(part[1] or "0") * unit + _fraction_ns(part[3] or "", unit)
        if total > 2**63:
            return None
        position = part.end()
    if not rest or (total == 2**63 and sign != "-"):
        return None
    return Duration(-total if sign == "-" else total)


def _fraction_ns(digits: str, unit: int) -> int:
    """Go multiplies in double precision and stops taking digits before 63 bits overflow."""
    kept, value = 0, 0
    for digit in digits:
        if value > (2**63 - 1) // 10 or value * 10 + int(digit) > 2**63:
            break
        value = value * 10 + int(digit)
        kept += 1
    return int(float(value) * (float(unit) / float(10**kept))) if value else 0


def parse_timestamp(text: str) -> Timestamp | None:
    """The result of time.Parse with RFC 3339; None where it fails."""
    found = _RFC3339.match(text) if len(text) < 4096 else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.group(1, 2, 3, 4, 5, 6))
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    month_days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (1 <= month <= 12 and 1 <= day <= month_days[month - 1] and hour < 24 and minute < 60 and second < 60):
        return None
    offset = 0
    if found[8]:
        zone_hours, zone_minutes = int(found[9]), int(found[10])
        if zone_hours > 24 or zone_minutes > 60:
            return None
        offset = (zone_hours * 3600 + zone_minutes * 60) * (-1 if found[8] == "-" else 1)
    fraction = int((found[7] or "")[:9].ljust(9, "0") or "0")
    seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset
    return Timestamp(seconds * _NS + fraction, offset)


def timestamp_text(value: Timestamp) -> str:
    """RFC 3339 with as many decimals as needed, in the time zone of the timestamp's original text."""
    seconds, ns = divmod(value.ns, _NS)
    year, month, day, rest = civil(seconds + value.offset_s)
    fraction = f".{ns:09d}".rstrip("0") if ns else ""
    zone = "Z"
    if value.offset_s:
        sign, minutes = "-" if value.offset_s < 0 else "+", abs(value.offset_s) // 60
        zone = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{year:04d}-{month:02d}-{day:02d}T{clock}{fraction}{zone}"


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def civil(seconds: int) -> tuple[int, int, int, int]:
    """Year, month, day and second of the day for seconds since 1970-01-01."""
    days, rest = divmod(seconds, 86400)
    days += 719468
    era, of_era = divmod(days, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day, rest


def int_of_double(value: float) -> int:
    """Truncated toward zero. Raises EvalError outside of 64 bits, the limits themselves included."""
    if value != value or not -(2.0**63) < value < 2.0**63:  # noqa: PLR0124
        raise EvalError("integer overflow")
    return int(value)
