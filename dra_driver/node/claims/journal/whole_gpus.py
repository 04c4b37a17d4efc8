"""The journal's short ways for claims for whole GPUs in their present state: one durable transaction per call.

Such claims change no hardware, so no intent has to be durable before. Whatever is unusual (an entry of the claim, a
conflict, a note, a partition) leaves the claim to `journal.Journal.begin` and `start_unprepare`, which know what to do.
"""

import itertools
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dra_driver.core.errors import DraError, StorageError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.entry import AssignedDevice, AttemptToken, OwnerId, State
from dra_driver.node.claims.journal import rows
from dra_driver.node.claims.journal.file import OpenJournal
from dra_driver.node.claims.journal.gpu_notes import GpuNotesStore, is_pending

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
_STILL = "SELECT 1 FROM claim WHERE uid = ? AND owner = ? AND attempt = ? AND state = 'prepared'"


class WholeGpuStore(GpuNotesStore):
    """The part of the journal for claims that change no hardware. Thread-safe; errors and waits as in `Database`."""

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        super().__init__(path, opened, boot_id=boot_id, owner=owner, now=now)
        self._attempts = itertools.count(1)

    def unrecorded(self, uids: Collection[ClaimUid]) -> frozenset[ClaimUid]:
        """Those of ``uids`` that have no entry; none while a rebuild is pending, when an entry may be missing."""
        with self._reading("look up claims") as connection:
            if is_pending(connection):
                return frozenset()
            return frozenset(uid for uid in uids if not _finds(connection, _RECORDED, uid))

    def record_prepared(
        self, claims: Sequence[tuple[ClaimRef, Sequence[AssignedDevice]]]
    ) -> dict[ClaimUid, AttemptToken]:
        """Record claims for whole GPUs as prepared, those that nothing stands against; durable on return.

        The others are not in the answer and are not recorded. Two processes that record at once are kept apart by the
        transaction, as in `journal.Journal.begin`. Nothing is recorded in a file that was removed or replaced.
        """
        if problem := self.problem:
            raise StorageError(f"claims cannot be recorded: {problem}")
        with self._writing("record prepared claims", durable=True) as connection:
            found: dict[ClaimUid, AttemptToken] = {}
            for ref, devices in claims:
                if _is_free(connection, ref.uid, devices):
                    found[ref.uid] = self._insert(connection, ref, devices, State.PREPARED)
            return found

    def still_prepared(self, tokens: dict[ClaimUid, AttemptToken]) -> frozenset[ClaimUid]:
        """The claims whose entries are still those of `record_prepared`: no other run took them over."""
        with self._reading("look up claims") as connection:
            return frozenset(
                uid for uid, attempt in tokens.items() if _finds(connection, _STILL, uid, attempt.owner, attempt.number)
            )

    def forget_prepared(
        self, uids: Collection[ClaimUid], remove_file: Callable[[ClaimUid], object]
    ) -> frozenset[ClaimUid]:
        """Remove the files and entries of prepared claims for whole GPUs; durable on return. Returns these claims.

        ``remove_file`` is called inside the transaction: no other run can write the file of a claim whose entry is
        about to go. A claim whose file cannot be removed stays as it is.
        """
        with self._writing("forget prepared claims", durable=True) as connection:
            gone = frozenset(uid for uid in uids if _finds(connection, _PREPARED, uid) and _succeeds(remove_file, uid))
            connection.executemany("DELETE FROM claim WHERE uid = ?", [(uid,) for uid in gone])
            return gone

    def _insert(
        self, connection: sqlite3.Connection, ref: ClaimRef, devices: Sequence[AssignedDevice], state: State
    ) -> AttemptToken:
        """The rows of a claim and its devices, without details of partitions and sharing."""
        attempt = self._next_attempt()
        row = rows.claim_row(ref, state, attempt, boot_id=self.boot_id, changed_at=self._now())
        connection.execute(rows.INSERT_CLAIM, row)
        self._names.add(ref)
        connection.executemany(rows.INSERT_DEVICE, rows.device_rows(ref.uid, devices))
        return attempt

    def _next_attempt(self) -> AttemptToken:
        return AttemptToken(owner=self.owner, number=next(self._attempts))


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


def _succeeds(remove_file: Callable[[ClaimUid], object], uid: ClaimUid) -> bool:
    try:
        remove_file(uid)
    except DraError:
        return False  # the long way reports it
    return True
