"""The file that two processes share, and what becomes of one of another version, a damaged or a hostile one."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import lock_file
from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.node.health import storage
from dra_driver.node.health.fault import MOST_GPUS, FaultKey, HealthFault, HealthRecord
from dra_driver.node.health.machine import after_event
from dra_driver.node.health.storage import MOST_FAULTS, HealthFile, decode, until
from tests.unit.node.health.world import GPU, WALL, at, xid

ILL = HealthRecord(boot_id="b", gpus={GPU: after_event({}, xid(79), at(1))})


def test_the_file_is_for_root_alone_and_replaced_in_one_step(tmp_path: Path) -> None:
    """A reader of another process never finds half of it."""
    path = tmp_path / "health.json"
    file = HealthFile(path)
    assert file.exchange(ILL, clock=9, wall=WALL + 9) == ILL
    assert path.stat().st_mode & 0o777 == 0o600
    assert file.read() == ILL
    assert sorted(one.name for one in tmp_path.iterdir()) == ["health.json", "health.lock"]


def test_what_an_earlier_boot_left_is_not_mixed_in(tmp_path: Path) -> None:
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
    one, other = HealthFile(tmp_path / "health.json"), HealthFile(tmp_path / "health.json")
    assert not one.changed()
    other.exchange(ILL, clock=9, wall=WALL + 9)
    assert one.changed()
    one.exchange(ILL, clock=9, wall=WALL + 9)
    assert not one.changed()
    assert not other.changed()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b"[]", b"{}", b"[" * 100_000, b'{"format": 2, "gpus": {}}', b'{"format": 1}'],
)
def test_a_damaged_file_is_moved_aside_with_a_log_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "health.json"
    for _ in range(2):
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert HealthFile(path).read() is None
    assert "begins anew" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == ["health.json.damaged"]


def test_something_else_at_the_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    path.mkdir()
    assert HealthFile(path).read() is None
    with pytest.raises(StorageError, match=r"health\.json cannot be written"):
        HealthFile(path).exchange(ILL, clock=9, wall=WALL + 9)


def test_a_lock_that_another_process_keeps_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_LOCK_S", 0.0)
    lock = lock_file(tmp_path / "health.lock")
    try:
        with pytest.raises(StorageError, match="locked by another process"):
            HealthFile(tmp_path / "health.json").exchange(ILL, clock=9, wall=WALL + 9)
    finally:
        os.close(lock)


GOOD = {"cause": "xid", "xid": 79, "severity": "evict", "since": 5.0, "opened": 1, "seen": 2.0}


def written(*faults: Any, **fields: Any) -> bytes:
    return json.dumps({"format": 1, "bootID": "b", "gpus": {GPU: list(faults)}, **fields}).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"cause": "of-a-later-version"}, {"cause": None}, {"severity": "worse"}, {"since": "yesterday"},
        {"seen": float("nan")}, {"opened": float("inf")}, {"seen": -1}, {"seen": True}, {"seen": 10**400},
        {"xid": -1}, {"xid": None}, {"xid": 2**40}, {"gi": "3"}, {"ended": 3.0}, {"recovered": "soon"},
        {"repeats": 1.5},
    ],
)  # fmt: skip
def test_one_fault_that_makes_no_sense_does_not_take_the_others_along(change: dict[str, Any]) -> None:
    read = decode(written(GOOD | change, "x", None, GOOD | {"gi": 4}))
    assert list(read.gpus[GPU]) == [FaultKey(4, HealthCause.XID, 79)]


def test_fields_of_a_later_version_are_left_out() -> None:
    read = decode(written(GOOD | {"later": {}}, later=[1]))
    assert read.gpus[GPU][FaultKey(None, HealthCause.XID, 79)].seen == 2.0


@pytest.mark.parametrize("field", ["detail", "evidence", "gi", "recovered", "ended", "repeats", "passing"])
def test_null_in_an_optional_field_counts_as_absent(field: str) -> None:
    """The fault stays, with an empty text: a GPU must not look healthy because a sentence about it is missing."""
    plain = {name: value for name, value in GOOD.items() if name != field}
    assert decode(written(GOOD | {field: None})) == decode(written(plain))
    assert len(decode(written(plain)).gpus[GPU]) == 1


def test_a_large_file_gives_a_bounded_record() -> None:
    many = [GOOD | {"xid": number} for number in range(1, MOST_FAULTS + 100)]
    gpus = {f"GPU-{number}": [GOOD | {"detail": "x" * 9999}] for number in range(MOST_GPUS + 10)}
    assert len(decode(written(*many)).gpus[GPU]) == MOST_FAULTS
    read = decode(json.dumps({"format": 1, "gpus": gpus, "forgotten": {"a": "b", "c": 1.0}}).encode())
    assert len(read.gpus) == MOST_GPUS
    assert {len(fault.detail) for faults in read.gpus.values() for fault in faults.values()} == {160}
    assert read.forgotten == {"c": 1.0}
    with pytest.raises(ConfigurationError, match="more than 8 MiB"):
        decode(b" " * (8 * 2**20 + 1))


KEY = FaultKey(None, HealthCause.LOST)


def test_no_time_of_a_record_is_later_than_now() -> None:
    """A clock that was set back must not keep a fault for years, or give a taint a time to come."""
    late = HealthFault(severity=Severity.EVICT, since=WALL + 900, opened=900, seen=900, recovered=901, ended=902)
    found = until(HealthRecord(gpus={GPU: {KEY: late}}, forgotten={GPU: 77.0}), 10, WALL + 10)
    fault = found.gpus[GPU][KEY]
    assert (fault.since, fault.opened, fault.seen, fault.ended) == (WALL + 10, 10, 10, 10)
    assert fault.recovered is not None
    assert 10 < fault.recovered < 10.001, "it was seen before it recovered"
    assert found.forgotten == {GPU: 10}


def test_times_that_can_be_stay_as_they_are() -> None:
    """Otherwise the file would win over the process that read it."""
    fault = HealthFault(severity=Severity.EVICT, since=WALL, opened=1, seen=10, recovered=10.000000000000002)
    record = HealthRecord(gpus={GPU: {KEY: fault}})
    assert until(record, 10, WALL + 10) == record
