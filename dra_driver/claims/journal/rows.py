"""The journal's rows as entries, and which rows no version of this driver can have written.

Owns the query for whole entries and its reverse. Refuses to know when rows are read, and what is done about damage.
"""

import itertools
from collections.abc import Iterable, Iterator

from dra_driver.claims.entry import AssignedDevice, Assignment, AttemptToken, Entry, OrphanedPartition, OwnerId, State
from dra_driver.claims.journal import details, values
from dra_driver.claims.journal.values import Row, corruption, parse_uid
from dra_driver.model.claim import ClaimRef
from dra_driver.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.model.mig import parse_partition_name

_DEVICE_COLUMNS = f"""
d.request, d.pool, d.device, d.share_id, d.admin, d.gpu_uuid, {details.MIG_COLUMNS}, {details.SHARING_COLUMNS}
"""
SELECT = f"""
SELECT c.uid, c.namespace, c.name, c.state, c.owner, c.attempt, c.boot_id, c.changed_at, {_DEVICE_COLUMNS}
FROM claim AS c LEFT JOIN device AS d ON d.uid = c.uid {details.JOINS}
"""  # noqa: S608 - columns are constants
BY_POSITION = "ORDER BY c.uid, d.position"
SELECT_ASSIGNMENTS = f"SELECT d.uid, {_DEVICE_COLUMNS} FROM device AS d {details.JOINS} WHERE d.admin = 0"  # noqa: S608
"""Devices that are held, from all claims; one without its claim is damage that is met when the claim is looked up."""
SELECT_ORPHANED = f"""
SELECT m.uid, m.position, {details.MIG_COLUMNS} FROM mig AS m
WHERE m.made = 1 AND NOT EXISTS (
  SELECT 1 FROM device AS d
  WHERE d.uid = m.uid AND d.position = m.position AND d.admin = 0
  AND d.device = m.device AND d.gpu_uuid = m.gpu_uuid)
"""  # noqa: S608 - columns are constants
_STATES = frozenset(State)
_MIG_AT = 6
_SHARING_AT = 15


def entries(rows: Iterable[Row]) -> Iterator[Entry]:
    """Rows of `SELECT`, in order `BY_POSITION`, as entries. Raises `corruption` for a row that is none of ours."""
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        first, *rest = group
        found, namespace, name, state, owner, attempt, boot_id, changed_at, *_ = first
        if state not in _STATES:
            values.corrupt_value("state", state)
        if first[8] is None:
            raise corruption("a claim has no device, and none was ever noted without one")
        yield Entry(
            ref=ClaimRef(
                namespace=values.parse_text("namespace", namespace),
                name=values.parse_text("name", name),
                uid=parse_uid(found),
            ),
            state=State(values.parse_text("state", state)),
            attempt=AttemptToken(
                owner=OwnerId(values.parse_text("owner", owner)), number=values.parse_int("attempt", attempt)
            ),
            boot_id=values.parse_text("boot_id", boot_id),
            changed_at=values.parse_timestamp("changed_at", changed_at),
            devices=tuple(_assigned(row[8:]) for row in (first, *rest)),
        )


def assignments(rows: Iterable[Row]) -> Iterator[Assignment]:
    """Rows of `SELECT_ASSIGNMENTS`. Raises `corruption`."""
    for found, *columns in rows:
        yield Assignment(uid=parse_uid(found), device=_assigned(tuple(columns)))


def orphaned_partitions(rows: Iterable[Row]) -> Iterator[OrphanedPartition]:
    """Rows of `SELECT_ORPHANED`. Raises `corruption`."""
    for found, position, *columns in rows:
        partition = details.partition(tuple(columns))
        if partition is None:
            values.corrupt_value("profile", None)
        yield OrphanedPartition(
            uid=parse_uid(found), position=values.parse_int("position", position), partition=partition
        )


def _assigned(row: Row) -> AssignedDevice:
    request, pool, device, share_id, admin, gpu_uuid = row[:_MIG_AT]
    name = DeviceName(values.parse_text("device", device))
    partition = details.partition(row[_MIG_AT:_SHARING_AT])
    if partition is None and parse_partition_name(name) is not None:
        raise corruption(f"it is not noted what partition {name} is")
    return AssignedDevice(
        request=values.parse_text("request", request),
        pool=PoolName(values.parse_text("pool", pool)),
        device=name,
        share_id=values.parse_text("share_id", share_id) or None,
        admin_access=values.parse_flag("admin", admin),
        gpu_uuid=GpuUuid(values.parse_text("gpu_uuid", gpu_uuid)),
        partition=partition,
        sharing=details.sharing(row[_SHARING_AT:]),
    )
