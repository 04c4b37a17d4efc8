"""One open journal file: connection, locking between threads, durability of commits, and SQLite's errors.

One connection with a lock, not one per thread: SQLite has one writer anyway, a read takes 20 us, and each connection
would need its own cache and file handles.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from dra_driver.core.errors import StorageError
from dra_driver.node.claims.entry import OwnerId
from dra_driver.node.claims.journal.file import (
    BUSY_TIMEOUT_S,
    FAILURES,
    OpenJournal,
    is_corruption,
    open_database,
    storage_error,
)


class Database:
    """The base of `journal.Journal`. Thread-safe; several processes may have the same file open.

    Every method raises `StorageError` when the file cannot be read or written. Nothing is changed then, and the call
    may be repeated. A call waits at most 10 s for another thread and 10 s for another process.
    """

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        self._path = path
        self._connection = opened.connection
        self._files = opened.files
        self.set_aside = opened.set_aside
        """Where a damaged file was moved when the journal was opened, or None."""
        self.boot_id = boot_id
        self.owner = owner
        self._now = now
        # Guards the connection; re-entrant so that reads work inside ``exclusive``.
        self._lock = threading.RLock()
        self._synced = True
        self._damaged = False

    @classmethod
    def open(cls, path: Path | str, *, boot_id: str, owner: OwnerId, now: Callable[[], float] = time.time) -> Self:
        """Open or create the journal; `file.open_database` describes errors and damaged files.

        ``boot_id`` is the kernel's id of this boot, "" when unknown.
        """
        path = Path(path)
        return cls(path, open_database(path, now), boot_id=boot_id, owner=owner, now=now)

    def close(self) -> None:
        """Close the file. Idempotent; other methods raise StorageError afterwards."""
        with self._lock:
            self._connection.close()

    @property
    def problem(self) -> str | None:
        """A problem that only a restart of the process solves, or None. Cheap; never raises."""
        if self._damaged:
            return f"the journal {self._path} is damaged: restart the node process, which rebuilds it"
        displaced = self._files.displaced()
        if displaced is None:
            return None
        return (
            f"the journal's file {displaced} was removed or replaced while it was in use, so changes since then are "
            "lost when this process ends: restart the node process, which rebuilds the journal"
        )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Inside, no thread and no process begins, finishes or forgets a claim; this thread can still read.

        For decisions such as "this claim has no entry, so its file is removed", which another process must not
        overtake.
        """
        with self._writing("lock", durable=False):
            yield

    def tidy(self) -> None:
        """Checkpoint the write-ahead log, so that no call has to. Does nothing while another process reads."""
        with self._reading("tidy up") as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

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
            # SQLITE_ERROR at this point is "no such table": the file was replaced by another database.
            found = storage_error(self._path, doing, error)
            if is_corruption(error):
                self._damaged = True
                raise found from error
            raise StorageError(f"{found}; it is tried again") from error
