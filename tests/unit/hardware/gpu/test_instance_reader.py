"""One process at a time reads MIG instances, the newest; each object here stands for a process."""

import logging
import os
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.nvml.listings import InstanceReader


def end(reader: InstanceReader) -> None:
    """The process ends, and the kernel drops its locks."""
    for descriptor in (reader._held, reader._waiting):
        if descriptor is not None:
            os.close(descriptor)
    reader._held = reader._waiting = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "instances.lock"


def test_a_process_alone_reads(file: Path) -> None:
    """The usual case."""
    reader = InstanceReader(file)
    assert [reader(), reader(), reader()] == [True, True, True]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_newer_process_takes_over_at_the_next_read_of_the_older_one(file: Path) -> None:
    """Never both, and not back and forth."""
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new(), "the older one has not let go"
    assert not old()
    assert new()
    assert [(old(), new()) for _ in range(3)] == [(False, True)] * 3


def test_the_older_process_reads_again_when_the_newer_one_has_ended(file: Path) -> None:
    """A rolling update that was called off, or a crash loop."""
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new()
    end(new)
    assert old(), "the newer one ended while it waited"
    newer = InstanceReader(file)
    assert not newer()
    assert not old()
    assert newer()
    end(newer)
    assert old()


def test_the_newest_of_three_reads_in_the_end(file: Path) -> None:
    """Two updates in a row."""
    readers = [InstanceReader(file) for _ in range(3)]
    for _ in range(6):
        answers = [reader() for reader in readers]
        assert sum(answers) <= 1
    assert answers == [False, False, True]


def test_without_its_files_a_process_reads_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Changes must be seen also on a disk that cannot be written."""
    caplog.set_level(logging.WARNING)
    reader = InstanceReader(tmp_path / "none/instances.lock")
    assert [reader(), reader()] == [True, True]
    assert len(caplog.records) == 1
