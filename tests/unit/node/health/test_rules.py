"""What faults do by default and by a policy's rules."""

import pytest

from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.node.health.fault import CALM_S, calm_s, severity

COUNTED, TAINTS, EVICTS = Severity.COUNTED, Severity.NO_NEW_CLAIMS, Severity.EVICT
LOST, XID = HealthCause.LOST, HealthCause.XID


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
    """A fault that comes and goes takes the GPU out for longer, but not for ever."""
    assert [calm_s(LOST, repeats, DEFAULT_RULES, None) / CALM_S[LOST] for repeats in range(6)] == [1, 2, 4, 8, 8, 8]


def test_the_calm_time_of_simulated_gpus_is_short_and_a_policys_is_as_written() -> None:
    """A simulated GPU must not keep its users waiting; who writes a time gets it."""
    assert [calm_s(LOST, repeats, DEFAULT_RULES, 10.0) for repeats in (0, 1, 9)] == [10.0, 10.0, 10.0]
    assert [calm_s(LOST, repeats, HealthRules(calm_s=600.0), 10.0) for repeats in (0, 1)] == [600.0, 1200.0]
    assert calm_s(LOST, 0, HealthRules(calm_s=0.0), None) == 0.0
    assert all(seconds > 0 for cause, seconds in CALM_S.items() if cause is not HealthCause.UNMONITORED)
