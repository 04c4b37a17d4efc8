"""What users and taints show of faults."""

from dra_driver.core.model.health import RecoveryAction, Severity
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.node.health.conditions import HealthState, conditions, state
from dra_driver.node.health.fault import Faults
from dra_driver.node.health.machine import after_event, after_reading, after_repair
from tests.unit.node.health.world import GPU, WALL, at, ecc, reading, xid

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
        " New claims do not get the GPU until recovery was seen and 120 s have passed. Running pods are evicted."
    )


def test_a_condition_in_its_calm_time_says_how_recovery_was_seen() -> None:
    (found,) = conditions(GPU, after_repair(with_xids(119), at(5)), at(6))
    assert found.message.endswith(
        "Recovery was seen: a person gave it back after a drain. The GPU is used again after 120 s without an error."
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
    assert "has to be replaced" in found[2].message
    assert "The MIG partition reported XID 95" in found[5].message


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
