"""Single values out of the journal's rows, each looked at.

Owns what a value of ours can be. SQLite finds what breaks its own structure, but not a flipped bit inside a value, and
it keeps any type in any column (its "type affinity" only converts what it can). So what cannot be a value of ours is
damage of the file, the same as a broken page. Refuses to know which rows there are.
"""

import re
import sqlite3
from typing import NoReturn

from dra_driver.model.ids import ClaimUid

Row = tuple[object, ...]

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")  # no other one passes the names of CDI files, so none was ever noted
_LARGEST = 2**63 - 1


def uid(value: object) -> ClaimUid:
    """A claim's UID. Raises `damage`, as all below."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        refuse("uid", value)
    return ClaimUid(value)


def text(column: str, value: object) -> str:
    """Any text."""
    return value if isinstance(value, str) else refuse(column, value)


def whole(column: str, value: object, *, least: int = 0, most: int = _LARGEST) -> int:
    """A whole number, not negative."""
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return value if good and isinstance(value, int) else refuse(column, value)


def flag(column: str, value: object) -> bool:
    """0 or 1."""
    if value not in (0, 1):
        refuse(column, value)
    return value == 1


def seconds(column: str, value: object) -> float:
    """A moment."""
    return value if isinstance(value, float) else refuse(column, value)


def refuse(column: str, value: object) -> NoReturn:
    """Raise `damage` for a value that this driver never wrote."""
    raise damage(f"column {column} holds {repr(value)[:80]}, which this driver never wrote")


def damage(reason: str) -> sqlite3.DatabaseError:
    """What SQLite raises for a damaged file, for damage that it does not see itself."""
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error
