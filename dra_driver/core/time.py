"""Write and read times as Kubernetes does: RFC 3339 in UTC; metav1.Time has whole seconds, metav1.MicroTime six
decimals."""

from datetime import UTC, datetime


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


def _utc(at: datetime | float) -> datetime:
    moment = at.astimezone(UTC) if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return moment.replace(tzinfo=None)
