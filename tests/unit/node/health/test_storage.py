"""The saved record of health, and properties of any order of faults, readings and restarts."""

import json
import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import lock_file
from dra_driver.core.model.health import HealthCause, HealthEvent, HealthReading, RecoveryAction, Severity
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.node.health import storage
from dra_driver.node.health.fault import MOST_GPUS, RANK, FaultKey, FaultPhase, Faults, HealthFault, HealthRecord
from dra_driver.node.health.machine import Moment, after_event, after_instances, after_reading, after_repair, after_time
from dra_driver.node.health.storage import MOST_FAULTS, HealthFile, decode, encode, merged, merged_records, until
from tests.harness.raising import fails
from tests.unit.node.health.world import GPU, WALL, Node, at, ecc, reading, xid

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


@pytest.mark.parametrize(("forgotten", "kept"), [(0.9, True), (1.0, False), (2.0, False)])
def test_only_news_after_a_gpu_was_forgotten_come_back(forgotten: float, kept: bool) -> None:
    own = HealthRecord(boot_id="b", forgotten={GPU: forgotten})
    assert (GPU in merged_records(own, ILL).gpus, merged_records(own, ILL).gpus) == (kept, ILL.gpus if kept else {})


def test_a_fault_passes_only_where_both_records_say_so() -> None:
    ((key, fault),) = ILL.gpus[GPU].items()
    one, other = ({key: replace(fault, passing=passing)} for passing in (True, False))
    assert not merged(one, other)[key].passing
    assert merged(one, one)[key].passing


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
    assert "starting from scratch" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == ["health.json.damaged"]


def test_something_else_at_the_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    path.mkdir()
    assert HealthFile(path).read() is None
    with fails(StorageError, "NotWritten", match=r"health\.json"):
        HealthFile(path).exchange(ILL, clock=9, wall=WALL + 9)


def test_a_lock_that_another_process_keeps_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_LOCK_S", 0.0)
    lock = lock_file(tmp_path / "health.lock")
    try:
        with fails(StorageError, "Locked"):
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
    with pytest.raises(ConfigurationError, match="larger than 8 MiB"):
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


RULES = st.sampled_from([
    DEFAULT_RULES,
    HealthRules(evicting_xids=frozenset({79, 31}), evicting_causes=frozenset({HealthCause.LOST}), calm_s=20.0),
    HealthRules(taint_xids=frozenset({13}), ignored_xids=frozenset({119}), ignored_causes=frozenset({HealthCause.ECC})),
])  # fmt: skip
EVENTS = st.one_of(
    st.builds(
        lambda number, gi_id: xid(number, gi_id=gi_id),
        st.sampled_from([13, 31, 48, 79, 95, 119, 999]),
        st.sampled_from([None, 1, 2]),
    ),
    st.builds(lambda gi_id: ecc(gi_id=gi_id), st.sampled_from([None, 1])),
)
MAYBE = st.sampled_from([None, False, True])
READINGS = st.one_of(
    st.builds(
        reading,
        recovery_action=st.sampled_from([None, *RecoveryAction]),
        rows_pending=MAYBE,
        rows_failed=MAYBE,
        pages_pending=MAYBE,
        links_down=st.sampled_from([None, (), (1,)]),
        fabric_unhealthy=st.sampled_from([None, "", "route"]),
    ),
    st.builds(reading, unreachable=st.just("no answer"), hangs=st.booleans(), passing=st.booleans()),
)
BAD = st.builds(
    reading,
    recovery_action=st.sampled_from([None, RecoveryAction.GPU_RESET]),
    rows_pending=st.sampled_from([None, True]),
    pages_pending=st.sampled_from([None, True]),
    links_down=st.sampled_from([None, (1,)]),
    fabric_unhealthy=st.sampled_from([None, "route"]),
)
"""Readings that show no recovery of anything, of a GPU that has not been lost."""
Step = HealthEvent | HealthReading | frozenset[int] | str
STEPS = st.lists(
    st.tuples(
        st.floats(0, 200, allow_nan=False),
        st.one_of(EVENTS, READINGS, st.frozensets(st.sampled_from([1, 2])), st.sampled_from(["time", "repair"])),
    ),
    max_size=12,
)


def stepped(faults: Faults, step: Step, at: Moment) -> Faults:
    match step:
        case HealthEvent():
            return after_event(faults, step, at)
        case HealthReading():
            return after_reading(faults, step, at)
        case frozenset():
            return after_instances(faults, step, at)
        case "repair":
            return after_repair(faults, at)
        case _:
            return after_time(faults, at)


def lived(steps: list[tuple[float, Step]], rules: HealthRules, faults: Faults | None = None) -> tuple[Faults, float]:
    found, clock = faults or {}, 1000.0
    for pause, step in steps:
        clock += pause
        found = stepped(found, step, Moment(clock=clock, wall=WALL + clock, rules=rules))
    return found, clock


