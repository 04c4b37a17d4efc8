"""Reports in files and in logs, in which what identifies a machine is hashed and can still be compared."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.storage import Hasher
from dra_driver.diagnose.hardware.values import CheckRecord, HardwareReport, Reading
from dra_driver.diagnose.node_settings import host_names
from tests.harness.raising import fails
from tests.unit.diagnose.hardware import facts
from tests.unit.diagnose.hardware.facts import UUID

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
    path = tmp_path / "report.json"
    storage.write(path, REPORT)
    assert storage.load(path) == REPORT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with fails(StorageError, match=r"missing/report\.json"):
        storage.write(tmp_path / "missing/report.json", REPORT)


def test_a_packed_report_is_found_between_other_lines_of_a_log() -> None:
    """The newest, when the container was restarted."""
    older = storage.pack(HardwareReport(about={}, survey=Reading(), records=()))
    log = f"before\n{older}\nmiddle\n{storage.pack(REPORT)}\nafter\n"
    assert storage.unpack(log) == REPORT
    assert all(len(line) <= 1000 for line in log.splitlines())
    assert storage.without_report(f"before\n{older}\nafter\n").split() == ["before", "after"]


def test_a_log_without_a_whole_report_has_none() -> None:
    packed = storage.pack(REPORT)
    assert storage.unpack("only lines") is None
    assert storage.unpack(packed[: len(packed) // 2]) is None


def test_a_damaged_report_in_a_log_is_refused() -> None:
    lines = storage.pack(REPORT).splitlines()
    with pytest.raises(ConfigurationError, match="damaged"):
        storage.unpack("\n".join([lines[0], lines[1][8:], *lines[2:]]))
    for first in (lines[0].replace("REPORT ", "REPORT 0"), lines[0][: len(storage.BEGIN)]):
        with pytest.raises(ConfigurationError, match="checksum"):
            storage.unpack("\n".join([first, *lines[1:]]))


@pytest.mark.parametrize(
    ("content", "reason", "word"),
    [
        ("{", "NotJson", "JSON"),
        ("[]", "", "hardware-check"),
        ('{"kind": "Pod"}', "", "hardware-check"),
        ('{"kind": "HardwareCheckReport", "schemaVersion": 2}', "", "schemaVersion 2"),
        ('{"kind": "HardwareCheckReport", "schemaVersion": 1}', "Damaged", "KeyError"),
    ],
)
def test_other_file_is_refused_with_reason(tmp_path: Path, content: str, reason: str, word: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with fails(ConfigurationError, reason) as caught:
        storage.load(path)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("number", float("inf")), ("seconds", 10**400), ("verdict", "fine")],
    ids=["number", "seconds", "verdict"],
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "file.json"
    wire = REPORT.to_wire()
    wire["checks"][0][field] = value
    path.write_text(json.dumps(wire))
    with fails(ConfigurationError, "Damaged"):
        storage.load(path)


SHAPE = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_a_uuid_is_another_one_of_the_same_shape_everywhere() -> None:
    hashed = Hasher().value({"gpus": [UUID], "held": {UUID: 1}, "text": f"GPU {UUID.upper()} is busy"})
    assert "7fff86ef" not in str(hashed).lower()
    assert SHAPE.fullmatch(hashed["gpus"][0])
    assert hashed["held"] == {hashed["gpus"][0]: 1}
    assert hashed["text"].lower() == f"gpu {hashed['gpus'][0]} is busy".lower()
    slot = {"busId": "00000000:01:00.0", "minor": 3}
    assert Hasher().value(slot) == slot


def test_two_reports_cannot_be_compared() -> None:
    """The salt is drawn for each report."""
    assert Hasher().text(UUID) != Hasher().text(UUID)


def test_serial_numbers_are_hashed_by_their_key() -> None:
    answers = {
        "nvmlDeviceGetSerial": {"value": "1650522003820", "ms": 0.2},
        "nvmlDeviceGetPlatformInfo": {"value": {"chassisSerialNumber": [1, 2, 3], "slotNumber": 4}},
        "nvmlDeviceGetGpuFabricInfoV": {"value": {"clusterUuid": [9] * 16, "state": 3}},
        "other": {"code": 3},
    }
    hashed = Hasher().value(answers)
    assert hashed["nvmlDeviceGetSerial"]["value"].startswith("hashed-")
    assert hashed["nvmlDeviceGetSerial"]["ms"] == 0.2
    assert hashed["nvmlDeviceGetPlatformInfo"]["value"]["slotNumber"] == 4
    assert all(
        str(one).startswith("hashed-") for one in hashed["nvmlDeviceGetPlatformInfo"]["value"]["chassisSerialNumber"]
    )
    assert hashed["nvmlDeviceGetGpuFabricInfoV"]["value"]["state"] == 3
    assert 9 not in hashed["nvmlDeviceGetGpuFabricInfoV"]["value"]["clusterUuid"]
    assert hashed["other"] == {"code": 3}


def test_bytes_of_a_serial_number_are_not_hashed_one_by_one() -> None:
    """They are digits: a known part of one number would give away the others. Equal numbers stay equal."""
    serial = list(b"1650522003820")
    hasher = Hasher()
    first, again, other = (hasher.value({"chassisSerialNumber": one}) for one in (serial, serial, [*serial[:-1], 49]))
    assert first == again
    found = first["chassisSerialNumber"] + other["chassisSerialNumber"]
    assert len(set(found)) == 2 * len(serial)


def test_host_names_are_hashed_wherever_they_stand() -> None:
    """Also as a part of a longer name; a name too short to be told from a word stays."""
    hasher = Hasher(("node-17.example.com", "node-17", "a"))
    text = hasher.text("Node-17 runs; node-17.example.com; a GPU")
    assert "node-17" not in text.lower()
    assert text.endswith("a GPU")
    assert Hasher().text("node-17") == "node-17"


def test_a_node_has_a_long_and_a_short_name() -> None:
    """In a pod, only the variable tells the node's."""
    own = os.uname().nodename
    assert host_names({"NODE_NAME": "node-17.example.com"})[-2:] == ("node-17.example.com", "node-17")
    assert host_names({})[0] == own
