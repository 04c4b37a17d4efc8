"""What the journal keeps of a device beside its name: its partition, how it is shared.

Owns the columns of the tables ``mig`` and ``sharing``, to and from values. Refuses to know claims and when rows are
read. Values are looked at as in `journal_rows`: what cannot be one of ours is damage.

They are tables of their own, because a process of an older version may write into the same file during an update, and
puts values into the columns of ``claim`` and ``device`` by position. A row of ``mig`` is not removed with its claim by
the database itself: that version frees claims without knowing of partitions, and what it leaves is the only proof
that a partition on the hardware is ours. A row of ``sharing`` goes with its device.
"""

import json
from collections.abc import Iterator, Sequence

from dra_driver.claims.entry import AssignedDevice, AssignedPartition, AssignedShare, AssignedSharing, InstanceIds
from dra_driver.claims.journal import values
from dra_driver.claims.journal.values import Row
from dra_driver.model.ids import ClaimUid, GpuUuid, MigUuid
from dra_driver.model.mig import PartitionId
from dra_driver.model.terms import Interval, Strategy
from dra_driver.sharing.daemon import MpsDaemon

MIG_COLUMNS = "m.gpu_uuid, m.profile, m.profile_name, m.start, m.size, m.made, m.gi, m.ci, m.mig_uuid"
SHARING_COLUMNS = (
    "s.strategy, s.interval, s.share, s.memory, s.percent, s.shares, s.total_memory, s.max_shares, s.daemon"
)
JOINS = """
LEFT JOIN mig AS m ON m.uid = d.uid AND m.position = d.position AND m.device = d.device AND m.gpu_uuid = d.gpu_uuid
LEFT JOIN sharing AS s ON s.uid = d.uid AND s.position = d.position
"""
INSERT_MIG = "INSERT INTO mig VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_SHARING = "INSERT INTO sharing VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_STRATEGIES = frozenset(Strategy)
_INTERVALS = frozenset(Interval)
_MAX_PERCENT = 100


def mig_rows(uid: ClaimUid, devices: Sequence[AssignedDevice]) -> Iterator[Row]:
    """Rows for `INSERT_MIG`."""
    for position, device in enumerate(devices):
        assigned = device.partition
        if assigned is not None:
            live = (
                (assigned.live.gi_id, assigned.live.ci_id, assigned.live.uuid) if assigned.live else (None, None, None)
            )
            place = (
                assigned.id.gpu_uuid,
                assigned.id.profile_id,
                assigned.profile_name,
                assigned.id.start,
                assigned.size,
            )
            yield (uid, position, device.device, *place, int(assigned.created_by_driver), *live)


def sharing_rows(uid: ClaimUid, devices: Sequence[AssignedDevice]) -> Iterator[Row]:
    """Rows for `INSERT_SHARING`."""
    for position, device in enumerate(devices):
        assigned = device.sharing
        if assigned is not None:
            share = assigned.share
            consumed: Row = (0, None, None, None, None, None)
            if share is not None:
                consumed = (1, share.memory, share.percent, share.count, share.total_memory, share.max_shares)
            daemon = json.dumps(assigned.daemon.to_wire(), separators=(",", ":")) if assigned.daemon else None
            yield (uid, position, str(assigned.strategy), str(assigned.interval), *consumed, daemon)


def partition(row: Row) -> AssignedPartition | None:
    """The `MIG_COLUMNS` of a row; None where there is no such row. Raises damage."""
    gpu_uuid, profile, name, start, size, made, gi, ci, mig_uuid = row
    if profile is None:
        return None
    live = None
    if mig_uuid is not None:
        live = InstanceIds(
            gi_id=values.parse_int("gi", gi),
            ci_id=values.parse_int("ci", ci),
            uuid=MigUuid(values.parse_text("mig_uuid", mig_uuid)),
        )
    return AssignedPartition(
        id=PartitionId(
            GpuUuid(values.parse_text("gpu_uuid", gpu_uuid)),
            values.parse_int("profile", profile),
            values.parse_int("start", start),
        ),
        profile_name=values.parse_text("profile_name", name),
        size=values.parse_int("size", size, least=1),
        created_by_driver=values.parse_flag("made", made),
        live=live,
    )


def sharing(row: Row) -> AssignedSharing | None:
    """The `SHARING_COLUMNS` of a row; None where there is no such row. Raises damage."""
    strategy, interval, share, memory, percent, shares, total, most, daemon = row
    if strategy is None:
        return None
    if strategy not in _STRATEGIES:
        values.corrupt_value("strategy", strategy)
    if interval not in _INTERVALS:
        values.corrupt_value("interval", interval)
    assigned = None
    if values.parse_flag("share", share):
        assigned = AssignedShare(
            memory=_optional("memory", memory),
            percent=values.parse_int("percent", percent, least=0, most=_MAX_PERCENT),
            count=values.parse_int("shares", shares),
            total_memory=_optional("total_memory", total),
            max_shares=_optional("max_shares", most),
        )
    return AssignedSharing(
        strategy=Strategy(values.parse_text("strategy", strategy)),
        interval=Interval(values.parse_text("interval", interval)),
        share=assigned,
        daemon=None if daemon is None else _daemon(values.parse_text("daemon", daemon)),
    )


def _optional(column: str, value: object) -> int | None:
    return None if value is None else values.parse_int(column, value)


def _daemon(text: str) -> MpsDaemon:
    try:
        return MpsDaemon.from_wire(json.loads(text))
    except (ValueError, RecursionError):
        values.corrupt_value("daemon", text)
