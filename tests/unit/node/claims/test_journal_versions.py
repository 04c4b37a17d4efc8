"""The journal as another version of the driver left it: a newer one with more columns, or the former one."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.node.claims.entry import AssignedDevice, State
from dra_driver.node.claims.journal.schema import ADDED, SCHEMA
from tests.fakes.claims import uid
from tests.fakes.stand_in import present
from tests.unit.node.claims.test_journal import assigned, open_journal, prepared, stored
from tests.unit.node.claims.test_journal_forms import GPU, cut, partition, shared

RECORDING = Path(__file__).parents[3] / "golden/state/6bf8a09/plugin"
TABLES = ("claim", "device", "note", "mig", "sharing", "gpu_note")


def newer_first(path: Path) -> None:
    """Every table begins with a column that this version does not know, so every offset is another one."""
    script = re.sub(r"(CREATE TABLE [A-Z ]*\w+ \()", r"\1newer TEXT NOT NULL DEFAULT 'x', ", SCHEMA + ADDED)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def newer_last(path: Path) -> None:
    """What ALTER TABLE does: the unknown column comes last."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA + ADDED)
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN newer INTEGER")


@pytest.fixture(params=[newer_first, newer_last])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    request.param(tmp_path / "state.db")
    return tmp_path


@pytest.mark.parametrize("device", [assigned(1), cut(partition()), shared()], ids=["whole", "partition", "share"])
def test_columns_of_a_newer_version_are_ignored(folder: Path, device: AssignedDevice) -> None:
    with closing(open_journal(folder, "run-1")) as journal:
        attempt = prepared(journal, 1, device)
    with closing(open_journal(folder, "run-2")) as again:
        assert again.set_aside is None
        entry = stored(again)
        assert (entry.state, entry.devices, entry.attempt) == (State.PREPARED, (device,), attempt)
        assert [each.device for each in again.assignments()] == [device]
        assert again.forget(uid(1), present(again.start_unprepare(uid(1))))
        assert again.entries() == ()


def test_notes_and_backups_ignore_columns_of_a_newer_version(folder: Path) -> None:
    with closing(open_journal(folder, "run-1")) as journal:
        journal.note_rebuilt()
        journal.set_gpu_note(GPU, "mig-mode", "off")
        prepared(journal, 1, cut(partition()))
        assert journal.gpu_note(GPU, "mig-mode") == "off"
    (folder / "state.db").unlink()
    newer_first(folder / "state.db")
    with closing(open_journal(folder, "run-2")) as rebuilt:
        assert rebuilt.gpu_note(GPU, "mig-mode") == "off"
        assert [(each.uid, each.partition) for each in rebuilt.orphaned_partitions()] == [(uid(1), partition())]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The journal and the backups that version 6bf8a09 left, with its write-ahead log."""
    for file in ("state.db", "state.db-wal"):
        shutil.copy(RECORDING / file, tmp_path)
    shutil.copytree(RECORDING / "made", tmp_path / "made")
    return tmp_path


def test_journal_of_the_former_version_is_read(recorded: Path) -> None:
    claims = json.loads((RECORDING.parent / "claims.json").read_text())
    with closing(open_journal(recorded, "run-2")) as journal:
        assert journal.set_aside is None
        found = {entry.ref.uid: entry for entry in journal.entries()}
        devices = [each.device for each in journal.assignments()]
    for claim in claims.values():
        entry = found.pop(claim["claim"]["metadata"]["uid"])
        names = [name for name, _ in claim["answer"] or ()]
        assert entry.state is (State.PREPARED if names else State.PREPARING)
        assert not names or [device.device for device in entry.devices] == names
    assert found == {}
    forms = sorted(str(device.form) for device in devices)
    assert forms == ["partition", "partition", "partition", "share", "share", "whole", "whole"]
    assert len({device.sharing.daemon.id for device in devices if device.sharing and device.sharing.daemon}) == 1


def test_backups_of_the_former_version_are_read_when_its_journal_is_lost(recorded: Path) -> None:
    with closing(open_journal(recorded, "run-2")) as before:
        created, noted = before.created_partitions(), before.noted_gpus()
    for file in recorded.glob("state.db*"):
        file.unlink()
    for file in (recorded / "made").glob("*.json"):
        file.write_text(file.read_text().replace("@BOOT_ID@", "boot-1"))
    with closing(open_journal(recorded, "run-3")) as rebuilt:
        assert rebuilt.rebuild_pending
        assert {each.partition.id for each in rebuilt.orphaned_partitions()} == created != frozenset()
        assert rebuilt.noted_gpus() == noted


def objects(path: Path) -> dict[str, str]:
    """The definition of each table and index, without spaces."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"\s+", "", sql) for name, sql in found}


def test_a_rollback_finds_its_own_tables_unchanged(tmp_path: Path, recorded: Path) -> None:
    """The former version reads and writes by these definitions, and takes an unknown note for damage."""
    former = objects(recorded / "state.db")
    path = tmp_path / "new" / "state.db"
    with closing(open_journal(path.parent, "run")) as journal, closing(sqlite3.connect(path)) as connection:
        prepared(journal, 1, assigned(1))
        prepared(journal, 2, cut(partition()))
        now = objects(path)
        assert {name: now.get(name) for name in former} == former
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert [key for (key,) in connection.execute("SELECT key FROM note")] in ([], ["rebuild-pending"])
        states = {state for (state,) in connection.execute("SELECT state FROM claim")}
        assert states <= {"preparing", "prepared", "unpreparing"}


def test_what_is_beside_the_journal_is_ignored_by_the_former_version(recorded: Path) -> None:
    """New facts are in files of their own, under names that it neither reads nor removes."""
    new = {"claim-names", "health.json", "health.lock"}
    assert new.isdisjoint(path.name for path in recorded.iterdir())
    assert not any(re.fullmatch(r"state\.db.*|owner-.*\.lock|dra.*\.sock|made|locks|mps", name) for name in new)