def strength(faults: Faults) -> dict[tuple[int | None, HealthCause], int]:
    found: dict[tuple[int | None, HealthCause], int] = {}
    for key, fault in faults.items():
        if fault.phase is not FaultPhase.OVER:
            found[key.gi_id, key.cause] = max(found.get((key.gi_id, key.cause), 0), RANK[fault.severity])
    return found


@given(steps=STEPS, rules=RULES, more=st.lists(st.tuples(st.floats(0, 10**5), st.one_of(EVENTS, BAD)), max_size=8))
def test_severity_never_falls_without_a_seen_recovery(
    steps: list[tuple[float, Step]], rules: HealthRules, more: list[tuple[float, Step]]
) -> None:
    faults, clock = lived(steps, rules)
    held = {key: fault for key, fault in faults.items() if fault.phase is FaultPhase.OPEN}
    before = strength(held)
    gone = any(key.cause in {HealthCause.LOST, HealthCause.HANG} for key in held)
    for pause, planned in more:
        clock += pause
        step = reading(unreachable="lost") if gone and isinstance(planned, HealthReading) else planned
        at = Moment(clock=clock, wall=WALL + clock, rules=rules)
        faults = after_time(stepped(faults, step, at), at)
        now = strength(faults)
        assert all(now.get(place, 0) >= level for place, level in before.items())
    assert all(faults[key].phase is FaultPhase.OPEN for key in held)


@given(steps=STEPS, rules=RULES, events=st.lists(EVENTS, max_size=6), data=st.data())
def test_events_of_one_moment_have_no_order(
    steps: list[tuple[float, Step]], rules: HealthRules, events: list[HealthEvent], data: st.DataObject
) -> None:
    """NVML gives them in any order and any number of portions, some twice."""
    faults, clock = lived(steps, rules)
    at = Moment(clock=clock, wall=WALL + clock, rules=rules)
    found = []
    for order in (events, data.draw(st.permutations([*events, *events[:2]]))):
        result = faults
        for event in order:
            result = after_event(result, event, at)
        found.append(result)
    assert found[0] == found[1]


@given(steps=STEPS, rules=RULES)
def test_what_is_saved_is_read_back_the_same(steps: list[tuple[float, Step]], rules: HealthRules) -> None:
    record = HealthRecord(boot_id="boot-1", gpus={GPU: lived(steps, rules)[0]}, forgotten={GPU: 3.5})
    read = decode(encode(record))
    assert read.gpus.get(GPU, {}) == record.gpus[GPU]
    assert (read.boot_id, read.forgotten) == ("boot-1", {GPU: 3.5})


@given(common=STEPS, first=STEPS, second=STEPS, rules=RULES)
def test_merging_has_no_order_and_invents_and_forgets_nothing(
    common: list[tuple[float, Step]],
    first: list[tuple[float, Step]],
    second: list[tuple[float, Step]],
    rules: HealthRules,
) -> None:
    shared, _ = lived(common, rules)
    one, other = lived(first, rules, shared)[0], lived(second, rules, shared)[0]
    both = merged(one, other)
    assert both == merged(other, one)
    assert merged(both, one) == both == merged(both, other)
    assert set(both) == set(one) | set(other)
    for key, fault in both.items():
        sides = [side[key] for side in (one, other) if key in side]
        assert fault.phase in {side.phase for side in sides}
        latest = max(side.seen if side.recovered is None else side.recovered for side in sides)
        seen_last = any(side.recovered is None and side.seen == latest for side in sides)
        assert (fault.phase is FaultPhase.OPEN) is seen_last


@given(steps=STEPS, rules=RULES)
def test_a_fault_is_only_of_what_was_reported(steps: list[tuple[float, Step]], rules: HealthRules) -> None:
    faults, _ = lived(steps, rules)
    xids = {(step.gi_id, step.xid) for _, step in steps if isinstance(step, HealthEvent)}
    read = any(isinstance(step, HealthReading) for _, step in steps)
    for key in faults:
        assert _reported(key, xids, read)


def _reported(key: FaultKey, xids: set[tuple[int | None, int | None]], read: bool) -> bool:
    if key.cause is HealthCause.XID:
        return (key.gi_id, key.xid) in xids
    return (key.gi_id, None) in xids if key.cause is HealthCause.ECC else read


@given(
    steps=st.lists(st.tuples(st.floats(5, 200), st.booleans(), st.one_of(EVENTS, READINGS)), max_size=12), rules=RULES
)
def test_a_restart_at_any_step_changes_nothing(
    steps: list[tuple[float, bool, HealthEvent | HealthReading]], rules: HealthRules
) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        steady, killed = Node(Path(one), rules={GPU: rules}), Node(Path(other), rules={GPU: rules})
        health, again = steady.open(), killed.open()
        for pause, restarts, step in steps:
            for node, found in ((steady, health), (killed, again)):
                node.now += pause
                found.tick()
                if isinstance(step, HealthEvent):
                    found.observe([step])
                else:
                    found.look([step], {})
            again = killed.open() if restarts else again
            assert again.conditions() == health.conditions()
