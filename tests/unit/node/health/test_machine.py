"""The state of one GPU: what opens a fault, its recovery, and the conditions that users and docs/health.md show."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config.policy import policy_of, policy_problems
from dra_driver.core.model.health import TAINT_KEYS, HealthCause, RecoveryAction, Severity
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.node.health.conditions import HealthState, conditions, state
from dra_driver.node.health.fault import (
    CALM_S,
    FLAP_WINDOW_S,
    MOST_XIDS,
    FaultKey,
    FaultPhase,
    Faults,
    calm_s,
    severity,
)
from dra_driver.node.health.machine import (
    SETTLE_S,
    after_boot,
    after_event,
    after_events,
    after_instances,
    after_reading,
    after_repair,
    after_time,
)
from dra_driver.node.health.xids import KNOWN, ROWS, XidRecovery
from dra_driver.node.health.xids import xid as known_xid
from tests.unit.node.health.world import FINE, GPU, WALL, at, ecc, fault, phase, reading, xid

XID, ECC, LOST, HANG = HealthCause.XID, HealthCause.ECC, HealthCause.LOST, HealthCause.HANG
OPEN, RECOVERING, OVER = FaultPhase.OPEN, FaultPhase.RECOVERING, FaultPhase.OVER
RESET = RecoveryAction.GPU_RESET


def looked(faults: Faults, clock: float, **fields: Any) -> Faults:
    return after_reading(faults, reading(**fields), at(clock))


@pytest.mark.parametrize(
    ("number", "ill", "well"),
    [
        (119, {"recovery_action": RESET}, {"recovery_action": RecoveryAction.NONE}),
        (119, {"unreachable": "GPU is lost"}, {}),
        (119, {"rows_pending": True, "rows_failed": False}, {"rows_pending": False, "rows_failed": False}),
        (119, {"pages_pending": True}, {"pages_pending": False}),
        (79, {"unreachable": "GPU is lost"}, {}),
        (79, {"recovery_action": RecoveryAction.NODE_REBOOT}, {"recovery_action": RecoveryAction.NONE}),
    ],
)
def test_a_seen_reset_heals_an_xid_after_its_calm_time(number: int, ill: Any, well: Any) -> None:
    faults = looked(after_event({}, xid(number), at(1)), 2, **ill)
    assert phase(faults, XID, number) is OPEN
    faults = looked(faults, 10, **well)
    assert phase(faults, XID, number) is RECOVERING
    assert phase(after_time(faults, at(9.9 + CALM_S[XID])), XID, number) is RECOVERING
    assert phase(after_time(faults, at(10 + CALM_S[XID])), XID, number) is OVER


@pytest.mark.parametrize(
    ("number", "ill", "well"),
    [
        (119, {"unreachable": "a call hangs", "hangs": True}, {}),
        (79, {"unreachable": "Unknown Error", "passing": True}, {}),
        (119, {"recovery_action": RESET}, {"recovery_action": None}),
        (119, {"recovery_action": RESET}, {"recovery_action": RecoveryAction.DRAIN_AND_RESET}),
        (119, {"recovery_action": RESET}, {"recovery_action": RecoveryAction.UNKNOWN}),
        (119, {"recovery_action": RecoveryAction.NONE}, {"recovery_action": RecoveryAction.NONE}),
        (119, {"rows_pending": True, "rows_failed": False}, {"rows_pending": False, "rows_failed": True}),
        (119, {"rows_pending": True, "rows_failed": False}, {"rows_pending": None, "rows_failed": None}),
        (119, {"links_down": (3,)}, {"links_down": ()}),
        (119, {"fabric_unhealthy": "degraded"}, {"fabric_unhealthy": ""}),
        (79, {"rows_pending": True, "rows_failed": False}, {"rows_pending": False, "rows_failed": False}),
    ],
)
def test_nothing_else_heals_an_xid(number: int, ill: Any, well: Any) -> None:
    """A call that returned, a link that came up or a field that is missing shows no reset."""
    faults = looked(looked(after_event({}, xid(number), at(1)), 2, **ill), 10, **well)
    assert phase(after_time(faults, at(20)), XID, number) is OPEN


def test_a_gpu_that_was_lost_for_good_in_between_shows_a_reset() -> None:
    faults = after_event({}, xid(79), at(1))
    for clock, passing in ((2, True), (3, False), (4, True)):
        faults = looked(faults, clock, unreachable="no answer", passing=passing)
    assert phase(looked(faults, 5), XID, 79) is RECOVERING


def test_the_drivers_word_that_nothing_is_needed_counts_only_after_a_while_and_for_what_it_reports() -> None:
    """The driver decides about a recovery after the event; after XID 119 the catalog promises no report."""
    faults = after_event(after_event({}, xid(95), at(1)), xid(119), at(1))
    faults = looked(faults, SETTLE_S, **FINE)
    assert phase(faults, XID, 95) is OPEN
    faults = looked(after_event(faults, xid(95), at(50)), 1 + SETTLE_S, **FINE)
    assert phase(faults, XID, 95) is OPEN, "it was seen again meanwhile"
    faults = looked(faults, 50 + SETTLE_S, **FINE)
    assert (phase(faults, XID, 95), phase(faults, XID, 119)) == (RECOVERING, OPEN)


def test_a_double_bit_error_heals_by_a_clean_remap_and_not_by_a_failed_one() -> None:
    begun = looked(after_event({}, ecc(), at(1)), 2, rows_pending=True, rows_failed=False)
    clean = looked(begun, 9, rows_pending=False, rows_failed=False)
    failed = looked(begun, 9, rows_pending=False, rows_failed=True)
    assert (phase(clean, ECC), phase(clean, HealthCause.ROW_REMAP)) == (RECOVERING, RECOVERING)
    assert (phase(failed, ECC), phase(failed, HealthCause.ROW_REMAP)) == (OPEN, OPEN)


def test_a_failed_remap_ends_only_when_it_is_read_that_none_has_failed() -> None:
    """NVML does not report rows while MIG instances exist; that is no recovery."""
    failed = looked({}, 1, rows_pending=False, rows_failed=True)
    for blind in ({}, {"rows_pending": False}, {"rows_pending": True}):
        unread = looked(failed, 2, **blind)
        assert fault(unread, HealthCause.ROW_REMAP).detail == "failed"
        assert phase(unread, HealthCause.ROW_REMAP) is OPEN
    assert phase(looked(failed, 3, rows_pending=False, rows_failed=False), HealthCause.ROW_REMAP) is RECOVERING


@pytest.mark.parametrize(
    ("cause", "ill", "well"),
    [
        (LOST, {"unreachable": "lost"}, {}),
        (HANG, {"unreachable": "hangs", "hangs": True}, {}),
        (HealthCause.RECOVERY_ACTION, {"recovery_action": RESET}, FINE),
        (HealthCause.ROW_REMAP, {"rows_pending": True}, FINE),
        (HealthCause.RETIRED_PAGES, {"pages_pending": True}, FINE),
        (HealthCause.NVLINK, {"links_down": (0, 3)}, FINE),
        (HealthCause.FABRIC, {"fabric_unhealthy": "route"}, FINE),
    ],
)
def test_what_is_read_taints_until_it_is_read_to_be_well(cause: HealthCause, ill: Any, well: Any) -> None:
    """A look that says nothing about it changes nothing; the stabilization period begins with the good look, once."""
    faults = looked(looked({}, 1, **ill), 2, **ill)
    assert fault(faults, cause).severity is Severity.NO_NEW_CLAIMS
    if well:
        assert phase(looked(faults, 3), cause) is OPEN
    faults = looked(looked(faults, 10, **well), 15, **well)
    assert phase(after_time(faults, at(10 + CALM_S[cause] - 0.1)), cause) is RECOVERING
    assert phase(after_time(faults, at(10 + CALM_S[cause])), cause) is OVER


def test_a_gpu_that_does_not_answer_keeps_all_its_other_faults() -> None:
    faults = looked({}, 1, recovery_action=RESET, links_down=(1,))
    faults = looked(faults, 2, unreachable="lost")
    assert [fault.phase for fault in faults.values()] == [OPEN] * 3


def test_a_fault_that_comes_back_keeps_its_time_and_waits_longer() -> None:
    faults: Faults = {}
    for clock in (0, 10, 20):
        faults = looked(looked(faults, clock, links_down=(1,)), clock + 5, links_down=())
    calm = CALM_S[HealthCause.NVLINK] * 4
    assert fault(faults, HealthCause.NVLINK).since == WALL
    assert phase(after_time(faults, at(25 + calm - 1)), HealthCause.NVLINK) is RECOVERING
    assert phase(after_time(faults, at(25 + calm)), HealthCause.NVLINK) is OVER


def test_a_fault_that_comes_back_within_an_hour_of_its_end_waits_longer_and_later_does_not() -> None:
    rules = HealthRules(calm_s=10)
    over = after_time(looked(looked({}, 0, links_down=(1,)), 1, links_down=()), at(11, rules))
    soon = looked(after_time(over, at(100, rules)), 100, links_down=(1,))
    later = looked(after_time(over, at(12 + FLAP_WINDOW_S, rules)), 12 + FLAP_WINDOW_S, links_down=(1,))
    assert (fault(soon, HealthCause.NVLINK).repeats, fault(soon, HealthCause.NVLINK).since) == (1, WALL + 100)
    assert fault(later, HealthCause.NVLINK).repeats == 0


def test_an_application_error_that_a_policy_taints_ends_without_a_reset() -> None:
    rules = HealthRules(taint_xids=frozenset({31}), calm_s=10)
    faults = after_event({}, xid(31), at(1, rules))
    faults = after_event(after_event(faults, xid(31), at(6, rules)), xid(31), at(6, rules))
    assert phase(after_time(faults, at(15, rules)), XID, 31) is RECOVERING
    assert phase(after_time(faults, at(16.1, rules)), XID, 31) is OVER
    assert fault(faults, XID, 31).repeats == 0


def test_rules_apply_to_what_is_there_and_the_time_moves_with_the_severity() -> None:
    """A pod's toleration seconds count from when the taint began to evict."""
    evicting = HealthRules(evicting_xids=frozenset({79}))
    faults = after_time(after_event({}, xid(79), at(1)), at(100, evicting))
    assert (fault(faults, XID, 79).severity, fault(faults, XID, 79).since) == (Severity.EVICT, WALL + 100)
    ignoring = after_time(faults, at(200, HealthRules(ignored_xids=frozenset({79}))))
    assert fault(ignoring, XID, 79).severity is Severity.COUNTED


