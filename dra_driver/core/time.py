"""Write and read times as Kubernetes does (RFC 3339 in UTC; metav1.Time has whole seconds, metav1.MicroTime six
decimals), and durations of command lines."""

import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART: Final = r"[0-9]{1,9}(?:\.[0-9]{1,3})?[smhdw]"
LONGEST_S: Final = 366 * 86_400


def rfc3339(at: datetime | float) -> str:
    """``2026-01-31T12:00:00Z``: whole seconds, rounded down. A number counts seconds since 1970."""
    return f"{_utc(at).isoformat(timespec='seconds')}Z"


def rfc3339_micro(at: datetime | float) -> str:
    """``2026-01-31T12:00:00.000000Z``, as a Lease has it."""
    return f"{_utc(at).isoformat(timespec='microseconds')}Z"


def parse_time(value: object) -> datetime | None:
    """Return the time in UTC; None unless the value is text of a time with a time zone."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        return at.astimezone(UTC) if at is not None and at.tzinfo is not None else None
    except (ValueError, OverflowError):  # the latter: the end of the year 9999 in another zone
        return None


def parse_duration(text: str, *, least_s: float = 0, most_s: float = LONGEST_S) -> float:
    """Return the seconds of ``30s``, ``10m``, ``1h30m`` or ``7d``; a plain number counts seconds. Raises ValueError."""
    whole = f"{text}s" if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,3})?", text) else text
    found = -1.0
    if re.fullmatch(f"(?:{_PART})+", whole):
        found = sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(_PART, whole))
    if not least_s <= found <= most_s:
        span = f"{format_duration(least_s)} to {format_duration(most_s)}"
        raise ValueError(f"{text[:40]!r}: expected a duration such as 30s, 10m or 1h, {span}")
    return found


def format_duration(seconds: float) -> str:
    """Return ``90s``, ``10m``, ``24h``, ``7d``: the largest unit that keeps the value exact."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0 and seconds != _UNITS["d"]:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def _utc(at: datetime | float) -> datetime:
    moment = at.astimezone(UTC) if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return moment.replace(tzinfo=None)
