"""Checks single values of the journal's rows.

SQLite detects damage to its own structure, but not a flipped bit inside a value, and it stores any type in any column
(type affinity only converts what it can). So a value that this driver cannot have written is damage, like a broken
page.
"""

import re
import sqlite3
from typing import NoReturn

from dra_driver.core.model.ids import ClaimUid

Row = sqlite3.Row
Parameters = dict[str, object]

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")  # the check of CDI file names accepts no other
_LARGEST = 2**63 - 1


def parse_uid(value: object) -> ClaimUid:
    """A claim's UID. Raises `corruption`, as all functions below."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        corrupt_value("uid", value)
    return ClaimUid(value)


def is_uid(text: str) -> bool:
    """Whether the text can be a claim's UID, and so the name of a file."""
    return _UID.fullmatch(text) is not None


def parse_text(column: str, value: object) -> str:
    return value if isinstance(value, str) else corrupt_value(column, value)


def parse_int(column: str, value: object, *, least: int = 0, most: int = _LARGEST) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return value if good and isinstance(value, int) else corrupt_value(column, value)


def parse_flag(column: str, value: object) -> bool:
    if value not in (0, 1):
        corrupt_value(column, value)
    return value == 1


def parse_timestamp(column: str, value: object) -> float:
    """Seconds since the epoch."""
    return value if isinstance(value, float) else corrupt_value(column, value)


def corrupt_value(column: str, value: object) -> NoReturn:
    """Raise `corruption` for a value that this driver never wrote."""
    raise corruption(f"column {column} holds {repr(value)[:80]}, which this driver never wrote")


def corruption(reason: str) -> sqlite3.DatabaseError:
    """The error that SQLite raises for a damaged file, for damage that SQLite does not detect."""
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error
