"""The journal's file: private, versioned, and replaced when it is damaged."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ConfigurationError, DraError, StorageError
from dra_driver.node.claims.entry import AttemptToken, OwnerId
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.journal.schema import SCHEMA_VERSION
from tests.fakes.claims import gpu, ref, uid
from tests.fakes.node_process import memory_folder
from tests.fakes.stand_in import present
from tests.harness.raising import fails
from tests.unit.node.claims.test_journal import assigned, prepared


def open_at(path: Path, at: float = 1700000000.0, owner: str = "run-1") -> Journal:
    return Journal.open(path, boot_id="boot-1", owner=OwnerId(owner), now=lambda: at)


def filled(path: Path, claims: int = 1) -> None:
    """A journal with some entries, closed."""
    with closing(open_at(path)) as journal:
        journal.note_rebuilt()
        for number in range(claims):
            prepared(journal, number, assigned(number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a journal with one entry, closed."""
    filled(tmp_path / "state.db")
    return tmp_path / "state.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """The same, open."""
    with closing(open_at(path)) as journal:
        yield journal


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection, which commits each statement."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def is_set_aside(path: Path) -> bool:
    """Whether a start finds the file damaged. It begins a journal without entries then."""
    with closing(open_at(path)) as journal:
        assert journal.set_aside is None or journal.entries() == ()
        return journal.set_aside is not None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Which pod uses which GPU is private, whatever the umask; the log file beside it too."""
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


def test_it_uses_write_ahead_logging_and_has_a_version(path: Path) -> None:
    with database(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_database_refuses_a_second_assignment_of_a_device(path: Path) -> None:
    """The rule is in the database, not only in the code that checks first."""
    with database(path) as connection:
        row = connection.execute("SELECT * FROM device").fetchone()
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO device VALUES (?, 1, ?, ?, ?, ?, ?, ?)", (row[0], *row[2:]))


def damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database" + path.read_bytes()[19:])


def damage_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def drop_table(path: Path) -> None:
    change(path, "DROP TABLE device")


def foreign_database(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE claim (x)")


def change(path: Path, statement: str, *values: object) -> None:
    with database(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, values)


@pytest.mark.parametrize("damage", [damage_header, damage_content, drop_table, foreign_database])
def test_a_damaged_file_is_moved_aside_and_a_new_one_works(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    filled(path, 3)
    damage(path)
    was = path.read_bytes()
    with closing(open_at(path)) as journal:
        assert journal.set_aside == tmp_path / "state.db.damaged-20231114T221320Z"
        assert journal.set_aside.read_bytes()[100:] == was[100:]  # opening may touch a database's header
        assert journal.entries() == ()
        assert journal.rebuild_pending
        assert isinstance(journal.begin(ref(1), [assigned()]), AttemptToken)


BROKEN_VALUES = [
    ("UPDATE claim SET attempt = ?", "no number"),
    ("UPDATE claim SET changed_at = ?", "no time"),
    ("UPDATE claim SET state = ?", "lost"),
    ("UPDATE claim SET owner = ?", b"\x00\xff"),
    ("UPDATE claim SET name = CAST(? AS TEXT)", b"cla\xffim"),
    ("UPDATE claim SET uid = ?", "../../etc"),
    ("UPDATE device SET admin = ?", 7),
    ("UPDATE device SET gpu_uuid = CAST(? AS TEXT)", b"\xc3\x28"),
    ("UPDATE device SET uid = ?", "unknown"),
    ("DELETE FROM device WHERE gpu_uuid <> ?", ""),
    ("INSERT INTO note VALUES (?, 'yes')", "rebuild-pendinG"),
]


@pytest.mark.parametrize(("statement", "value"), BROKEN_VALUES)
def test_a_value_that_this_driver_never_wrote_is_damage(statement: str, value: object, path: Path) -> None:
    """SQLite's own check accepts these; each of them once ended the process at every start, or failed every call."""
    change(path, statement, value)
    assert is_set_aside(path)


def test_an_index_that_contradicts_its_table_is_damage(path: Path) -> None:
    """A device would look free to a read and taken to a write."""
    with database(path) as connection:  # empties the index of assigned devices without SQLite noticing
        connection.execute("DROP INDEX holder")
        connection.execute("CREATE UNIQUE INDEX holder ON device (pool, device, share_id) WHERE admin = 0 AND 0")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ' AND 0', '') WHERE name = 'holder'")
    assert is_set_aside(path)


def test_a_device_without_its_claim_is_reported_as_damage(path: Path, journal: Journal) -> None:
    """No claim blocks the device and it cannot be assigned: another try does not help."""
    change(path, "DELETE FROM claim WHERE uid = ?", uid(0))
    with fails(StorageError, "JournalUnusable", match="SQLITE_"):
        journal.begin(ref(5), [assigned(0)])
    assert "is damaged" in (journal.problem or "")


def test_damage_that_is_quoted_in_sqlites_own_message_is_damage(path: Path) -> None:
    """Python cannot decode the message then, and raises an error that is no database error."""
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE claim", b"CREATE TABLE \xff\xfe\xff\xfe\xff"))
    assert is_set_aside(path)


@pytest.mark.parametrize(("offset", "data"), [(60, b"\x7f"), (60, b"\xff"), (18, b"\x61")])
def test_a_damaged_header_does_not_pass_for_another_version_or_a_read_only_file(
    offset: int, data: bytes, path: Path
) -> None:
    """Bytes 60-63 are the schema's version, and byte 18 is 1 or 2 for a writable file (SQLite's file format, 1.3)."""
    was = path.read_bytes()
    path.write_bytes(was[:offset] + data + was[offset + len(data) :])
    with closing(open_at(path)) as journal:
        assert journal.set_aside is not None
        assert isinstance(journal.begin(ref(1), [assigned()]), AttemptToken)


@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=40))
def test_any_damage_ends_in_a_working_journal_or_a_readable_error(changes: list[tuple[int, int]]) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        path = Path(folder) / "state.db"
        filled(path, 2)
        data = bytearray(path.read_bytes())
        for offset, value in changes:
            data[offset % len(data)] = value
        path.write_bytes(data)
        with suppress(DraError), closing(open_at(path)) as journal:
            journal.entries()
            journal.begin(ref(9), [assigned(0)])


