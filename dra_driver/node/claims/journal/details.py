"""The partition and the sharing of a device: rows of the tables ``mig`` and ``sharing`` to values and back.

These are tables of their own because a process of an older version may write to the same file during an update, and it
inserts into ``claim`` and ``device`` by position. A row of ``mig`` is not deleted with its claim: the older version
frees claims without knowing partitions, and the row is then the only record that this driver created the partition. A
row of ``sharing`` is deleted with its device.
"""

import json
from collections.abc import Iterator, Sequence

from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.hardware.sharing.daemon import MpsDaemon
from dra_driver.kube.published import ALL_PERCENT
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, AssignedShare, AssignedSharing, InstanceIds
from dra_driver.node.claims.journal import schema, values
from dra_driver.node.claims.journal.values import Parameters, Row

SELECT_MIG = schema.select("m", schema.MIG_COLUMNS, prefix="mig_")
SELECT_SHARING = schema.select("s", schema.SHARING_COLUMNS, prefix="sharing_")
JOINS = """
LEFT JOIN mig AS m ON m.uid = d.uid AND m.position = d.position AND m.device = d.device AND m.gpu_uuid = d.gpu_uuid
LEFT JOIN sharing AS s ON s.uid = d.uid AND s.position = d.position
"""
INSERT_MIG = schema.insert("mig", schema.MIG_COLUMNS)
INSERT_SHARING = schema.insert("sharing", schema.SHARING_COLUMNS)

_STRATEGIES = frozenset(Strategy)
_INTERVALS = frozenset(Interval)


def mig_rows(uid: ClaimUid, devices: Sequence[AssignedDevice]) -> Iterator[Parameters]:
    """Parameters for `INSERT_MIG`."""
    for position, device in enumerate(devices):
        if device.partition is not None:
            yield mig_row(uid, position, device.device, device.partition)


def mig_row(uid: ClaimUid, position: int, device: DeviceName, partition: AssignedPartition) -> Parameters:
    """Parameters for `INSERT_MIG`, of one partition."""
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


def sharing_rows(uid: ClaimUid, devices: Sequence[AssignedDevice]) -> Iterator[Parameters]:
    """Parameters for `INSERT_SHARING`."""
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
                "daemon": json.dumps(daemon.to_wire(), separators=(",", ":")) if daemon else None,
            }


def partition(row: Row) -> AssignedPartition | None:
    """The partition in a row that has `SELECT_MIG`; None where table ``mig`` has no row. Raises `values.corruption`."""
    if row["mig_profile"] is None:
        return None
    live = None
    if row["mig_mig_uuid"] is not None:
        live = InstanceIds(
            gi_id=values.parse_int("gi", row["mig_gi"]),
            ci_id=values.parse_int("ci", row["mig_ci"]),
            uuid=MigUuid(values.parse_text("mig_uuid", row["mig_mig_uuid"])),
        )
    return AssignedPartition(
        id=PartitionId(
            GpuUuid(values.parse_text("gpu_uuid", row["mig_gpu_uuid"])),
            values.parse_int("profile", row["mig_profile"]),
            values.parse_int("start", row["mig_start"]),
        ),
        profile_name=values.parse_text("profile_name", row["mig_profile_name"]),
        size=values.parse_int("size", row["mig_size"], least=1),
        created_by_driver=values.parse_flag("made", row["mig_made"]),
        live=live,
    )


def sharing(row: Row) -> AssignedSharing | None:
    """How a device is shared, from a row that has `SELECT_SHARING`; None where table ``sharing`` has no row.

    Raises `values.corruption`.
    """
    strategy, interval, daemon = row["sharing_strategy"], row["sharing_interval"], row["sharing_daemon"]
    if strategy is None:
        return None
    if strategy not in _STRATEGIES:
        values.corrupt_value("strategy", strategy)
    if interval not in _INTERVALS:
        values.corrupt_value("interval", interval)
    return AssignedSharing(
        strategy=Strategy(strategy),
        interval=Interval(interval),
        share=_share(row) if values.parse_flag("share", row["sharing_share"]) else None,
        daemon=None if daemon is None else _daemon(values.parse_text("daemon", daemon)),
    )


def _share(row: Row) -> AssignedShare:
    return AssignedShare(
        memory=_optional("memory", row["sharing_memory"]),
        percent=values.parse_int("percent", row["sharing_percent"], least=0, most=ALL_PERCENT),
        count=values.parse_int("shares", row["sharing_shares"]),
        total_memory=_optional("total_memory", row["sharing_total_memory"]),
        max_shares=_optional("max_shares", row["sharing_max_shares"]),
    )


def _optional(column: str, value: object) -> int | None:
    return None if value is None else values.parse_int(column, value)


def _daemon(text: str) -> MpsDaemon:
    try:
        return MpsDaemon.from_wire(json.loads(text))
    except (ValueError, RecursionError):
        values.corrupt_value("daemon", text)
