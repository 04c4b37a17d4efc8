"""The journal's file: private, versioned, and replaced when it is damaged."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from dra_driver.claims.entry import Attempt, OwnerId
from dra_driver.claims.journal import Journal
from dra_driver.claims.journal_file import SCHEMA_VERSION
from dra_driver.errors import ConfigurationError, StorageError
from tests.fakes.claims import ref, uid
from tests.unit.claims.test_journal import held, prepared


def open_at(path: Path, at: float = 1700000000.0) -> Journal:
    return Journal.open(path, boot_id="boot-1", owner=OwnerId("run-1"), now=lambda: at)


def filled(path: Path, claims: int = 1) -> None:
    """A journal with some entries, closed."""
    journal = open_at(path)
    journal.note_rebuilt()
    for number in range(claims):
        prepared(journal, number, held(number))
    journal.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Which pod uses which GPU is nobody else's business, whatever the umask says; the log file beside it included."""
    path = tmp_path / "made" / "state.db"
    before = os.umask(0)
    try:
        journal = open_at(path)
        prepared(journal, 1)
    finally:
        os.umask(before)
    assert mode(path.parent) == 0o700
    assert mode(path) == mode(path.with_name("state.db-wal")) == 0o600
    journal.close()


def test_it_is_synced_and_logs_ahead(tmp_path: Path) -> None:
    """What the promises rest on, seen from outside: write-ahead logging, and the schema's version."""
    path = tmp_path / "state.db"
    filled(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_no_process_can_hold_a_device_twice_whatever_it_does(tmp_path: Path) -> None:
    """The rule is in the database, not only in the code that asks first."""
    path = tmp_path / "state.db"
    filled(path)
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT * FROM device").fetchone()
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO device VALUES (?, 1, ?, ?, ?, ?, ?, ?)", (row[0], *row[2:]))
    connection.close()


def damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database" + path.read_bytes()[19:])


def damage_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def drop_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE device")
    connection.close()


def foreign_database(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE claim (x)")
    connection.close()


@pytest.mark.parametrize("damage", [damage_header, damage_content, drop_table, foreign_database])
def test_a_damaged_file_is_moved_aside_and_a_new_one_works(damage: object, tmp_path: Path) -> None:
    """A bad disk block must not keep a node from working; the old file stays for whoever wants to look."""
    path = tmp_path / "state.db"
    filled(path, 3)
    assert callable(damage)
    damage(path)
    was = path.read_bytes()
    journal = open_at(path)
    assert journal.set_aside == tmp_path / "state.db.damaged-20231114T221320Z"
    assert journal.set_aside.read_bytes()[100:] == was[100:]  # opening may touch a database's header
    assert journal.entries() == ()
    assert journal.rebuild_pending
    assert isinstance(journal.begin(ref(1), [held()]), Attempt)
    journal.close()


def test_a_truncated_file_is_damage_too(tmp_path: Path) -> None:
    """A file cut in the middle by a crashed disk is replaced; one cut to nothing is a new journal."""
    path = tmp_path / "state.db"
    filled(path, 3)
    os.truncate(path, 5000)
    journal = open_at(path)
    assert journal.set_aside is not None
    journal.close()
    os.truncate(path, 0)
    journal = open_at(path)
    assert journal.rebuild_pending
    journal.close()


def test_only_the_newest_damaged_files_are_kept(tmp_path: Path) -> None:
    """A disk that damages every file must not fill up with copies."""
    path = tmp_path / "state.db"
    for day in range(5):
        path.write_bytes(b"no database at all" * 300)
        open_at(path, 1700000000.0 + day * 86400).close()
    assert [kept.name for kept in sorted(tmp_path.glob("*.damaged-*"))] == [
        f"state.db.damaged-2023111{day}T221320Z" for day in (6, 7, 8)
    ]


def test_damage_met_later_is_said_and_remembered(tmp_path: Path) -> None:
    """The process goes on answering with a sentence, and its liveness can ask for the restart that repairs."""
    path = tmp_path / "state.db"
    filled(path)
    journal = open_at(path)
    assert not journal.damaged
    drop_table(path)
    with pytest.raises(StorageError, match="restart the node process, which rebuilds it"):
        journal.entries()
    assert journal.damaged
    journal.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A downgrade must not throw away what the newer version knows; the sentence says what to do."""
    path = tmp_path / "state.db"
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match=r"newer version of the driver \(schema 99"):
        open_at(path)
    assert list(tmp_path.glob("*.damaged-*")) == []


def test_a_directory_that_cannot_be_made_is_an_error_for_users(tmp_path: Path) -> None:
    """The sentence names the path and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot open the journal .*state.db: (file exists|not a directory)"):
        open_at(tmp_path / "file" / "state.db")


def test_a_lock_held_too_long_by_another_process_is_an_error_for_users(tmp_path: Path) -> None:
    """SQLite's busy answer becomes a sentence, and nothing is changed."""
    path = tmp_path / "state.db"
    filled(path)
    journal = open_at(path)
    journal._connection.execute("PRAGMA busy_timeout = 1")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="another process has kept it locked"):
        journal.begin(ref(7), [held(7)])
    blocker.execute("ROLLBACK")
    assert journal.entry(uid(7)) is None
    assert isinstance(journal.begin(ref(7), [held(7)]), Attempt)
    blocker.close()
    journal.close()
