"""Convert the journal's rows to entries and back, and detect values that no version of this driver can have written.

SQLite detects damage to its structure, but not a flipped bit inside a value, and it stores any type in any column.
``mig`` and ``sharing`` are separate tables because an older version inserts into ``claim`` and ``device`` by position
during an update. It also frees claims without their partitions, so a row of ``mig`` outlives its claim.
"""

import itertools
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NoReturn, TypeVar

import msgspec

from dra_driver.core.convert import decode_json
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName
from dra_driver.core.model.mig import PartitionId, parse_partition_name
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.kube.published import ALL_PERCENT
from dra_driver.node.claims import entry
from dra_driver.node.claims.journal import schema

Row = sqlite3.Row
Parameters = dict[str, object]

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")  # the check of CDI file names accepts no other
_LARGEST = 2**63 - 1


def parse_uid(value: object) -> ClaimUid:
    """Parse a claim's UID. Raises `corruption`, as all functions below."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        corrupt_value("uid", value)
    return ClaimUid(value)


def is_uid(text: str) -> bool:
    """Return whether the text can be a claim's UID, and so the name of a file."""
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
    raise corruption(f"column {column} holds {repr(value)[:80]}, which this driver never wrote")


def corruption(reason: str) -> sqlite3.DatabaseError:
    """The error that SQLite raises for a damaged file, for damage that SQLite does not detect."""
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error


SELECT_MIG = schema.select("m", schema.MIG_COLUMNS, prefix="mig_")
SELECT_SHARING = schema.select("s", schema.SHARING_COLUMNS, prefix="sharing_")
JOINS = """
LEFT JOIN mig AS m ON m.uid = d.uid AND m.position = d.position AND m.device = d.device AND m.gpu_uuid = d.gpu_uuid
LEFT JOIN sharing AS s ON s.uid = d.uid AND s.position = d.position
"""
INSERT_MIG = schema.insert("mig", schema.MIG_COLUMNS)
INSERT_SHARING = schema.insert("sharing", schema.SHARING_COLUMNS)

_DEVICE = f"{schema.select('d', schema.DEVICE_COLUMNS[2:])}, {SELECT_MIG}, {SELECT_SHARING}"
SELECT = f"""
SELECT {schema.select("c", schema.CLAIM_COLUMNS)}, {_DEVICE}
FROM claim AS c LEFT JOIN device AS d ON d.uid = c.uid {JOINS}
"""  # noqa: S608 - columns are constants
BY_POSITION = "ORDER BY c.uid, d.position"
SELECT_ASSIGNMENTS = f"SELECT d.uid AS uid, {_DEVICE} FROM device AS d {JOINS} WHERE d.admin = 0"  # noqa: S608
"""Assigned devices of all claims. A device without its claim is damage that the read of the claim finds."""
SELECT_ORPHANED = f"""
SELECT m.uid AS uid, m.position AS position, {SELECT_MIG} FROM mig AS m
WHERE m.made = 1 AND NOT EXISTS (
  SELECT 1 FROM device AS d
  WHERE d.uid = m.uid AND d.position = m.position AND d.admin = 0
  AND d.device = m.device AND d.gpu_uuid = m.gpu_uuid)
"""  # noqa: S608 - columns are constants
INSERT_CLAIM = schema.insert("claim", schema.CLAIM_COLUMNS)
INSERT_DEVICE = schema.insert("device", schema.DEVICE_COLUMNS)
Choice = TypeVar("Choice", bound=StrEnum)


def entries(rows: Iterable[Row]) -> Iterator[entry.Entry]:
    """Convert rows of `SELECT`, in order `BY_POSITION`."""
    for _, group in itertools.groupby(rows, key=lambda row: row["uid"]):
        of_claim = list(group)
        first = of_claim[0]
        if first["request"] is None:
            raise corruption("a claim has no device, which this driver never wrote")
        yield entry.Entry(
            ref=claim_ref(first),
            state=_choice(entry.State, "state", first["state"]),
            attempt=entry.AttemptToken(
                owner=entry.OwnerId(parse_text("owner", first["owner"])),
                number=parse_int("attempt", first["attempt"]),
            ),
            boot_id=parse_text("boot_id", first["boot_id"]),
            changed_at=parse_timestamp("changed_at", first["changed_at"]),
            devices=tuple(_assigned(row) for row in of_claim),
        )


def claim_ref(row: Row) -> ClaimRef:
    return ClaimRef(
        namespace=parse_text("namespace", row["namespace"]),
        name=parse_text("name", row["name"]),
        uid=parse_uid(row["uid"]),
    )


def claim_row(
    ref: ClaimRef, state: entry.State, attempt: entry.AttemptToken, *, boot_id: str, changed_at: float
) -> Parameters:
    return {
        "uid": ref.uid,
        "namespace": ref.namespace,
        "name": ref.name,
        "state": state,
        "owner": attempt.owner,
        "attempt": attempt.number,
        "boot_id": boot_id,
        "changed_at": changed_at,
    }


def device_rows(uid: ClaimUid, devices: Iterable[entry.AssignedDevice]) -> Iterator[Parameters]:
    for position, device in enumerate(devices):
        yield {
            "uid": uid,
            "position": position,
            "request": device.request,
            "pool": device.pool,
            "device": device.device,
            "share_id": device.share_id or "",
            "admin": int(device.admin_access),
            "gpu_uuid": device.gpu_uuid,
        }


