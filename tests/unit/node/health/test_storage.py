"""The file that two processes share, and what becomes of a damaged one."""

import logging
import os
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file
from dra_driver.node.health import storage
from dra_driver.node.health.fault import HealthRecord
from dra_driver.node.health.machine import after_event
from dra_driver.node.health.storage import HealthFile
from tests.unit.node.health.world import GPU, OTHER, WALL, at, xid

ILL = HealthRecord(boot_id="b", gpus={GPU: after_event({}, xid(79), at(1))})


def test_the_file_is_for_root_alone_and_replaced_in_one_step(tmp_path: Path) -> None:
    """A reader of another process never finds half of it."""
    path = tmp_path / "health.json"
    file = HealthFile(path)
    assert file.exchange(ILL, clock=9, wall=WALL + 9) == ILL
    assert path.stat().st_mode & 0o777 == 0o600
    assert file.read() == ILL
    assert sorted(one.name for one in tmp_path.iterdir()) == ["health.json", "health.lock"]


def test_writers_add_to_each_other(tmp_path: Path) -> None:
    """The last writer does not lose what the other one saw."""
    path = tmp_path / "health.json"
    other = HealthRecord(boot_id="b", gpus={OTHER: after_event({}, xid(48, gpu=OTHER), at(1))})
    HealthFile(path).exchange(ILL, clock=9, wall=WALL + 9)
    found = HealthFile(path).exchange(other, clock=9, wall=WALL + 9)
    assert set(found.gpus) == {GPU, OTHER}
    assert HealthFile(path).read() == found


def test_what_an_earlier_boot_left_is_not_mixed_in(tmp_path: Path) -> None:
    """Its times are of another clock; who wants it has read it at start."""
    path = tmp_path / "health.json"
    HealthFile(path).exchange(ILL, clock=9, wall=WALL + 9)
    assert HealthFile(path).exchange(HealthRecord(boot_id="next"), clock=9, wall=WALL) == HealthRecord(boot_id="next")


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    file = HealthFile(tmp_path / "health.json")
    file.exchange(ILL, clock=9, wall=WALL + 9)
    before = (tmp_path / "health.json").stat().st_ino
    file.exchange(ILL, clock=9, wall=WALL + 9)
    assert (tmp_path / "health.json").stat().st_ino == before


def test_a_change_by_another_process_is_noticed_and_an_own_one_is_not(tmp_path: Path) -> None:
    """So that a tick reads the file only when there is something to read."""
    one, other = HealthFile(tmp_path / "health.json"), HealthFile(tmp_path / "health.json")
    assert not one.changed()
    other.exchange(ILL, clock=9, wall=WALL + 9)
    assert one.changed()
    one.exchange(ILL, clock=9, wall=WALL + 9)
    assert not one.changed()
    assert not other.changed()


@pytest.mark.parametrize("content", [b"", b"\x00" * 4096, b'{"format": 99}'])
def test_a_damaged_file_is_moved_aside_with_a_log_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It never stops the start; one damaged file is kept, so that they do not fill the disk."""
    path = tmp_path / "health.json"
    for _ in range(2):
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert HealthFile(path).read() is None
    assert "begins anew" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == ["health.json.damaged"]


def test_something_else_at_the_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The caller tries again later."""
    path = tmp_path / "health.json"
    path.mkdir()
    assert HealthFile(path).read() is None
    with pytest.raises(StorageError, match=r"health\.json cannot be written"):
        HealthFile(path).exchange(ILL, clock=9, wall=WALL + 9)


def test_a_lock_that_another_process_keeps_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process must not stop this one."""
    monkeypatch.setattr(storage, "_LOCK_S", 0.0)
    lock = lock_file(tmp_path / "health.lock")
    try:
        with pytest.raises(StorageError, match="locked by another process"):
            HealthFile(tmp_path / "health.json").exchange(ILL, clock=9, wall=WALL + 9)
    finally:
        os.close(lock)
