"""The journal's rows as values, and which rows no version of this driver can have written.

Owns the query for whole entries and its reverse. Refuses to know when rows are read, and what is done about damage.

SQLite finds what breaks its own structure, but not a flipped bit inside a value, and it keeps any type in any column
(its "type affinity" only converts what it can). So every value is looked at here: what cannot be a value of ours is
damage of the file, the same as a broken page.
"""

import itertools
import re
import sqlite3
from collections.abc import Iterable, Iterator
from typing import NoReturn

from dra_driver.claims.entry import Attempt, Entry, HeldDevice, OwnerId, State
from dra_driver.model.claim import ClaimRef
from dra_driver.model.ids import ClaimUid, DeviceName, GpuUuid, PoolName

Row = tuple[object, ...]

SELECT = """
SELECT c.uid, c.namespace, c.name, c.state, c.owner, c.attempt, c.boot_id, c.changed_at,
       d.request, d.pool, d.device, d.share_id, d.admin, d.gpu_uuid
FROM claim AS c LEFT JOIN device AS d ON d.uid = c.uid
"""
BY_POSITION = "ORDER BY c.uid, d.position"

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")  # no other one passes the names of CDI files, so none was ever noted
_STATES = frozenset(State)


def entries(rows: Iterable[Row]) -> Iterator[Entry]:
    """Rows of `SELECT`, in order `BY_POSITION`, as entries. Raises `damage` for a row that is none of ours."""
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        first, *rest = group
        found, namespace, name, state, owner, attempt, boot_id, changed_at, *_ = first
        if state not in _STATES:
            _refuse("state", state)
        if first[8] is None:
            raise damage("a claim has no device, and none was ever noted without one")
        yield Entry(
            ref=ClaimRef(namespace=_text("namespace", namespace), name=_text("name", name), uid=uid(found)),
            state=State(_text("state", state)),
            attempt=Attempt(owner=OwnerId(_text("owner", owner)), number=_whole("attempt", attempt)),
            boot_id=_text("boot_id", boot_id),
            changed_at=_seconds("changed_at", changed_at),
            devices=tuple(_held(row) for row in (first, *rest)),
        )


def uid(value: object) -> ClaimUid:
    """A claim's UID out of a row. Raises `damage`."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        _refuse("uid", value)
    return ClaimUid(value)


def damage(reason: str) -> sqlite3.DatabaseError:
    """What SQLite raises for a damaged file, for damage that it does not see itself."""
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error


def _held(row: Row) -> HeldDevice:
    request, pool, device, share_id, admin, gpu_uuid = row[8:]
    if admin not in (0, 1):
        _refuse("admin", admin)
    return HeldDevice(
        request=_text("request", request),
        pool=PoolName(_text("pool", pool)),
        device=DeviceName(_text("device", device)),
        share_id=_text("share_id", share_id) or None,
        admin_access=admin == 1,
        gpu_uuid=GpuUuid(_text("gpu_uuid", gpu_uuid)),
    )


def _text(column: str, value: object) -> str:
    return value if isinstance(value, str) else _refuse(column, value)


def _whole(column: str, value: object) -> int:
    return value if isinstance(value, int) else _refuse(column, value)


def _seconds(column: str, value: object) -> float:
    return value if isinstance(value, float) else _refuse(column, value)


def _refuse(column: str, value: object) -> NoReturn:
    raise damage(f"column {column} holds {repr(value)[:80]}, which this driver never wrote")