def assignments(rows: Iterable[Row]) -> Iterator[entry.Assignment]:
    """Convert rows of `SELECT_ASSIGNMENTS`."""
    for row in rows:
        yield entry.Assignment(uid=parse_uid(row["uid"]), device=_assigned(row))


def orphaned_partitions(rows: Iterable[Row]) -> Iterator[entry.OrphanedPartition]:
    """Convert rows of `SELECT_ORPHANED`."""
    for row in rows:
        partition = _partition(row)
        if partition is None:
            corrupt_value("profile", None)
        yield entry.OrphanedPartition(
            uid=parse_uid(row["uid"]), position=parse_int("position", row["position"]), partition=partition
        )


def _assigned(row: Row) -> entry.AssignedDevice:
    name = DeviceName(parse_text("device", row["device"]))
    partition = _partition(row)
    if partition is None and parse_partition_name(name) is not None:
        raise corruption(f"table mig has no row for partition {name}")
    return entry.AssignedDevice(
        request=parse_text("request", row["request"]),
        pool=PoolName(parse_text("pool", row["pool"])),
        device=name,
        share_id=parse_text("share_id", row["share_id"]) or None,
        admin_access=parse_flag("admin", row["admin"]),
        gpu_uuid=GpuUuid(parse_text("gpu_uuid", row["gpu_uuid"])),
        partition=partition,
        sharing=_sharing(row),
    )


def mig_rows(uid: ClaimUid, devices: Sequence[entry.AssignedDevice]) -> Iterator[Parameters]:
    for position, device in enumerate(devices):
        if device.partition is not None:
            yield mig_row(uid, position, device.device, device.partition)


def mig_row(uid: ClaimUid, position: int, device: DeviceName, partition: entry.AssignedPartition) -> Parameters:
    live = partition.live
    return {
        "uid": uid,
        "position": position,
        "device": device,
        "gpu_uuid": partition.id.gpu_uuid,
        "profile": partition.id.profile_id,
        "profile_name": partition.profile_name,
        "start": partition.id.start,
        "size": partition.size,
        "made": int(partition.created_by_driver),
        "gi": live.gi_id if live else None,
        "ci": live.ci_id if live else None,
        "mig_uuid": live.uuid if live else None,
    }


def sharing_rows(uid: ClaimUid, devices: Sequence[entry.AssignedDevice]) -> Iterator[Parameters]:
    for position, device in enumerate(devices):
        sharing = device.sharing
        if sharing is not None:
            share, daemon = sharing.share, sharing.daemon
            yield {
                "uid": uid,
                "position": position,
                "strategy": str(sharing.strategy),
                "interval": str(sharing.interval),
                "share": int(share is not None),
                "memory": share.memory if share else None,
                "percent": share.percent if share else None,
                "shares": share.count if share else None,
                "total_memory": share.total_memory if share else None,
                "max_shares": share.max_shares if share else None,
                "daemon": msgspec.json.encode(daemon).decode() if daemon else None,
            }


def _partition(row: Row) -> entry.AssignedPartition | None:
    """Parse a row that has `SELECT_MIG`; None where table ``mig`` has no row."""
    if row["mig_profile"] is None:
        return None
    live = None
    if row["mig_mig_uuid"] is not None:
        live = entry.InstanceIds(
            gi_id=parse_int("gi", row["mig_gi"]),
            ci_id=parse_int("ci", row["mig_ci"]),
            uuid=MigUuid(parse_text("mig_uuid", row["mig_mig_uuid"])),
        )
    return entry.AssignedPartition(
        id=PartitionId(
            GpuUuid(parse_text("gpu_uuid", row["mig_gpu_uuid"])),
            parse_int("profile", row["mig_profile"]),
            parse_int("start", row["mig_start"]),
        ),
        profile_name=parse_text("profile_name", row["mig_profile_name"]),
        size=parse_int("size", row["mig_size"], least=1),
        created_by_driver=parse_flag("made", row["mig_made"]),
        live=live,
    )


def _sharing(row: Row) -> entry.AssignedSharing | None:
    """Parse a row that has `SELECT_SHARING`; None where table ``sharing`` has no row."""
    strategy, daemon = row["sharing_strategy"], row["sharing_daemon"]
    if strategy is None:
        return None
    return entry.AssignedSharing(
        strategy=_choice(Strategy, "strategy", strategy),
        interval=_choice(Interval, "interval", row["sharing_interval"]),
        share=_share(row) if parse_flag("share", row["sharing_share"]) else None,
        daemon=None if daemon is None else _daemon(parse_text("daemon", daemon)),
    )


def _share(row: Row) -> entry.AssignedShare:
    return entry.AssignedShare(
        memory=_optional("memory", row["sharing_memory"]),
        percent=parse_int("percent", row["sharing_percent"], least=0, most=ALL_PERCENT),
        count=parse_int("shares", row["sharing_shares"]),
        total_memory=_optional("total_memory", row["sharing_total_memory"]),
        max_shares=_optional("max_shares", row["sharing_max_shares"]),
    )


def _choice(kind: type[Choice], column: str, value: object) -> Choice:
    return kind(value) if isinstance(value, str) and value in set(kind) else corrupt_value(column, value)


def _optional(column: str, value: object) -> int | None:
    return None if value is None else parse_int(column, value)


def _daemon(text: str) -> MpsDaemon:
    try:
        return decode_json(text, MpsDaemon)
    except (ValueError, RecursionError):
        corrupt_value("daemon", text)