def test_a_partitions_fault_is_over_with_its_instance_and_others_stay() -> None:
    faults = after_event(after_event(after_event({}, xid(95, gi_id=3), at(1)), xid(95, gi_id=4), at(1)), xid(95), at(1))
    faults = after_instances(faults, {4}, at(2))
    assert (phase(faults, XID, 95, 3), phase(faults, XID, 95, 4), phase(faults, XID, 95)) == (OVER, OPEN, OPEN)
    assert after_instances(faults, {4}, at(99)) == faults, "its end does not move"


def test_a_reboot_heals_what_a_reboot_heals() -> None:
    faults = after_event(after_event({}, xid(79), at(1)), xid(95, gi_id=3), at(1))
    faults = looked(faults, 2, recovery_action=RESET, rows_failed=True, links_down=(1,))
    faults = after_boot(looked(faults, 3, unreachable="lost"), at(0.5))
    assert {key.cause: found.phase for key, found in faults.items() if key.gi_id is None} == {
        XID: RECOVERING,
        HealthCause.RECOVERY_ACTION: RECOVERING,
        HealthCause.NVLINK: RECOVERING,
        HealthCause.ROW_REMAP: OPEN,
        LOST: OPEN,
    }
    assert phase(faults, XID, 95, 3) is OVER
    pending = after_boot(looked({}, 1, rows_pending=True, rows_failed=False), at(0.5))
    assert phase(pending, HealthCause.ROW_REMAP) is RECOVERING


