"""Properties of the machine and of merging, over made-up histories."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.model.health import HealthCause, HealthEvent, HealthReading, RecoveryAction
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.node.health.fault import RANK, FaultKey, FaultPhase, Faults, HealthRecord
from dra_driver.node.health.machine import Moment, after_event, after_instances, after_reading, after_repair, after_time
from dra_driver.node.health.storage import decode, encode, merged
from tests.unit.node.health.world import GPU, WALL, Node, ecc, reading, xid

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
