"""What is on disk may be of another version, damaged or hostile."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.health import HealthCause
from dra_driver.node.health.fault import MOST_GPUS, FaultKey
from dra_driver.node.health.storage import MOST_FAULTS, decode
from tests.unit.node.health.world import GPU

GOOD = {"cause": "xid", "xid": 79, "severity": "evict", "since": 5.0, "opened": 1, "seen": 2.0}


def written(*faults: Any, **fields: Any) -> bytes:
    return json.dumps({"format": 1, "bootID": "b", "gpus": {GPU: list(faults)}, **fields}).encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"null", b"[]", b"{}", b"[" * 100_000, b'{"format": 2, "gpus": {}}', b'{"format": 1}'],
)
def test_a_text_that_is_no_record_is_refused_with_a_reason(data: bytes) -> None:
    """The file is moved aside then."""
    with pytest.raises(ConfigurationError, match="it "):
        decode(data)


@pytest.mark.parametrize(
    "change",
    [
        {"cause": "of-a-later-version"},
        {"cause": None},
        {"severity": "worse"},
        {"since": "yesterday"},
        {"seen": float("nan")},
        {"opened": float("inf")},
        {"seen": -1},
        {"seen": True},
        {"seen": 10**400},
        {"xid": -1},
        {"xid": 2**40},
        {"gi": "3"},
        {"ended": 3.0},
        {"recovered": "soon"},
        {"repeats": 1.5},
    ],
)
def test_one_fault_that_makes_no_sense_does_not_take_the_others_along(change: dict[str, Any]) -> None:
    read = decode(written(GOOD | change, "x", None, GOOD | {"gi": 4}))
    assert list(read.gpus[GPU]) == [FaultKey(4, HealthCause.XID, 79)]


def test_fields_of_a_later_version_are_left_out() -> None:
    """A rollback reads what the later version wrote."""
    read = decode(written(GOOD | {"later": {}}, later=[1]))
    assert read.gpus[GPU][FaultKey(None, HealthCause.XID, 79)].seen == 2.0


@pytest.mark.parametrize("field", ["detail", "evidence", "gi", "xid", "recovered", "ended", "repeats", "passing"])
def test_null_in_an_optional_field_counts_as_absent(field: str) -> None:
    """The fault stays, with an empty text: a GPU must not look healthy because a sentence about it is missing."""
    plain = {name: value for name, value in GOOD.items() if name != field}
    assert decode(written(GOOD | {field: None})) == decode(written(plain))
    assert len(decode(written(plain)).gpus[GPU]) == 1


def test_a_large_file_gives_a_bounded_record() -> None:
    """Memory of the node process is bounded whatever is on disk."""
    many = [GOOD | {"xid": number} for number in range(1, MOST_FAULTS + 100)]
    gpus = {f"GPU-{number}": [GOOD | {"detail": "x" * 9999}] for number in range(MOST_GPUS + 10)}
    assert len(decode(written(*many)).gpus[GPU]) == MOST_FAULTS
    read = decode(json.dumps({"format": 1, "gpus": gpus, "forgotten": {"a": "b", "c": 1.0}}).encode())
    assert len(read.gpus) == MOST_GPUS
    assert {len(fault.detail) for faults in read.gpus.values() for fault in faults.values()} == {160}
    assert read.forgotten == {"c": 1.0}
    with pytest.raises(ConfigurationError, match="more than 8 MiB"):
        decode(b" " * (8 * 2**20 + 1))
