"""The journal: which claims this node has prepared or is at, durable and shared by overlapping node processes.

Owns every read and write of the entries and the rule that no device is held twice. Refuses to know CDI, the API server
and when to do what: `prepare`, `unprepare` and `recover` do.

Durability: what was answered to the kubelet (``finish``, ``forget``) is synced to disk before the call returns, one
sync per claim. ``begin`` and ``start_unprepare`` are not synced unless asked: they survive the death of the process,
which is what they are for, and the sync of the step after them covers them. Where a step in between changes hardware
in a way that outlives a power cut, ``durable=True`` pays for a second sync.

One connection with a lock instead of one per thread: SQLite has one writer anyway, a read takes 20 us, and every
connection would keep a cache and file handles of its own.
"""

import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.claims import journal_rows as rows
from dra_driver.claims.entry import Attempt, Blocked, Entry, HeldDevice, OwnerId, State
from dra_driver.claims.journal_file import (
    BUSY_TIMEOUT_S,
    FAILURES,
    REBUILD,
    OpenJournal,
    is_damage,
    open_database,
    storage_error,
)
from dra_driver.errors import StorageError
from dra_driver.model.claim import ClaimRef
from dra_driver.model.ids import ClaimUid

# Looked up through the partial index, which holds no device given with admin access: a node full of monitoring claims
# makes no prepare slower. An exclusive holding meets every other; a share meets the exclusive one and itself.
_HOLDERS = """
SELECT DISTINCT uid FROM device
WHERE admin = 0 AND pool = ?1 AND device = ?2 AND uid <> ?4 AND (?3 = '' OR share_id IN ('', ?3))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much is in the journal."""

    claims: int
    devices: int


