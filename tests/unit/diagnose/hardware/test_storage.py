"""Reports in files and in logs."""

import json
import stat
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.values import CheckRecord, HardwareReport, Reading
from tests.unit.diagnose.hardware import facts

REPORT = HardwareReport(
    about={"version": "1", "interrupted": False},
    survey=Reading(facts=facts.survey(), seconds=0.5),
    records=(
        CheckRecord(
            number=3,
            reading=Reading(facts=facts.without_mode(), seconds=1.5),
            finding=Finding(status=Status.OK, seen="a", meaning="b", check="codes", expected="x", layer=Layer.HARDWARE),
        ),
        CheckRecord(
            number=4,
            reading=Reading(skipped="no MIG"),
            finding=Finding(status=Status.SKIPPED, seen="", check="x", expected="y", layer=Layer.HARDWARE),
        ),
    ),
    hashed=True,
)


def test_a_report_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    """It may have names of processes."""
    path = tmp_path / "report.json"
    storage.write(path, REPORT)
    assert storage.load(path) == REPORT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(StorageError, match=r"cannot write the report .*missing/report.json: No such file"):
        storage.write(tmp_path / "missing/report.json", REPORT)


def test_a_packed_report_is_found_between_other_lines_of_a_log() -> None:
    """The newest, when the container was restarted."""
    older = storage.pack(HardwareReport(about={}, survey=Reading(), records=()))
    log = f"before\n{older}\nmiddle\n{storage.pack(REPORT)}\nafter\n"
    assert storage.unpack(log) == REPORT
    assert all(len(line) <= 1000 for line in log.splitlines())
    assert storage.without_report(f"before\n{older}\nafter\n").split() == ["before", "after"]


def test_a_log_without_a_whole_report_has_none() -> None:
    """It ended early, or has not ended yet."""
    packed = storage.pack(REPORT)
    assert storage.unpack("only lines") is None
    assert storage.unpack(packed[: len(packed) // 2]) is None


def test_a_damaged_report_in_a_log_is_refused() -> None:
    """A lost line changes the checksum."""
    lines = storage.pack(REPORT).splitlines()
    with pytest.raises(ConfigurationError, match="damaged"):
        storage.unpack("\n".join([lines[0], lines[1][8:], *lines[2:]]))
    with pytest.raises(ConfigurationError, match="checksum"):
        storage.unpack("\n".join([lines[0].replace("REPORT ", "REPORT 0"), *lines[1:]]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a report"),
        ('{"kind": "Pod"}', "not a report"),
        ('{"kind": "HardwareCheckReport", "schemaVersion": 2}', "schemaVersion 2"),
        ('{"kind": "HardwareCheckReport", "schemaVersion": 1}', "damaged"),
    ],
)
def test_another_file_is_refused_with_the_reason(tmp_path: Path, content: str, message: str) -> None:
    """And with its name."""
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        storage.load(path)
    assert str(path) in str(caught.value)


def test_an_unknown_verdict_is_refused(tmp_path: Path) -> None:
    """The exit status is made from it."""
    path = tmp_path / "file.json"
    wire = REPORT.to_wire()
    wire["checks"][0]["verdict"] = "fine"
    path.write_text(json.dumps(wire))
    with pytest.raises(ConfigurationError, match="unknown verdict 'fine'"):
        storage.load(path)


@pytest.mark.parametrize(
    ("field", "value"), [("number", float("inf")), ("seconds", 10**400)], ids=["number", "seconds"]
)
def test_numbers_beyond_all_bounds_are_refused(tmp_path: Path, field: str, value: float) -> None:
    """JSON of another program may have them."""
    path = tmp_path / "file.json"
    wire = REPORT.to_wire()
    wire["checks"][0][field] = value
    path.write_text(json.dumps(wire))
    with pytest.raises(ConfigurationError, match="the report is damaged: "):
        storage.load(path)


def test_a_packed_report_without_a_checksum_is_refused() -> None:
    """The log is that of a node, which may print what it likes."""
    first, *rest = storage.pack(REPORT).splitlines()
    with pytest.raises(ConfigurationError, match="checksum"):
        storage.unpack("\n".join([first[: len(storage.BEGIN)], *rest]))
