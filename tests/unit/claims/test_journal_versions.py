"""The journal's file as a newer version of the driver may have left it: more columns, in other places."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.claims.entry import AssignedDevice, State
from dra_driver.claims.journal.schema import ADDED, SCHEMA
from tests.fakes.claims import uid
from tests.unit.claims.test_journal import assigned, open_journal, prepared
from tests.unit.claims.test_journal_forms import GPU, cut, partition, shared

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
    """Entries are written, read, amended and removed by column name."""
    journal = open_journal(folder, "run-1")
    attempt = prepared(journal, 1, device)
    journal.close()
    again = open_journal(folder, "run-2")
    assert again.set_aside is None
    entry = again.entry(uid(1))
    assert entry is not None
    assert (entry.state, entry.devices, entry.attempt) == (State.PREPARED, (device,), attempt)
    assert [each.device for each in again.assignments()] == [device]
    attempt_of_unprepare = again.start_unprepare(uid(1))
    assert attempt_of_unprepare is not None
    assert again.forget(uid(1), attempt_of_unprepare)
    assert again.entries() == ()
    again.close()


def test_notes_and_backups_ignore_columns_of_a_newer_version(folder: Path) -> None:
    """GPU notes and the partitions that this driver created are found, in the file and in the backup of it."""
    journal = open_journal(folder, "run-1")
    journal.note_rebuilt()
    journal.set_gpu_note(GPU, "mig-mode", "off")
    prepared(journal, 1, cut(partition()))
    assert journal.gpu_note(GPU, "mig-mode") == "off"
    journal.close()
    (folder / "state.db").unlink()
    newer_first(folder / "state.db")
    rebuilt = open_journal(folder, "run-2")
    assert rebuilt.gpu_note(GPU, "mig-mode") == "off"
    assert [(each.uid, each.partition) for each in rebuilt.orphaned_partitions()] == [(uid(1), partition())]
    rebuilt.close()
