"""The durable journal of the claims on this node, shared by overlapping node processes. Assigns each device once.

``finish`` and ``forget`` are synced to disk before the kubelet gets its answer, one sync per claim. ``begin`` and
``start_unprepare`` must only survive the process; the sync of the next step covers them. ``durable=True`` adds a sync
where a step in between changes hardware beyond a power cut.
"""

import itertools
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from dra_driver.core.errors import DraError, StorageError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Form, Use
from dra_driver.node.claims.entry import (
    AssignedDevice,
    Assignment,
    AttemptToken,
    Blocked,
    Conflict,
    Entry,
    OrphanedPartition,
    OwnerId,
    State,
)
from dra_driver.node.claims.journal import rows
from dra_driver.node.claims.journal.file import OpenJournal
from dra_driver.node.claims.journal.gpu_notes import GpuNotesStore, is_pending
from dra_driver.node.claims.journal.rows import corruption, parse_text, parse_uid
from dra_driver.node.claims.planning.conflicts import conflicts, overlaps

# Two partial indexes, without devices of admin access: many monitoring claims make no prepare slower. Also by name: a
# GPU that was replaced has another UUID, and its claims may not have ended. (SQLite uses one index for each half, and
# none for an OR of them.)
_RIVALS = f"""{rows.SELECT_ASSIGNMENTS} AND d.uid <> ?1 AND d.gpu_uuid = ?2 UNION
{rows.SELECT_ASSIGNMENTS} AND d.uid <> ?1 AND d.pool = ?3 AND d.device = ?4"""
_ORPHANED_RIVALS = f"{rows.SELECT_ORPHANED} AND m.gpu_uuid = ?1 UNION {rows.SELECT_ORPHANED} AND m.uid = ?2"


# Each finds a reason to leave a claim to the long way, from one index. Names count as well as UUIDs: a GPU that was
# replaced has another UUID, and its claims may not have ended.
_RECORDED = "SELECT 1 FROM claim WHERE uid = ?"
_PARTITIONS_OF_CLAIM = "SELECT 1 FROM mig WHERE uid = ? LIMIT 1"
_ON_GPU = "SELECT 1 FROM device WHERE gpu_uuid = ? AND admin = 0 LIMIT 1"
_OF_NAME = "SELECT 1 FROM device WHERE pool = ? AND device = ? AND admin = 0 LIMIT 1"
_CREATED_ON_GPU = "SELECT 1 FROM mig WHERE gpu_uuid = ? AND made = 1 LIMIT 1"
_NOTE_OF_GPU = "SELECT 1 FROM gpu_note WHERE gpu_uuid = ? LIMIT 1"
_PREPARED = """
SELECT 1 FROM claim WHERE uid = ?1 AND state = 'prepared'
AND NOT EXISTS (SELECT 1 FROM mig WHERE uid = ?1) AND NOT EXISTS (SELECT 1 FROM sharing WHERE uid = ?1)
"""