def test_a_reboot_that_did_not_help_is_seen_at_the_next_look() -> None:
    """The taint was never away, so that its time is the old one."""
    faults = after_boot(looked({}, 1, recovery_action=RESET), at(0.5))
    faults = looked(faults, 5, recovery_action=RESET)
    assert phase(faults, HealthCause.RECOVERY_ACTION) is OPEN
    assert fault(faults, HealthCause.RECOVERY_ACTION).since == WALL + 1


def test_an_administrators_word_heals_errors_and_not_what_is_still_read() -> None:
    """A reset with the driver given up leaves no trace on drivers without a recovery action."""
    faults = looked(after_event({}, xid(119), at(1)), 2, links_down=(1,))
    faults = after_repair(faults, at(3))
    assert (phase(faults, XID, 119), phase(faults, HealthCause.NVLINK)) == (RECOVERING, OPEN)


def test_a_gpu_that_invents_xids_is_remembered_with_few_of_them_and_none_that_is_stronger_gives_way() -> None:
    rules = HealthRules(evicting_xids=frozenset({79}))
    faults = after_event({}, xid(79), at(0, rules))
    for number in range(1000, 1200, 2):
        faults = after_events(faults, [xid(number), xid(number + 1)], at(number, rules))
    assert len(faults) == MOST_XIDS
    assert fault(faults, XID, 79).severity is Severity.EVICT
    assert after_events(faults, [xid(2000)], at(2000, rules)) == faults, "the older stay, so that nothing changes"
    late = HealthRules(evicting_xids=frozenset({79, 48}))
    assert fault(after_events(faults, [xid(48)], at(2001, late)), XID, 48).severity is Severity.EVICT


