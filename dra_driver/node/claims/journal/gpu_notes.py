"""The journal's state of GPUs: notes about changed settings, orphaned partitions, and the backup of both.

Backups are written inside the transaction, before COMMIT, so no hardware change is recorded in SQLite only.
"""

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import asdict

from dra_driver.core.errors import StorageError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.node.claims.entry import OrphanedPartition, OwnerId
from dra_driver.node.claims.journal import backups, rows, schema
from dra_driver.node.claims.journal.file import REBUILD, Database, OpenJournal

log = logging.getLogger(__name__)

BACKUPS_FOLDER = "made"
"""The directory next to the journal."""
_CREATED = f"""
SELECT m.uid AS uid, m.position AS position, {rows.SELECT_MIG} FROM mig AS m
WHERE m.made = 1 AND m.gpu_uuid = ? ORDER BY m.profile, m.start
"""  # noqa: S608 - columns are constants
_CREATED_IDS = "SELECT gpu_uuid, profile, start FROM mig WHERE made = 1"
_CREATED_OF_CLAIM = "SELECT position, gpu_uuid, profile, start FROM mig WHERE uid = ? AND made = 1"
_HEIR = """
SELECT m.uid, m.position FROM mig AS m JOIN device AS d ON d.uid = m.uid AND d.position = m.position AND d.admin = 0
WHERE m.gpu_uuid = ? AND m.profile = ? AND m.start = ? AND m.made = 0 AND m.uid <> ? ORDER BY m.uid LIMIT 1
"""
_SET_MADE = "UPDATE mig SET made = ? WHERE uid = ? AND position = ?"
_SET_NOTE = schema.insert("gpu_note", schema.GPU_NOTE_COLUMNS, verb="INSERT OR REPLACE")
_KEEP_NOTE = schema.insert("gpu_note", schema.GPU_NOTE_COLUMNS, verb="INSERT OR IGNORE")
_KEEP_PARTITION = schema.insert("mig", schema.MIG_COLUMNS, verb="INSERT OR IGNORE")


