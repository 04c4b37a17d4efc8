"""Open, check and access the journal's file; set it aside when it is damaged.

A damaged file is renamed, and a new journal begins with the note that it must be rebuilt, as every new file does. One
connection with a lock serves all threads: SQLite has one writer at a time, and a read takes 20 us. Write-ahead logging
works for processes in different containers, because they share the host's kernel and page cache.
"""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import lock_file
from dra_driver.node.claims.entry import OwnerId
from dra_driver.node.claims.journal import rows
from dra_driver.node.claims.journal.schema import ADDED, ADDED_NAMES, SCHEMA, SCHEMA_VERSION

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 15.0
REBUILD = "rebuild-pending"
_KEPT_DAMAGED = 3
_LOG_BYTES = 2 * 2**20
"""Size of the write-ahead log."""
# Versions count up from 1. A version beyond this is damage and not that of a newer driver.
_HIGHEST_PLAUSIBLE_VERSION = 100

FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading and writing. Python decodes SQLite's texts and its error messages, which quote the file's
content; when the content is damaged, decoding fails."""

_ADVICE = {
    sqlite3.SQLITE_FULL: "the file system is full: free space there",
    sqlite3.SQLITE_READONLY: "it is read-only: mount the plugin directory writable into the node process",
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for more than {BUSY_TIMEOUT_S:g} s",
    sqlite3.SQLITE_IOERR: "the disk reports an I/O error (full or failing): check df and the kernel log",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: it must be a file or missing, in a writable directory",
    sqlite3.SQLITE_PERM: "permission is denied: the node process must run as root, or own the plugin directory",
    sqlite3.SQLITE_ERROR: "its tables are not this driver's: restart the node process, which rebuilds it",
    **dict.fromkeys(
        (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT),
        "it is damaged: restart the node process, which rebuilds it",
    ),
}
# A constraint can only be violated when an index and its table differ: every insert checks before, in the same
# transaction.
_CORRUPTION = frozenset(
    (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
)


class OpenJournal(Struct, frozen=True, kw_only=True):
    """An open connection, and the path to which a damaged file was moved, or None."""

    connection: sqlite3.Connection
    set_aside: Path | None
    files: "OpenFiles"


class OpenFiles:
    """The files that the connection has open: the journal and SQLite's files next to it. Immutable and thread-safe.

    SQLite keeps using files that were removed or moved, and no other process ever sees its writes there. SQLite does
    not replace its files while a process has the database open.
    """

    def __init__(self, path: Path) -> None:
        beside = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
        self._known = {each: found for each in beside if (found := _identity(each))}

    def displaced(self) -> Path | None:
        """Return the first file that was removed or replaced; None when none was, or none can be checked."""
        try:
            return next((path for path, known in self._known.items() if _identity(path) != known), None)
        except OSError:
            return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def open_database(path: Path, now: Callable[[], float]) -> OpenJournal:
    """Open the journal at ``path``; create it and its directory (0700) when missing.

    Raises `StorageError` when the file system refuses, and `ConfigurationError` when a newer version of the driver
    wrote the file. A crash leaves a complete file or none.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opening(path):
            return _open_or_replace(path, now)
    except OSError as error:
        raise StorageError(
            f"cannot open the journal {path}: {(error.strerror or str(error)).lower()}; "
            "check the plugin directory's path, permissions and free space",
            reason="JournalNotOpened",
        ) from error


def storage_error(path: Path, doing: str, error: Exception) -> StorageError:
    """Translate one of `FAILURES`."""
    advice = _ADVICE.get(primary_code(error), str(error))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StorageError(f"cannot {doing} in the journal {path}: {advice} ({name})", reason="JournalUnusable")


def primary_code(error: Exception) -> int:
    """SQLite's primary result code; -1 when Python's module itself raised."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else int(code) & 0xFF


def is_corruption(error: Exception) -> bool:
    """Return whether the file's content caused the error, so that a retry does not help."""
    return primary_code(error) in _CORRUPTION


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        fd = lock_file(path.with_name(path.name + ".lock"), timeout_s=OPEN_TIMEOUT_S)
    except BlockingIOError as error:
        raise StorageError(
            f"cannot open the journal {path}: another process has been opening it for {OPEN_TIMEOUT_S:g} s; "
            "end it (look for a second node process) and start again"
        ) from error
    try:
        yield
    finally:
        os.close(fd)


def _open_or_replace(path: Path, now: Callable[[], float]) -> OpenJournal:
    try:
        return _opened(path, set_aside=None)
    except FAILURES as error:
        if not is_corruption(error) and not _header_forbids_writing(path, error):
            raise storage_error(path, "read entries", error) from error
        reason = str(error)
    aside = _set_aside(path, now())
    log.error(
        "journal is damaged; starting a new one that will be rebuilt",
        extra={"path": str(path), "kept_as": str(aside), "reason": reason},
    )
    try:
        return _opened(path, set_aside=aside)
    except FAILURES as error:
        raise storage_error(path, "start from scratch", error) from error


def _opened(path: Path, set_aside: Path | None) -> OpenJournal:
    connection = _open(path)
    return OpenJournal(connection=connection, set_aside=set_aside, files=OpenFiles(path))