@pytest.mark.parametrize("number", [-1, 0, 65536, 2**63])
def test_a_number_that_is_no_xid_taints_as_one_unknown_xid(number: int) -> None:
    assert list(after_event({}, xid(number, gi_id=2**40), at(1))) == [FaultKey(None, XID, 0)]


COUNTED, TAINTS, EVICTS = Severity.COUNTED, Severity.NO_NEW_CLAIMS, Severity.EVICT


@pytest.mark.parametrize("cause", list(HealthCause))
def test_nothing_evicts_unless_a_policy_asks_for_it(cause: HealthCause) -> None:
    """Kubernetes deletes evicted pods without a look at their budgets."""
    assert severity(cause, 79, DEFAULT_RULES) is (COUNTED if cause is HealthCause.UNMONITORED else TAINTS)


@pytest.mark.parametrize(
    ("cause", "number", "rules", "expected"),
    [
        (XID, 31, HealthRules(), COUNTED),
        (XID, 31, HealthRules(taint_xids=frozenset({31})), TAINTS),
        (XID, 31, HealthRules(evicting_xids=frozenset({31})), EVICTS),
        (XID, 31, HealthRules(evicting_causes=frozenset({XID})), COUNTED),
        (XID, 31, HealthRules(taint_xids=frozenset({31}), evicting_causes=frozenset({XID})), EVICTS),
        (XID, 79, HealthRules(ignored_xids=frozenset({79})), COUNTED),
        (XID, 79, HealthRules(ignored_xids=frozenset({79}), evicting_causes=frozenset({XID})), COUNTED),
        (XID, 79, HealthRules(ignored_causes=frozenset({XID})), COUNTED),
        (XID, 79, HealthRules(ignored_causes=frozenset({XID}), evicting_xids=frozenset({79})), EVICTS),
        (XID, 79, HealthRules(ignored_causes=frozenset({XID}), taint_xids=frozenset({79})), TAINTS),
        (XID, 79, HealthRules(evicting_causes=frozenset({XID})), EVICTS),
        (XID, 999, HealthRules(), TAINTS),
        (LOST, 0, HealthRules(evicting_causes=frozenset({LOST})), EVICTS),
        (LOST, 0, HealthRules(ignored_causes=frozenset({LOST})), COUNTED),
        (LOST, 0, HealthRules(evicting_causes=frozenset({HealthCause.HANG})), TAINTS),
        (HealthCause.UNMONITORED, 0, HealthRules(evicting_causes=frozenset({HealthCause.UNMONITORED})), COUNTED),
    ],
)
def test_what_names_an_xid_is_stronger_than_what_names_its_cause(
    cause: HealthCause, number: int, rules: HealthRules, expected: Severity
) -> None:
    """An application error evicts only where its own number is named."""
    assert severity(cause, number, rules) is expected


