"""What identifies a machine is hashed in a report, and can still be compared within it."""

import re

from dra_driver.diagnose.hardware.storage import Hasher
from tests.unit.diagnose.hardware.facts import UUID

SHAPE = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_a_uuid_is_another_one_of_the_same_shape_everywhere() -> None:
    """In values, in keys, and within texts; facts about one GPU stay together."""
    hashed = Hasher().value({"gpus": [UUID], "held": {UUID: 1}, "text": f"GPU {UUID.upper()} is busy"})
    assert "7fff86ef" not in str(hashed).lower()
    assert SHAPE.fullmatch(hashed["gpus"][0])
    assert hashed["held"] == {hashed["gpus"][0]: 1}
    assert hashed["text"].lower() == f"gpu {hashed['gpus'][0]} is busy".lower()


def test_two_reports_cannot_be_compared() -> None:
    """The salt is drawn for each report."""
    assert Hasher().text(UUID) != Hasher().text(UUID)


def test_serial_numbers_are_hashed_by_their_key() -> None:
    """They have no form of their own; times and codes of the answer stay."""
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


def test_places_in_the_machine_stay() -> None:
    """A PCI address says which slot, not which machine."""
    assert Hasher().value({"busId": "00000000:01:00.0", "minor": 3}) == {"busId": "00000000:01:00.0", "minor": 3}