class GpuNotesStore(Database):
    """The part of the journal about GPUs. Thread-safe; errors and waits as in `Database`."""

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        super().__init__(path, opened, boot_id=boot_id, owner=owner, now=now)
        self._backups = backups.GpuStateBackups(path.parent / BACKUPS_FOLDER)
        self._names = backups.ClaimNames(path.parent / backups.NAMES_FILE)

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        with self._reading("read a GPU note") as connection:
            query = "SELECT value FROM gpu_note WHERE gpu_uuid = ? AND key = ?"
            row = connection.execute(query, (gpu, key)).fetchone()
            return None if row is None else rows.parse_text("value", row[0])

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        """Set the note; durable on return."""
        with self._writing("set a GPU note", durable=True) as connection:
            connection.execute(_SET_NOTE, {"gpu_uuid": gpu, "key": key, "value": value, "boot_id": self.boot_id})
            self._write_backups(connection, (gpu,))

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        """Remove the note; durable on return. Idempotent."""
        with self._writing("clear a GPU note", durable=True) as connection:
            connection.execute("DELETE FROM gpu_note WHERE gpu_uuid = ? AND key = ?", (gpu, key))
            self._write_backups_best_effort(connection, (gpu,))

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        return tuple(sorted(gpu for gpu, keys in self.noted_gpus().items() if key in keys))

    def noted_gpus(self) -> Mapping[GpuUuid, frozenset[str]]:
        """The keys of the notes of every GPU that has one."""
        found: dict[GpuUuid, frozenset[str]] = {}
        with self._reading("list GPU notes") as connection:
            for gpu, key in connection.execute("SELECT gpu_uuid, key FROM gpu_note"):
                uuid = GpuUuid(rows.parse_text("gpu_uuid", gpu))
                found[uuid] = found.get(uuid, frozenset()) | {rows.parse_text("key", key)}
        return found

    def drop_older_notes(self, keys: Sequence[str]) -> None:
        """Remove notes of earlier boots about settings that a reboot resets; none when this boot's id is unknown."""
        if self.boot_id:
            with self._writing("drop GPU notes of an earlier boot", durable=True) as connection:
                for key in keys:
                    query = "DELETE FROM gpu_note WHERE key = ? AND boot_id NOT IN ('', ?)"
                    gone = connection.execute(f"{query} RETURNING gpu_uuid", (key, self.boot_id)).fetchall()
                    self._write_backups_best_effort(
                        connection, [GpuUuid(rows.parse_text("gpu_uuid", gpu)) for (gpu,) in gone]
                    )

    def created_partitions(self) -> frozenset[PartitionId]:
        """Partitions that this driver created, or is about to create or destroy, with or without a claim.

        Called at each read of the hardware: one index read, whatever the number of claims.
        """
        with self._reading("list created partitions") as connection:
            return frozenset(
                PartitionId(
                    GpuUuid(rows.parse_text("gpu_uuid", gpu)),
                    rows.parse_int("profile", profile),
                    rows.parse_int("start", start),
                )
                for gpu, profile, start in connection.execute(_CREATED_IDS)
            )

    def orphaned_partitions(self) -> tuple[OrphanedPartition, ...]:
        """Partitions that this driver created and whose claim is no longer in the journal."""
        with self._reading("list orphaned partitions") as connection:
            return tuple(rows.orphaned_partitions(connection.execute(rows.SELECT_ORPHANED)))

    def forget_orphaned_partition(self, orphan: OrphanedPartition) -> None:
        """Record that the partition was destroyed, or belongs to a claim that shares it; durable. Does nothing when its
        own claim has it (again)."""
        with self._writing("remove an orphaned partition", durable=True) as connection:
            if orphan in tuple(rows.orphaned_partitions(connection.execute(rows.SELECT_ORPHANED))):
                self._hand_over(connection, orphan.uid)
                connection.execute("DELETE FROM mig WHERE uid = ? AND position = ?", (orphan.uid, orphan.position))
                self._write_backups_best_effort(connection, (orphan.partition.id.gpu_uuid,))

    @staticmethod
    def _hand_over(connection: sqlite3.Connection, uid: ClaimUid) -> None:
        """Record a claim that shares a partition as its creator, for each partition created for ``uid``."""
        for position, *place in connection.execute(_CREATED_OF_CLAIM, (uid,)).fetchall():
            heir = connection.execute(_HEIR, (*place, uid)).fetchone()
            if heir is not None:  # in this order: one row has created a partition (index ``made_once``)
                connection.execute(_SET_MADE, (0, uid, position))
                connection.execute(_SET_MADE, (1, *heir))

    @property
    def rebuild_pending(self) -> bool:
        """Return whether the file is new and may lack the claims prepared before it."""
        with self._reading("read a note") as connection:
            return is_pending(connection)

    def note_rebuilt(self) -> None:
        """Record that the journal is complete."""
        with self._writing("write a note", durable=True) as connection:
            connection.execute("DELETE FROM note WHERE key = ?", (REBUILD,))

    def restore_from_backups(self) -> None:
        """Read the backups into a journal that must be rebuilt; otherwise do nothing. Idempotent: existing rows stay.

        Partitions stay orphaned until their claims are adopted. Partitions of an earlier boot are skipped: they no
        longer exist, and another instance may be in their place.
        """
        if not self.rebuild_pending:
            return
        with self._writing("restore from backups", durable=True) as connection:
            if is_pending(connection):  # another process may have restored them
                for backup in self._backups.read():
                    notes = [{"gpu_uuid": backup.gpu, **asdict(note)} for note in backup.notes]
                    connection.executemany(_KEEP_NOTE, notes)
                    if not self.boot_id or backup.boot_id in ("", self.boot_id):
                        found = ((saved.orphan, saved.device) for saved in backup.partitions)
                        parts = [rows.mig_row(each.uid, each.position, name, each.partition) for each, name in found]
                        connection.executemany(_KEEP_PARTITION, parts)

    def names_of(self, uids: Collection[ClaimUid]) -> dict[ClaimUid, ClaimRef]:
        """The claims among ``uids`` whose names are recorded outside this file, with or without an entry."""
        return self._names.find(uids)

    def write_all_backups(self) -> None:
        """Make the backups equal to the journal. Raises `StorageError`.

        Does nothing while a rebuild is pending: the backups may then hold more than the journal.
        """
        with self._writing("write backups", durable=False) as connection:
            if is_pending(connection):
                return
            query = "SELECT gpu_uuid FROM mig WHERE made = 1 UNION SELECT gpu_uuid FROM gpu_note"
            gpus = [GpuUuid(rows.parse_text("gpu_uuid", gpu)) for (gpu,) in connection.execute(query)]
            self._write_backups(connection, gpus)
            self._backups.keep_only(gpus)
            self._write_names(connection)

    def _write_names(self, connection: sqlite3.Connection) -> None:
        """Names of all claims; the name of a deleted claim stays while a partition of it exists."""
        claims = [rows.claim_ref(row) for row in connection.execute("SELECT uid, namespace, name FROM claim")]
        left = {rows.parse_uid(uid) for (uid,) in connection.execute("SELECT uid FROM mig WHERE made = 1")}
        self._names.keep(claims, left)

    def _write_backups(self, connection: sqlite3.Connection, gpus: Iterable[GpuUuid]) -> None:
        """Inside a transaction, which fails with it. Raises `StorageError`."""
        for gpu in sorted(set(gpus)):
            self._backups.write(self._backup(connection, gpu))

    def _write_backups_best_effort(self, connection: sqlite3.Connection, gpus: Iterable[GpuUuid]) -> None:
        """Write backups after a release, which needs none; `write_all_backups` corrects a failure."""
        try:
            self._write_backups(connection, gpus)
        except StorageError as error:
            log.warning("cannot write a GPU state backup; the next start writes it", extra={"reason": str(error)})

    def _backup(self, connection: sqlite3.Connection, gpu: GpuUuid) -> backups.GpuStateBackup:
        notes = connection.execute("SELECT key, value, boot_id FROM gpu_note WHERE gpu_uuid = ? ORDER BY key", (gpu,))
        created = connection.execute(_CREATED, (gpu,)).fetchall()
        return backups.GpuStateBackup(
            gpu=gpu,
            boot_id=self.boot_id,
            notes=tuple(
                backups.NoteBackup(
                    key=rows.parse_text("key", row["key"]),
                    value=rows.parse_text("value", row["value"]),
                    boot_id=rows.parse_text("boot_id", row["boot_id"]),
                )
                for row in notes.fetchall()
            ),
            partitions=tuple(
                backups.PartitionBackup(orphan=orphan, device=DeviceName(rows.parse_text("device", row["mig_device"])))
                for row, orphan in zip(created, rows.orphaned_partitions(created), strict=True)
            ),
        )


def is_pending(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM note WHERE key = ?", (REBUILD,)).fetchone() is not None
