"""Reads the journal's rows as entries, and finds rows that no version of this driver can have written."""

import itertools
from collections.abc import Iterable, Iterator

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, PoolName
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.node.claims.entry import (
    AssignedDevice,
    Assignment,
    AttemptToken,
    Entry,
    OrphanedPartition,
    OwnerId,
    State,
)
from dra_driver.node.claims.journal import details, schema, values
from dra_driver.node.claims.journal.values import Parameters, Row, corruption, parse_uid

_DEVICE = f"{schema.select('d', schema.DEVICE_COLUMNS[2:])}, {details.SELECT_MIG}, {details.SELECT_SHARING}"
SELECT = f"""
SELECT {schema.select("c", schema.CLAIM_COLUMNS)}, {_DEVICE}
FROM claim AS c LEFT JOIN device AS d ON d.uid = c.uid {details.JOINS}
"""  # noqa: S608 - columns are constants
BY_POSITION = "ORDER BY c.uid, d.position"
SELECT_ASSIGNMENTS = f"SELECT d.uid AS uid, {_DEVICE} FROM device AS d {details.JOINS} WHERE d.admin = 0"  # noqa: S608
"""Assigned devices of all claims. A device without its claim is damage that is found when the claim is looked up."""
SELECT_ORPHANED = f"""
SELECT m.uid AS uid, m.position AS position, {details.SELECT_MIG} FROM mig AS m
WHERE m.made = 1 AND NOT EXISTS (
  SELECT 1 FROM device AS d
  WHERE d.uid = m.uid AND d.position = m.position AND d.admin = 0
  AND d.device = m.device AND d.gpu_uuid = m.gpu_uuid)
"""  # noqa: S608 - columns are constants
INSERT_CLAIM = schema.insert("claim", schema.CLAIM_COLUMNS)
INSERT_DEVICE = schema.insert("device", schema.DEVICE_COLUMNS)
_STATES = frozenset(State)


def entries(rows: Iterable[Row]) -> Iterator[Entry]:
    """Rows of `SELECT`, in order `BY_POSITION`, as entries. Raises `corruption` for an invalid row."""
    for _, group in itertools.groupby(rows, key=lambda row: row["uid"]):
        of_claim = list(group)
        first = of_claim[0]
        if first["state"] not in _STATES:
            values.corrupt_value("state", first["state"])
        if first["request"] is None:
            raise corruption("a claim has no device, which this driver never wrote")
        yield Entry(
            ref=claim_ref(first),
            state=State(first["state"]),
            attempt=AttemptToken(
                owner=OwnerId(values.parse_text("owner", first["owner"])),
                number=values.parse_int("attempt", first["attempt"]),
            ),
            boot_id=values.parse_text("boot_id", first["boot_id"]),
            changed_at=values.parse_timestamp("changed_at", first["changed_at"]),
            devices=tuple(_assigned(row) for row in of_claim),
        )


def claim_ref(row: Row) -> ClaimRef:
    """The claim of a row of the table ``claim``. Raises `corruption`."""
    return ClaimRef(
        namespace=values.parse_text("namespace", row["namespace"]),
        name=values.parse_text("name", row["name"]),
        uid=parse_uid(row["uid"]),
    )


def claim_row(ref: ClaimRef, state: State, attempt: AttemptToken, *, boot_id: str, changed_at: float) -> Parameters:
    """Parameters for `INSERT_CLAIM`."""
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


def device_rows(uid: ClaimUid, devices: Iterable[AssignedDevice]) -> Iterator[Parameters]:
    """Parameters for `INSERT_DEVICE`."""
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


def assignments(rows: Iterable[Row]) -> Iterator[Assignment]:
    """Rows of `SELECT_ASSIGNMENTS`. Raises `corruption`."""
    for row in rows:
        yield Assignment(uid=parse_uid(row["uid"]), device=_assigned(row))


def orphaned_partitions(rows: Iterable[Row]) -> Iterator[OrphanedPartition]:
    """Rows of `SELECT_ORPHANED`. Raises `corruption`."""
    for row in rows:
        partition = details.partition(row)
        if partition is None:
            values.corrupt_value("profile", None)
        yield OrphanedPartition(
            uid=parse_uid(row["uid"]), position=values.parse_int("position", row["position"]), partition=partition
        )


def _assigned(row: Row) -> AssignedDevice:
    name = DeviceName(values.parse_text("device", row["device"]))
    partition = details.partition(row)
    if partition is None and parse_partition_name(name) is not None:
        raise corruption(f"table mig has no row for partition {name}")
    return AssignedDevice(
        request=values.parse_text("request", row["request"]),
        pool=PoolName(values.parse_text("pool", row["pool"])),
        device=name,
        share_id=values.parse_text("share_id", row["share_id"]) or None,
        admin_access=values.parse_flag("admin", row["admin"]),
        gpu_uuid=GpuUuid(values.parse_text("gpu_uuid", row["gpu_uuid"])),
        partition=partition,
        sharing=details.sharing(row),
    )