class Journal:
    """One open journal. Thread-safe; several processes may have the same file open.

    Every method raises `StorageError` when the file cannot be read or written, having changed nothing, and may then be
    called again. Waits are bounded: at most 10 s for another thread and 10 s for another process.
    """

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        self._path = path
        self._connection = opened.connection
        self._files = opened.files
        self.set_aside = opened.set_aside
        """Where a damaged predecessor was moved, None when there was none."""
        self.boot_id = boot_id
        self.owner = owner
        self._now = now
        # Guards the connection; re-entrant so that reads work inside ``exclusive``.
        self._lock = threading.RLock()
        self._attempts = itertools.count(1)
        self._synced = True
        self._damaged = False

    @classmethod
    def open(cls, path: Path | str, *, boot_id: str, owner: OwnerId, now: Callable[[], float] = time.time) -> "Journal":
        """Open or make the journal; see `journal_file.open_database` for errors and what happens to a damaged one.

        ``boot_id`` is the kernel's id of this boot, '' when unknown.
        """
        path = Path(path)
        return cls(path, open_database(path, now), boot_id=boot_id, owner=owner, now=now)

    def close(self) -> None:
        """Close the file. Idempotent; other methods raise StorageError afterwards."""
        with self._lock:
            self._connection.close()

    @property
    def damaged(self) -> bool:
        """Whether damage was met since opening: only a restart of the process helps, which rebuilds the file."""
        return self._damaged

    @property
    def problem(self) -> str | None:
        """Why only a restart of the process helps, None while nothing of that kind is known. Cheap; never raises."""
        if self._damaged:
            return f"the journal {self._path} is damaged: restart the node process, which rebuilds it"
        displaced = self._files.displaced()
        if displaced is None:
            return None
        return (
            f"the journal's file {displaced} was removed or replaced while it was in use, so what is noted now is lost "
            "with this process: restart the node process, which rebuilds the journal"
        )

    def entry(self, uid: ClaimUid) -> Entry | None:
        """The claim's entry, None when there is none."""
        with self._reading("look up a claim") as connection:
            return next(
                rows.entries(connection.execute(f"{rows.SELECT} WHERE c.uid = ? {rows.BY_POSITION}", (uid,))), None
            )

    def entries(self) -> tuple[Entry, ...]:
        """All entries, by UID. For start, collection and people, not for calls: it grows with the number of claims."""
        with self._reading("list claims") as connection:
            return tuple(rows.entries(connection.execute(rows.SELECT + rows.BY_POSITION)))

    def uids(self) -> frozenset[ClaimUid]:
        """UIDs of all entries."""
        with self._reading("list claims") as connection:
            return frozenset(rows.uid(uid) for (uid,) in connection.execute("SELECT uid FROM claim"))

    def counts(self) -> Counts:
        """How many claims and devices are in the journal, for metrics."""
        with self._reading("count claims") as connection:
            query = "SELECT (SELECT count(*) FROM claim), (SELECT count(*) FROM device)"
            claims, devices = connection.execute(query).fetchone()
            return Counts(claims=claims, devices=devices)

    def begin(self, ref: ClaimRef, devices: Sequence[HeldDevice], *, durable: bool = False) -> Attempt | Blocked:
        """Note the intent to prepare ``ref`` and take its devices, or tell who is in the way.

        The check and the note are one transaction: of two processes that begin at once one is blocked. That only holds
        where both have the same file, so nothing begins in one that is not in its place any more; what was begun before
        can be finished and undone.
        """
        if problem := self.problem:
            raise StorageError(f"claim {ref} cannot be noted: {problem}")
        with self._writing("begin a claim", durable=durable) as connection:
            blockers = self._blockers(connection, ref.uid, devices)
            if blockers:
                return Blocked(by=blockers)
            return self._insert(connection, ref, devices, State.PREPARING)

    def finish(self, uid: ClaimUid, attempt: Attempt) -> bool:
        """Note that the claim is prepared; durable on return. False when the entry is not this attempt's any more."""
        with self._writing("finish a claim", durable=True) as connection:
            return self._change(
                connection,
                "UPDATE claim SET state = 'prepared', changed_at = ? "
                "WHERE uid = ? AND owner = ? AND attempt = ? AND state = 'preparing'",
                (self._now(), uid, attempt.owner, attempt.number),
            )

    def start_unprepare(self, uid: ClaimUid, *, only: Attempt | None = None, durable: bool = False) -> Attempt | None:
        """Note that the claim is being undone, taking the entry over from whoever had it.

        None without an entry, and with ``only`` when the entry is another attempt's by now.
        """
        with self._writing("begin to unprepare a claim", durable=durable) as connection:
            attempt = self._next_attempt()
            changed = self._change(
                connection,
                "UPDATE claim SET state = 'unpreparing', owner = ?, attempt = ?, changed_at = ? "
                "WHERE uid = ? AND (? IS NULL OR (owner = ? AND attempt = ?))",
                (attempt.owner, attempt.number, self._now(), uid)
                + ((only.owner, only.owner, only.number) if only else (None, None, None)),
            )
            return attempt if changed else None

    def forget(self, uid: ClaimUid, attempt: Attempt) -> bool:
        """Remove the entry and free its devices; durable. False when the entry is not this attempt's any more."""
        with self._writing("forget a claim", durable=True) as connection:
            return self._change(
                connection,
                "DELETE FROM claim WHERE uid = ? AND owner = ? AND attempt = ?",
                (uid, attempt.owner, attempt.number),
            )

    def adopt(self, ref: ClaimRef, devices: Sequence[HeldDevice]) -> Blocked | None:
        """Note a claim as prepared that another journal had noted; Blocked when this one says otherwise."""
        with self._writing("adopt a claim", durable=True) as connection:
            blockers = self._blockers(connection, ref.uid, devices)
            if blockers:
                return Blocked(by=blockers)
            self._insert(connection, ref, devices, State.PREPARED)
            return None

    def drop_older_boots(self) -> tuple[ClaimUid, ...]:
        """Remove entries of earlier boots and return their UIDs; nothing when this boot's id is unknown."""
        if not self.boot_id:
            return ()
        with self._writing("drop claims of an earlier boot", durable=True) as connection:
            older = connection.execute(
                "DELETE FROM claim WHERE boot_id NOT IN ('', ?) RETURNING uid", (self.boot_id,)
            ).fetchall()
            return tuple(sorted(rows.uid(uid) for (uid,) in older))

    @property
    def rebuild_pending(self) -> bool:
        """Whether the file is new and nobody has found out yet what was prepared before."""
        with self._reading("read a note") as connection:
            return connection.execute("SELECT 1 FROM note WHERE key = ?", (REBUILD,)).fetchone() is not None

    def note_rebuilt(self) -> None:
        """The journal is complete."""
        with self._writing("write a note", durable=True) as connection:
            connection.execute("DELETE FROM note WHERE key = ?", (REBUILD,))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Inside, no thread and no process begins, finishes or forgets a claim; reads of this thread go on working.

        For decisions of the kind "this claim has no entry, so its file goes", which another process must not overtake.
        """
        with self._writing("lock", durable=False):
            yield

    def tidy(self) -> None:
        """Move what the log holds into the file, so that no call has to. Does nothing while another process reads."""
        with self._reading("tidy up") as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _blockers(
        self, connection: sqlite3.Connection, uid: ClaimUid, devices: Sequence[HeldDevice]
    ) -> tuple[Entry, ...]:
        own = self.entry(uid)
        if own is not None:
            return (own,)
        holders: dict[ClaimUid, None] = {}
        for held in devices:
            if not held.admin_access:
                found = connection.execute(_HOLDERS, (held.pool, held.device, held.share_id or "", uid))
                holders.update((rows.uid(holder), None) for (holder,) in found)
        entries = (self.entry(holder) for holder in holders)
        return tuple(entry for entry in entries if entry is not None)

    def _insert(
        self, connection: sqlite3.Connection, ref: ClaimRef, devices: Sequence[HeldDevice], state: State
    ) -> Attempt:
        attempt = self._next_attempt()
        connection.execute(
            "INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (ref.uid, ref.namespace, ref.name, state, attempt.owner, attempt.number, self.boot_id, self._now()),
        )
        connection.executemany(
            "INSERT INTO device VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (ref.uid, i, d.request, d.pool, d.device, d.share_id or "", int(d.admin_access), d.gpu_uuid)
                for i, d in enumerate(devices)
            ],
        )
        return attempt

    def _next_attempt(self) -> Attempt:
        return Attempt(owner=self.owner, number=next(self._attempts))

    @staticmethod
    def _change(connection: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> bool:
        return connection.execute(statement, values).rowcount == 1

    @contextlib.contextmanager
    def _reading(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._translated(doing), self._locked(doing):
            yield self._connection

    @contextlib.contextmanager
    def _writing(self, doing: str, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._translated(doing), self._locked(doing):
            self._sync_commits(durable)
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _sync_commits(self, durable: bool) -> None:
        if durable != self._synced:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synced = durable

    @contextlib.contextmanager
    def _locked(self, doing: str) -> Iterator[None]:
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise StorageError(
                f"cannot {doing} in the journal {self._path}: another call has waited for the disk for more than "
                f"{BUSY_TIMEOUT_S:g} s; look at the node's disk"
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            # SQLITE_ERROR at this point is "no such table": somebody else's file is in place of ours.
            found = storage_error(self._path, doing, error)
            if is_damage(error):
                self._damaged = True
                raise found from error
            raise StorageError(f"{found}; it is tried again") from error
