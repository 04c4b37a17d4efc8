"""Reading the exporter's file: changed, damaged, not renewed, and no file at all."""

import os
from pathlib import Path

import pytest

from dra_driver.config.usage_findings import encode
from dra_driver.core.model.usage_findings import IdleClaim, UsageFindings
from dra_driver.node.process.usage_file import STALE_S, FindingsFile
from tests.unit.node.usage.claims import NOW, claim

FOUND = UsageFindings(written=NOW, idle=(IdleClaim(claim=claim(), since=NOW),))


class Exporter:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.path = folder / "findings" / "findings.json"
        self.path.parent.mkdir()
        self.file = self.restarted()

    def restarted(self) -> FindingsFile:
        """As a node process that starts now has it."""
        return FindingsFile(self.path.parent.parent, clock=lambda: self.now, wall_clock=lambda: self.now + 1e9)

    def write(self, content: bytes) -> None:
        temporary = self.path.with_name(f"new-{self.now}")
        temporary.write_bytes(content)
        os.utime(temporary, (self.now + 1e9, self.now + 1e9))
        temporary.rename(self.path)


@pytest.fixture
def exporter(tmp_path: Path) -> Exporter:
    return Exporter(tmp_path)


def test_without_a_file_there_is_nothing_and_no_problem(exporter: Exporter) -> None:
    """The exporter is optional, and may start later."""
    assert exporter.file.look() is None
    assert exporter.file.problem is None


def test_an_unchanged_file_is_the_same_value(exporter: Exporter) -> None:
    exporter.write(encode(FOUND))
    first = exporter.file.look()
    assert first == FOUND
    assert exporter.file.look() is first


def test_a_damaged_file_keeps_the_last_good_findings_for_a_while(exporter: Exporter) -> None:
    exporter.write(encode(FOUND))
    exporter.file.look()
    exporter.write(b"{")
    assert exporter.file.look() == FOUND
    assert "damaged" in (exporter.file.problem or "")
    exporter.now += STALE_S + 1
    assert exporter.file.look() is None
    exporter.write(encode(FOUND))
    assert exporter.file.look() == FOUND
    assert exporter.file.problem is None


def test_findings_that_are_not_renewed_are_forgotten(exporter: Exporter) -> None:
    """The exporter has ended or hangs: what it saw last is no reason to evict a pod an hour later."""
    exporter.write(encode(FOUND))
    exporter.file.look()
    exporter.now += STALE_S
    assert exporter.file.look() == FOUND
    exporter.now += 1
    assert exporter.file.look() is None
    assert exporter.file.look() is None


def test_a_restart_makes_old_findings_no_newer(exporter: Exporter) -> None:
    """Node processes restart with each upgrade, and an exporter that was taken away leaves its file."""
    exporter.write(encode(FOUND))
    exporter.now += STALE_S - 10
    after = exporter.restarted()
    assert after.look() == FOUND
    exporter.now += 11
    assert after.look() is None
    assert exporter.restarted().look() is None
    exporter.write(encode(FOUND))
    assert exporter.restarted().look() == FOUND
    exporter.now -= 3600
    assert exporter.restarted().look() == FOUND, "a clock that went back"


def test_renewed_findings_stay(exporter: Exporter) -> None:
    for _ in range(5):
        exporter.write(encode(FOUND))
        assert exporter.file.look() == FOUND
        exporter.now += STALE_S


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_ordinary_file_is_not_read(exporter: Exporter, tmp_path: Path, kind: str) -> None:
    """A link to a file of the host, or a pipe on which a read would wait for ever."""
    if kind == "link":
        secret = tmp_path / "secret"
        secret.write_bytes(encode(FOUND))
        exporter.path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(exporter.path)
    else:
        exporter.path.mkdir()
    assert exporter.file.look() is None
    assert exporter.file.problem is not None