class Journal(GpuNotesStore):
    """One open journal; see `file.Database` for opening, closing, errors and waits."""

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        super().__init__(path, opened, boot_id=boot_id, owner=owner, now=now)
        self._attempts = itertools.count(1)
        self.restore_from_backups()

    def entry(self, uid: ClaimUid) -> Entry | None:
        with self._reading("look up a claim") as connection:
            return next(
                rows.entries(connection.execute(f"{rows.SELECT} WHERE c.uid = ? {rows.BY_POSITION}", (uid,))), None
            )

    def entries(self) -> tuple[Entry, ...]:
        """All entries, by UID. Grows with the number of claims: not for calls of the kubelet."""
        with self._reading("list claims") as connection:
            return tuple(rows.entries(connection.execute(rows.SELECT + rows.BY_POSITION)))

    def uids(self) -> frozenset[ClaimUid]:
        with self._reading("list claims") as connection:
            return frozenset(parse_uid(uid) for (uid,) in connection.execute("SELECT uid FROM claim"))

    def count_claims(self) -> int:
        with self._reading("count claims") as connection:
            (count,) = connection.execute("SELECT count(*) FROM claim").fetchone()
            return int(count)

    def assignments(self, gpu: GpuUuid | None = None) -> tuple[Assignment, ...]:
        """The devices of claims in any state, without admin access: of one GPU, or of all."""
        with self._reading("list devices") as connection:
            if gpu is None:
                return tuple(rows.assignments(connection.execute(rows.SELECT_ASSIGNMENTS)))
            return tuple(rows.assignments(connection.execute(f"{rows.SELECT_ASSIGNMENTS} AND d.gpu_uuid = ?", (gpu,))))

    def uses(self) -> tuple[Use, ...]:
        """The use of every GPU in use, including orphaned partitions."""
        with self._reading("list uses of GPUs"):
            # In this order: a partition that loses its claim in between is then listed twice, and not missed.
            assigned = tuple(holding.device.use for holding in self.assignments())
            orphaned = (orphan.partition.id for orphan in self.orphaned_partitions())
            return assigned + tuple(
                Use(gpu_uuid=p.gpu_uuid, form=Form.PARTITION, partition=p, created_by_driver=True) for p in orphaned
            )

    def begin(
        self, ref: ClaimRef, devices: Sequence[AssignedDevice], *, durable: bool = False
    ) -> AttemptToken | Blocked:
        """Record the intent to prepare ``ref`` and assign its devices, or return what blocks it.

        Check and record are one transaction, so one of two concurrent processes is blocked. Raises `StorageError` in a
        file that was removed or replaced, which no other process sees.
        """
        if problem := self.problem:
            raise StorageError(f"claim {ref} cannot be recorded: {problem}", reason="JournalReplaced")
        with self._writing("begin a claim", durable=durable) as connection:
            blocked = self._blocked(connection, ref, devices)
            return blocked or self._insert(connection, ref, devices, State.PREPARING)

    def amend(self, uid: ClaimUid, attempt: AttemptToken, devices: Sequence[AssignedDevice]) -> bool:
        """Replace the details of the devices of a claim that is being prepared; not synced.

        ``devices`` are the devices of ``begin`` with other details. False when the entry belongs to another attempt.
        """
        with self._writing("amend a claim", durable=False) as connection:
            own = connection.execute(
                "SELECT 1 FROM claim WHERE uid = ? AND owner = ? AND attempt = ? AND state = 'preparing'",
                (uid, attempt.owner, attempt.number),
            ).fetchone()
            if own is not None:
                self._replace_details(connection, uid, devices)
            return own is not None

    def finish(self, uid: ClaimUid, attempt: AttemptToken, devices: Sequence[AssignedDevice] = ()) -> bool:
        """Record that the claim is prepared; durable on return. False when the entry belongs to another attempt.

        ``devices``, when given, are the devices of ``begin`` with the present details.
        """
        with self._writing("finish a claim", durable=True) as connection:
            changed = self._change(
                connection,
                "UPDATE claim SET state = 'prepared', changed_at = ? "
                "WHERE uid = ? AND owner = ? AND attempt = ? AND state = 'preparing'",
                (self._now(), uid, attempt.owner, attempt.number),
            )
            if changed and devices:
                self._replace_details(connection, uid, devices)
            return changed

    def start_unprepare(
        self, uid: ClaimUid, *, only: AttemptToken | None = None, durable: bool = False
    ) -> AttemptToken | None:
        """Record that the claim is being undone, and take over its entry from any other attempt.

        None without an entry; with ``only``, also when the entry belongs to another attempt.
        """
        with self._writing("start to unprepare a claim", durable=durable) as connection:
            attempt = self._next_attempt()
            changed = self._change(
                connection,
                "UPDATE claim SET state = 'unpreparing', owner = ?, attempt = ?, changed_at = ? "
                "WHERE uid = ? AND (? IS NULL OR (owner = ? AND attempt = ?))",
                (attempt.owner, attempt.number, self._now(), uid)
                + ((only.owner, only.owner, only.number) if only else (None, None, None)),
            )
            return attempt if changed else None

    def forget(self, uid: ClaimUid, attempt: AttemptToken, *, partitions_left: bool = False) -> bool:
        """Remove the entry and free its devices; durable. False when the entry belongs to another attempt.

        Its partitions must be destroyed before: no record of them remains. With ``partitions_left`` they may still
        exist, and become `orphaned_partitions`. A partition that another claim shares becomes that claim's.
        """
        with self._writing("remove a claim", durable=True) as connection:
            changed = self._change(
                connection,
                "DELETE FROM claim WHERE uid = ? AND owner = ? AND attempt = ?",
                (uid, attempt.owner, attempt.number),
            )
            if changed:
                self._hand_over(connection, uid)
                query = "DELETE FROM mig WHERE uid = ? AND made <= ? RETURNING gpu_uuid"
                gone = connection.execute(query, (uid, int(not partitions_left))).fetchall()
                self._write_backups_best_effort(connection, [GpuUuid(parse_text("gpu_uuid", gpu)) for (gpu,) in gone])
            return changed

    def adopt(self, ref: ClaimRef, devices: Sequence[AssignedDevice]) -> Blocked | None:
        """Record as prepared a claim that a lost journal had; return what blocks it when this journal differs.

        Orphaned partitions that were created for this claim become its own again. They, and orphaned partitions that it
        shares, do not block it.
        """
        with self._writing("adopt a claim", durable=True) as connection:
            blocked = self._blocked(connection, ref, devices, adopting=True)
            if blocked is None:
                self._insert(connection, ref, devices, State.PREPARED)
            return blocked

    def drop_older_boots(self) -> tuple[ClaimUid, ...]:
        """Remove entries of earlier boots that only have files, and return their UIDs; none when this boot's id is
        unknown.

        Entries that changed hardware stay until the hardware was checked.
        """
        if not self.boot_id:
            return ()
        with self._writing("drop claims of an earlier boot", durable=True) as connection:
            # Partitions that a claim only used; an older version of the driver freed the claim without them.
            connection.execute("DELETE FROM mig WHERE made = 0 AND uid NOT IN (SELECT uid FROM claim)")
            older = connection.execute(
                "DELETE FROM claim WHERE boot_id NOT IN ('', ?) "
                "AND uid NOT IN (SELECT uid FROM mig UNION SELECT uid FROM sharing) RETURNING uid",
                (self.boot_id,),
            ).fetchall()
            return tuple(sorted(parse_uid(uid) for (uid,) in older))

    # Claims for whole GPUs in their present state: one durable transaction per call. They change no hardware, so no
    # intent must be durable before. Any unusual case (an entry of the claim, a conflict, a note, a partition)
    # leaves the claim to `begin` and `start_unprepare`, which resolve it.

    def unrecorded(self, uids: Collection[ClaimUid]) -> frozenset[ClaimUid]:
        """The claims among ``uids`` without an entry; none while a rebuild is pending."""
        with self._reading("look up claims") as connection:
            if is_pending(connection):
                return frozenset()
            return frozenset(uid for uid in uids if not _finds(connection, _RECORDED, uid))

    def record_prepared(
        self,
        claims: Sequence[tuple[ClaimRef, Sequence[AssignedDevice]]],
        write_files: Callable[[ClaimUid], object],
    ) -> frozenset[ClaimUid]:
        """Record claims for whole GPUs as prepared, if nothing blocks them; durable on return. Returns these claims.

        ``write_files`` is called inside the transaction: no other run can remove the files of a claim that is being
        recorded. A claim whose files cannot be written is not recorded. Files of a claim that is not recorded can stay.
        Errors and concurrency as in ``begin``.
        """
        if problem := self.problem:
            raise StorageError(f"claims cannot be recorded: {problem}", reason="JournalReplaced")
        with self._writing("record prepared claims", durable=True) as connection:
            found: set[ClaimUid] = set()
            for ref, devices in claims:
                if _is_free(connection, ref.uid, devices) and _succeeds(write_files, ref.uid):
                    self._insert(connection, ref, devices, State.PREPARED)
                    found.add(ref.uid)
            return frozenset(found)

    def forget_prepared(
        self, uids: Collection[ClaimUid], remove_file: Callable[[ClaimUid], object]
    ) -> frozenset[ClaimUid]:
        """Remove files and entries of prepared claims for whole GPUs; durable on return. Returns these claims.

        ``remove_file`` is called inside the transaction: no other run can write the file of a claim whose entry is
        being removed. A claim whose file cannot be removed stays.
        """
        with self._writing("remove prepared claims", durable=True) as connection:
            gone = frozenset(uid for uid in uids if _finds(connection, _PREPARED, uid) and _succeeds(remove_file, uid))
            connection.executemany("DELETE FROM claim WHERE uid = ?", [(uid,) for uid in gone])
            return gone

    def _blocked(
        self,
        connection: sqlite3.Connection,
        ref: ClaimRef,
        devices: Sequence[AssignedDevice],
        *,
        adopting: bool = False,
    ) -> Blocked | None:
        own = self.entry(ref.uid)
        if own is not None:
            return Blocked(by=(own,))
        orphaned_partitions = self._overlapping_orphans(connection, ref, devices)
        if adopting:
            created = {
                device.partition.id
                for device in devices
                if device.partition is not None and device.partition.created_by_driver
            }
            shared = {device.partition.id for device in devices if device.partition is not None and device.is_share}
            orphaned_partitions = tuple(
                each
                for each in orphaned_partitions
                if each.partition.id not in (created if each.uid == ref.uid else shared)
            )
        rivals = self._rivals(connection, ref, devices)
        found = (*conflicts(devices, rivals), *self._unready(devices, rivals))
        if not found and not orphaned_partitions:
            return None
        holders = dict.fromkeys(uid for conflict in found for uid in conflict.holders)
        return Blocked(
            by=tuple(self._holder(uid) for uid in holders),
            orphaned_partitions=orphaned_partitions,
            conflict=found[0] if found else None,
        )

    def _unready(self, devices: Sequence[AssignedDevice], rivals: Iterable[Assignment]) -> Iterator[Conflict]:
        """Claims that share a partition of ``devices`` and are being prepared or unprepared: it may cease to exist."""
        shared = {device.partition.id: device for device in devices if device.partition is not None and device.is_share}
        for rival in rivals:
            wanted = shared.get(rival.device.partition.id) if rival.device.partition is not None else None
            if wanted is not None and self._holder(rival.uid).state is not State.PREPARED:
                yield Conflict(wanted=wanted, holders=(rival.uid,), other=rival.device)

    def _holder(self, uid: ClaimUid) -> Entry:
        found = self.entry(uid)
        if found is None:
            raise corruption("a device has no claim")
        return found

    def _rivals(
        self, connection: sqlite3.Connection, ref: ClaimRef, devices: Sequence[AssignedDevice]
    ) -> list[Assignment]:
        """Assignments of other claims on the requested GPUs, or under the requested names."""
        wanted = dict.fromkeys((d.gpu_uuid, d.pool, d.device) for d in devices if not d.admin_access)
        found = (
            assigned for each in wanted for assigned in rows.assignments(connection.execute(_RIVALS, (ref.uid, *each)))
        )
        return list(
            {(assigned.uid, assigned.device.device, assigned.device.share_id): assigned for assigned in found}.values()
        )

    def _overlapping_orphans(
        self, connection: sqlite3.Connection, ref: ClaimRef, devices: Sequence[AssignedDevice]
    ) -> tuple[OrphanedPartition, ...]:
        wanted = dict.fromkeys(d.gpu_uuid for d in devices if not d.admin_access)
        found = (
            orphan
            for gpu in wanted
            for orphan in rows.orphaned_partitions(connection.execute(_ORPHANED_RIVALS, (gpu, ref.uid)))
        )
        return tuple(
            orphan for orphan in dict.fromkeys(found) if orphan.uid == ref.uid or overlaps(devices, orphan.partition)
        )

    def _insert(
        self, connection: sqlite3.Connection, ref: ClaimRef, devices: Sequence[AssignedDevice], state: State
    ) -> AttemptToken:
        attempt = self._next_attempt()
        row = rows.claim_row(ref, state, attempt, boot_id=self.boot_id, changed_at=self._now())
        connection.execute(rows.INSERT_CLAIM, row)
        self._names.add(ref)
        connection.executemany(rows.INSERT_DEVICE, rows.device_rows(ref.uid, devices))
        self._replace_details(connection, ref.uid, devices)
        return attempt

    def _next_attempt(self) -> AttemptToken:
        return AttemptToken(owner=self.owner, number=next(self._attempts))

    def _replace_details(
        self, connection: sqlite3.Connection, uid: ClaimUid, devices: Sequence[AssignedDevice]
    ) -> None:
        """Also deletes rows of an earlier claim with this UID that only used a partition."""
        if any(device.partition or device.sharing for device in devices):
            connection.execute("DELETE FROM mig WHERE uid = ?", (uid,))
            connection.execute("DELETE FROM sharing WHERE uid = ?", (uid,))
            connection.executemany(rows.INSERT_MIG, rows.mig_rows(uid, devices))
            connection.executemany(rows.INSERT_SHARING, rows.sharing_rows(uid, devices))
            self._write_backups(connection, [device.gpu_uuid for device in devices if device.partition is not None])

    @staticmethod
    def _change(connection: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> bool:
        return connection.execute(statement, values).rowcount == 1


def _is_free(connection: sqlite3.Connection, uid: ClaimUid, devices: Sequence[AssignedDevice]) -> bool:
    if _finds(connection, _RECORDED, uid) or _finds(connection, _PARTITIONS_OF_CLAIM, uid):
        return False
    return not any(
        _finds(connection, _ON_GPU, device.gpu_uuid)
        or _finds(connection, _OF_NAME, device.pool, device.device)
        or _finds(connection, _CREATED_ON_GPU, device.gpu_uuid)
        or _finds(connection, _NOTE_OF_GPU, device.gpu_uuid)
        for device in devices
        if not device.admin_access
    )


def _finds(connection: sqlite3.Connection, query: str, *values: object) -> bool:
    return connection.execute(query, values).fetchone() is not None


def _succeeds(change_files: Callable[[ClaimUid], object], uid: ClaimUid) -> bool:
    try:
        change_files(uid)
    except DraError:
        return False  # the long way reports it
    return True