@pytest.mark.parametrize(("statement", "value"), BROKEN_VALUES[:8])
def test_a_broken_value_found_later_is_reported_and_remembered(
    statement: str, value: object, path: Path, journal: Journal
) -> None:
    """Another try does not help, so the error promises none, and liveness requests the restart that does."""
    change(path, statement, value)
    with fails(StorageError, "JournalUnusable", match=r"\(\w+\)$"):
        journal.entries()
    assert "is damaged" in (journal.problem or "")


def test_a_truncated_file_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    filled(path, 3)
    os.truncate(path, 5000)
    assert is_set_aside(path)
    os.truncate(path, 0)
    with closing(open_at(path)) as journal:
        assert journal.rebuild_pending


def test_only_the_newest_damaged_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for day in range(5):
        path.write_bytes(b"no database at all" * 300)
        open_at(path, 1700000000.0 + day * 86400).close()
    assert [kept.name for kept in sorted(tmp_path.glob("*.damaged-*"))] == [
        f"state.db.damaged-2023111{day}T221320Z" for day in (6, 7, 8)
    ]


def test_damage_found_later_is_reported_and_remembered(path: Path, journal: Journal) -> None:
    assert journal.problem is None
    drop_table(path)
    with fails(StorageError, "JournalUnusable", match="tables"):
        journal.entries()
    assert "is damaged" in (journal.problem or "")


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, path: Path) -> None:
    """A downgrade must not delete the entries of the newer version; the error says what to do."""
    change(path, "PRAGMA user_version = 99")
    with fails(ConfigurationError, "NewerSchema", match="schema 99"):
        open_at(path)
    assert list(tmp_path.glob("*.damaged-*")) == []