def test_the_calm_time_doubles_with_each_return_up_to_eight_times() -> None:
    assert [calm_s(LOST, repeats, DEFAULT_RULES, None) / CALM_S[LOST] for repeats in range(6)] == [1, 2, 4, 8, 8, 8]


def test_the_calm_time_of_simulated_gpus_is_short_and_a_policys_is_as_written() -> None:
    assert [calm_s(LOST, repeats, DEFAULT_RULES, 10.0) for repeats in (0, 1, 9)] == [10.0, 10.0, 10.0]
    assert [calm_s(LOST, repeats, HealthRules(calm_s=600.0), 10.0) for repeats in (0, 1)] == [600.0, 1200.0]
    assert calm_s(LOST, 0, HealthRules(calm_s=0.0), None) == 0.0
    assert all(seconds > 0 for cause, seconds in CALM_S.items() if cause is not HealthCause.UNMONITORED)


APPLICATION_ERRORS = (13, 31, 43, 45, 68, 109)
"""What NVIDIA's device plugin and DRA driver ignore."""


@pytest.mark.parametrize("number", APPLICATION_ERRORS)
def test_an_application_error_does_not_taint(number: int) -> None:
    assert not known_xid(number).taints
    assert known_xid(number).recovery is XidRecovery.RESTART_APP
    assert "L" in known_xid(number).sources


def test_each_row_is_whole_and_stands_once_in_order() -> None:
    numbers = [row[0] for row in ROWS]
    assert numbers == sorted(set(numbers))
    assert len(KNOWN) == len(ROWS)
    for number, meaning, _, since, sources in ROWS:
        assert 0 < number < 1000
        assert meaning
        assert not meaning.endswith(".")
        assert since in {0, 565, 570, 575}
        assert sources
        assert set(sources) <= set("CNL")


EVICT_79 = HealthRules(evicting_xids=frozenset({79}))


def with_xids(*numbers: int, rules: HealthRules = EVICT_79) -> Faults:
    faults: Faults = {}
    for clock, number in enumerate(numbers):
        faults = after_event(faults, xid(number), at(clock, rules))
    return faults


def test_the_worst_xid_gives_value_and_time_whatever_comes_after_it() -> None:
    """A later, weaker error must not lower the taint or hide its number."""
    (found,) = conditions(GPU, with_xids(119, 79, 31, 48), at(9, EVICT_79))
    assert (found.value, found.severity, found.since) == ("79", Severity.EVICT, WALL + 1)
    assert found.message == (
        "The GPU reported XID 79, and XID 119, 48: the GPU has fallen off the bus. Drain the node and reboot it."
        " New claims do not get the GPU until 120 s after detected recovery. Running pods are evicted."
    )


def test_a_condition_in_its_calm_time_says_how_recovery_was_seen() -> None:
    (found,) = conditions(GPU, after_repair(with_xids(119), at(5)), at(6))
    assert found.message.endswith(
        "Recovery detected: an administrator undrained it. The GPU accepts new claims after 120 s without errors."
    )
    assert found.severity is Severity.NO_NEW_CLAIMS