def _header_forbids_writing(path: Path, error: Exception) -> bool:
    # One byte of the header says whether SQLite may write. The kernel says so for file systems, modes and attributes.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return writable and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY


def _open(path: Path) -> sqlite3.Connection:
    _create_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _configure(connection, path)
        _check_schema(connection, path)
        _fill_log(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _fill_log(connection: sqlite3.Connection, path: Path) -> None:
    """Give the write-ahead log its final size, in zeros, so that commits write in place. Best effort.

    A commit that extends the file makes the file system write its own journal too: twice the time of a sync. SQLite
    finds the end of the log by checksums (sqlite.org/fileformat2.html, 4.1). Only the holder of a transaction may write
    to it.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        # No lock of SQLite is on this file, so closing it releases none.
        descriptor = os.open(f"{path}-wal", os.O_WRONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            os.pwrite(descriptor, bytes(max(0, _LOG_BYTES - size)), size)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.debug("the journal's log grows as it is written", extra={"path": str(path), "reason": str(error)})
    finally:
        connection.execute("ROLLBACK")


def _create_private(path: Path) -> None:
    # Never opens an existing file: closing any descriptor of a file drops all POSIX locks which this process has on
    # it, SQLite's included. The files beside it (-wal, -shm) get its mode from SQLite.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def _configure(connection: sqlite3.Connection, path: Path) -> None:
    # As the module does, but its own error is an OperationalError without a code.
    connection.text_factory = bytes.decode
    connection.row_factory = sqlite3.Row  # columns by name, see `schema`
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        # The file system has no shared memory maps. Slower, and as safe.
        log.warning("journal runs without write-ahead logging", extra={"path": str(path), "mode": mode})
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # A claim writes about five pages twice, so 500 pages are fifty claims between two checkpoints in a call; others
    # happen in `Journal.tidy`, outside of calls. The log stays below `_LOG_BYTES` nearly always.
    connection.execute("PRAGMA wal_autocheckpoint = 500")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    connection.execute("PRAGMA cache_size = -512")  # KiB; the whole journal of a node fits


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= _HIGHEST_PLAUSIBLE_VERSION:
        raise rows.corruption(f"the schema's version is {version}")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the journal {path} was written by a newer version of the driver (schema {version}, this one knows "
            f"{SCHEMA_VERSION}); install that version again, or drain the node and delete the file",
            reason="NewerSchema",
        )
    if version == 0:
        connection.executescript(SCHEMA)  # fails on a file with foreign tables, which is then moved aside
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not names.issuperset(ADDED_NAMES):
        connection.executescript(ADDED)
    _check_content(connection)


def _check_content(connection: sqlite3.Connection) -> None:
    """Read everything once as it will be read later, so that damage is found here, where it can be repaired."""
    (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if problem != "ok":
        raise rows.corruption(str(problem))
    # A device without its claim would be blocked forever.
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise rows.corruption("a device has no claim")
    for _ in rows.entries(connection.execute(rows.SELECT + rows.BY_POSITION)):
        pass
    for _ in rows.orphaned_partitions(connection.execute(rows.SELECT_ORPHANED)):
        pass
    for note in connection.execute("SELECT gpu_uuid, key, value, boot_id FROM gpu_note"):
        for column in note:
            rows.parse_text("of a GPU's note", column)
    if connection.execute("SELECT 1 FROM note WHERE key <> ? LIMIT 1", (REBUILD,)).fetchone() is not None:
        raise rows.corruption("table note has a key that this driver never wrote")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")  # fails on a file that can only be read
    connection.execute("ROLLBACK")


def _set_aside(path: Path, now_s: float) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("-wal", "-shm", ""):  # the main file last: until then the next start finds the damage again
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    kept = sorted(path.parent.glob(f"{path.name}.damaged-*Z"))
    for old in kept[:-_KEPT_DAMAGED]:
        for suffix in ("", "-wal", "-shm"):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
    return target


class Database:
    """The base of `journal.Journal`. Thread-safe; several processes may have the same file open.

    Every method raises `StorageError` when the file cannot be read or written. It then changes nothing, and can be
    repeated. A call waits at most 10 s for another thread and 10 s for another process.
    """

    def __init__(
        self, path: Path, opened: OpenJournal, *, boot_id: str, owner: OwnerId, now: Callable[[], float]
    ) -> None:
        self._path = path
        self._connection = opened.connection
        self._files = opened.files
        self.set_aside = opened.set_aside
        """The path to which a damaged file was moved when the journal was opened, or None."""
        self.boot_id = boot_id
        self.owner = owner
        self._now = now
        # Guards the connection; re-entrant so that reads work inside ``exclusive``.
        self._lock = threading.RLock()
        self._synced = True
        self._damaged = False

    @classmethod
    def open(cls, path: Path | str, *, boot_id: str, owner: OwnerId, now: Callable[[], float] = time.time) -> Self:
        """Open or create the journal, see `open_database`. ``boot_id`` is the kernel's id of this boot, "" when
        unknown."""
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
        """Keep all other threads and processes from beginning, finishing or removing a claim; this thread can still
        read.

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
                f"{BUSY_TIMEOUT_S:g} s; check the node's disk"
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
            raise StorageError(f"{found}; the driver retries", reason="JournalUnavailable") from error