def test_a_directory_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with fails(StorageError, "JournalNotOpened", match=r"state\.db"):
        open_at(tmp_path / "file" / "state.db")


def test_a_start_that_fails_promises_no_other_try(tmp_path: Path) -> None:
    """The error is the last output of the process: it names the problem, and nothing tries again by itself."""
    (tmp_path / "state.db").mkdir()
    with fails(StorageError, "JournalUnusable", match=r"\(SQLITE_CANTOPEN\)$"):
        open_at(tmp_path / "state.db")


def test_a_database_locked_too_long_is_a_storage_error(path: Path, journal: Journal) -> None:
    journal._connection.execute("PRAGMA busy_timeout = 1")
    with database(path) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with fails(StorageError, "JournalUnavailable", match="SQLITE_BUSY"):
            journal.begin(ref(7), [assigned(7)])
        blocker.execute("ROLLBACK")
        assert journal.entry(uid(7)) is None
        assert isinstance(journal.begin(ref(7), [assigned(7)]), AttemptToken)


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm"])
def test_a_file_removed_under_an_open_journal_is_noticed(name: str, tmp_path: Path, journal: Journal) -> None:
    """SQLite continues in a file that no other process sees: another process would assign the same device again."""
    assert journal.problem is None
    (tmp_path / name).unlink()
    assert str(tmp_path / name) in str(journal.problem)
    with fails(StorageError, "JournalReplaced", match="claim-9"):
        journal.begin(ref(9), [assigned(9)])
    undoing = present(journal.start_unprepare(uid(0)))
    assert journal.forget(uid(0), undoing), "what was prepared before can still be freed"


def test_a_journal_that_another_process_replaced_is_noticed(tmp_path: Path, path: Path, journal: Journal) -> None:
    """The directory was emptied and a new process created a journal: the two must not both assign devices."""
    for each in tmp_path.glob("state.db*"):
        each.unlink()
    with closing(open_at(path)) as successor:
        assert successor.problem is None
        assert journal.problem is not None


def test_other_processes_coming_and_going_leave_the_files_in_place(path: Path, journal: Journal) -> None:
    for number in range(3):
        with closing(open_at(path)) as other:
            prepared(other, 10 + number, assigned(10 + number))
            other.tidy()
        journal.tidy()
        assert journal.problem is None


def test_commits_write_into_a_log_that_has_its_size_already(tmp_path: Path) -> None:
    """A commit that makes the file longer waits for the file system's own journal, too."""
    path = tmp_path / "state.db"
    with closing(open_at(path)) as journal:
        before = path.with_name("state.db-wal").stat().st_size
        for number in range(20):
            journal.set_gpu_note(gpu(0).uuid, "key", str(number))
        assert path.with_name("state.db-wal").stat().st_size == before


def test_a_second_process_fills_nothing_over_the_first_ones_log(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(open_at(path, owner="one")) as first:
        first.set_gpu_note(gpu(0).uuid, "key", "first")
        with closing(open_at(path, owner="two")) as second:
            assert second.gpu_note(gpu(0).uuid, "key") == "first"
            second.set_gpu_note(gpu(0).uuid, "key", "second")
            assert first.gpu_note(gpu(0).uuid, "key") == "second"


def test_zeros_after_the_log_are_no_commits(tmp_path: Path) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "copy"
    copy.mkdir()
    with closing(open_at(path, owner="one")) as journal:
        journal.set_gpu_note(gpu(0).uuid, "key", "kept")
        for name in ("state.db", "state.db-wal"):
            (copy / name).write_bytes((tmp_path / name).read_bytes())  # as a kill leaves them
    with closing(open_at(copy / "state.db", owner="two")) as journal:
        assert journal.set_aside is None
        assert journal.gpu_note(gpu(0).uuid, "key") == "kept"