def test_each_cause_on_each_device_is_one_condition_the_whole_gpu_first() -> None:
    faults = after_event(after_event(with_xids(119), xid(95, gi_id=2), at(1)), ecc(gi_id=2), at(1))
    down = reading(links_down=(0, 3), rows_failed=True, recovery_action=RecoveryAction.DRAIN_AND_RESET)
    found = conditions(GPU, after_reading(faults, down, at(2)), at(3))
    assert [(one.gi_id, one.cause.value, one.value) for one in found] == [
        (None, "nvlink", ""),
        (None, "recovery-action", "drain-and-reset"),
        (None, "row-remap", "failed"),
        (None, "xid", "119"),
        (2, "ecc", ""),
        (2, "xid", "95"),
    ]
    assert "NVLinks of the GPU are down: 0, 3." in found[0].message
    assert "Replace the GPU" in found[2].message
    assert "The MIG partition reported XID 95" in found[5].message


@pytest.mark.parametrize(
    ("faults", "down", "advice"),
    [
        (with_xids(79), {"unreachable": "it has fallen off the bus"}, "Drain the node and reboot it."),
        (with_xids(119), {"recovery_action": RecoveryAction.NODE_REBOOT}, "Drain the node and reboot it."),
        (with_xids(119), {"links_down": (1,)}, "Drain the node and reset the GPU."),
        (with_xids(79), {"rows_failed": True}, "Replace the GPU; contact NVIDIA."),
        (with_xids(119, 79, rules=DEFAULT_RULES), {"links_down": (1,)}, "Drain the node and reboot it."),
    ],
)
def test_open_faults_of_one_gpu_share_a_message_with_the_strongest_advice(
    faults: Faults, down: dict[str, Any], advice: str
) -> None:
    found = conditions(GPU, after_reading(faults, reading(**down), at(2)), at(3))
    assert len(found) == 2
    (message,) = {one.message for one in found}
    said = {*re.findall(r"[^.]*\b(?:Drain|[Rr]eset|(?<!-)reboot|Replace|Look)\b[^.]*\.", message)}
    assert {each.strip() for each in said} == {advice}
    assert "reported XID" in message
    assert "New claims do not get the" in message


def test_what_the_hardware_says_is_shown_without_control_characters() -> None:
    faults = after_reading({}, reading(unreachable="lost\x1b[31m\n" + "x" * 500), at(1))
    (found,) = conditions(GPU, faults, at(2))
    assert "lost?[31m " in found.message
    assert len(found.message) < 400


def test_the_state_of_a_device_is_that_of_its_worst_fault() -> None:
    ill = with_xids(119, 79)
    healed = after_repair(ill, at(5))
    assert state({}.values()) is HealthState.HEALTHY
    assert state(ill.values()) is HealthState.EVICT
    assert state(healed.values()) is HealthState.RECOVERING
    assert state(after_event(healed, xid(119), at(6)).values()) is HealthState.NO_NEW_CLAIMS


PAGE = (Path(__file__).parents[4] / "docs" / "health.md").read_text()


@pytest.mark.parametrize("cause", list(HealthCause))
def test_each_cause_is_documented_with_its_key_and_calm_time(cause: HealthCause) -> None:
    (row,) = re.findall(rf"^\| `{cause}` \|.*$", PAGE, re.MULTILINE)
    calm = "none" if CALM_S[cause] == 0 else f"{CALM_S[cause]:g} s"
    assert row.endswith(f"| {calm} |")
    assert f"`{TAINT_KEYS[cause]}" in row


def test_each_xid_is_documented_and_those_that_taint_stand_out() -> None:
    """`make gen` writes the table; a row that is edited by hand is a difference."""
    rows = re.findall(r"^\| ([\d, -]+) \| .*? \| (\*\*taints\*\*|counted) \|", PAGE, re.MULTILINE)
    documented = {number: does == "**taints**" for numbers, does in rows for number in expanded(numbers)}
    assert documented == {number: known.taints for number, known in KNOWN.items()}


def expanded(numbers: str) -> Iterator[int]:
    """Yield the numbers of a list such as 39-41, 70."""
    for each in numbers.split(", "):
        first, _, last = each.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_the_policy_that_is_shown_can_be_applied() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    written = yaml.safe_load(text)
    assert policy_problems(written) == []
    assert policy_of(written).health.evicting_causes == {HealthCause.LOST}
