"""Read a journal and its backups without changing them, with or without a running node process."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.entry import AssignedDevice, Entry, OrphanedPartition, State
from dra_driver.node.claims.journal import rows
from dra_driver.node.claims.journal.backups import NAMES_FILE, ClaimNames, GpuStateBackup, GpuStateBackups
from dra_driver.node.claims.journal.file import FAILURES, REBUILD, storage_error
from dra_driver.node.claims.journal.gpu_notes import BACKUPS_FOLDER
from dra_driver.node.claims.journal.schema import SCHEMA_VERSION
from dra_driver.node.claims.processes import BOOT_ID, living_runs, read_boot_id

MOST_BYTES: Final = 256 * 2**20
"""The journal of a node has some hundred KiB and a log of 2 MiB; larger files are not copied."""
_BUSY_S: Final = 5.0
_TABLES: Final = frozenset(("claim", "device", "mig", "sharing", "gpu_note", "note"))


class GpuNote(Struct, frozen=True, kw_only=True):
    """A GPU setting that this driver changed, and the boot in which it did."""

    gpu: GpuUuid
    key: str
    value: str
    boot_id: str


class JournalContent(Struct, frozen=True, kw_only=True):
    """The content of a journal. ``rebuild_pending``: it is new, and claims prepared before it may be missing."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[GpuNote, ...] = ()
    orphans: tuple[OrphanedPartition, ...] = ()
    rebuild_pending: bool = False


def read_journal(path: Path, *, in_use: bool) -> JournalContent | None:
    """Read the journal; None when it does not exist.

    ``in_use``: a node process has it open. Otherwise a copy is read: opening the file itself would merge its log.
    Raises StorageError when it is damaged or cannot be read, and ConfigurationError when a newer version wrote it.
    """
    try:
        if not path.exists():
            return None
        with _at(path, in_use=in_use) as place:
            return _read(place)
    except FAILURES as error:
        raise storage_error(path, "read", error) from error
    except OSError as error:
        raise StorageError(f"cannot read the journal {path}: {error.strerror or error}") from error


def read_backups(plugin_dir: Path) -> tuple[GpuStateBackup, ...]:
    """Read the GPU state backups. A backup that cannot be read is logged and skipped."""
    return tuple(GpuStateBackups(plugin_dir / BACKUPS_FOLDER).read())


def read_names(plugin_dir: Path, uids: frozenset[ClaimUid]) -> dict[ClaimUid, ClaimRef]:
    """Return the claims among ``uids`` whose names are recorded next to the journal."""
    return ClaimNames(plugin_dir / NAMES_FILE).find(uids)


@contextlib.contextmanager
def _at(path: Path, *, in_use: bool) -> Iterator[Path]:
    if in_use:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as folder:
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            with contextlib.suppress(FileNotFoundError):
                if source.stat().st_size > MOST_BYTES:
                    raise StorageError(f"{source} is larger than {MOST_BYTES} bytes, which no journal is")
                shutil.copyfile(source, Path(folder, path.name + suffix))
        yield Path(folder, path.name)


def _read(path: Path) -> JournalContent:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_S)
    with contextlib.closing(connection):
        connection.text_factory = bytes.decode
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"the journal was written by a newer version of the driver (schema {version}, this one knows "
                f"{SCHEMA_VERSION}): use that version"
            )
        (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != "ok":
            raise rows.corruption(str(problem))
        if not _TABLES.issubset(name for (name,) in connection.execute("SELECT name FROM sqlite_schema")):
            raise rows.corruption("tables are missing")
        notes = connection.execute("SELECT gpu_uuid, key, value, boot_id FROM gpu_note ORDER BY gpu_uuid, key")
        return JournalContent(
            entries=tuple(rows.entries(connection.execute(rows.SELECT + rows.BY_POSITION))),
            notes=tuple(_note(row) for row in notes),
            orphans=tuple(rows.orphaned_partitions(connection.execute(rows.SELECT_ORPHANED))),
            rebuild_pending=connection.execute("SELECT 1 FROM note WHERE key = ?", (REBUILD,)).fetchone() is not None,
        )


def _note(row: sqlite3.Row) -> GpuNote:
    gpu, key, value, boot_id = (rows.parse_text(name, row[name]) for name in ("gpu_uuid", "key", "value", "boot_id"))
    return GpuNote(gpu=GpuUuid(gpu), key=key, value=value, boot_id=boot_id)
