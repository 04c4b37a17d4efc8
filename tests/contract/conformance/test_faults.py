"""The suite finds every fault of a deliberately broken driver, by the check that is for it, and no fault elsewhere."""

import pytest

from dra_driver.conformance import suite
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import CheckOutcome, TimeLimits
from dra_driver.core.finding import exit_status
from tests.contract.conformance.conftest import GENEROUS, MakeBench
from tests.fakes.subject.faults import FAULTS

BY_ID = {check.id: check for check in CHECKS}
MAY_BE_MISSING: dict[str, str] = {}
"""Checks that the driver without faults cannot show, with the reason."""


def found(outcome: CheckOutcome) -> str:
    return f"{outcome.check.id}: {outcome.verdict}: {outcome.detail}"


def test_a_driver_without_faults_passes_every_check(bench_for: MakeBench) -> None:
    outcomes = suite.run(bench_for(), CHECKS)
    assert [found(outcome) for outcome in outcomes if outcome.verdict != "passed"] == []


@pytest.mark.slow
def test_a_driver_with_one_device_is_not_failed_for_it(bench_for: MakeBench) -> None:
    outcomes = suite.run(bench_for("one-device", limits=GENEROUS), CHECKS)
    assert [found(outcome) for outcome in outcomes if outcome.verdict not in {"passed", "not applicable"}] == []
    assert sum(outcome.verdict == "not applicable" for outcome in outcomes) == 11


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_by_its_check(bench_for: MakeBench, fault: str) -> None:
    check = BY_ID[FAULTS[fault][0]]
    [outcome] = suite.run(bench_for(fault), [check])
    assert outcome.verdict == ("failed" if check.level == "must" else "advice"), found(outcome)
    assert outcome.detail


def test_every_check_has_a_fault() -> None:
    """A check that was never seen to fail proves nothing."""
    assert {check.id for check in CHECKS} - {check for check, _ in FAULTS.values()} == set()


IMPATIENT = TimeLimits(
    dial_s=0.1, get_info_s=0.1, notify_s=0.1, call_s=0.05, publish_s=0.1, restart_s=0.1, health_s=0.05, quiet_s=0.05,
    in_use_s=0.05, check_s=2.0, pause_s=0.01,
)  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("get-info-hangs", marks=pytest.mark.slow),
        pytest.param("prepare-hangs", marks=pytest.mark.slow),
        "publishes-nothing",
        "no-known-version",
    ],
)
def test_a_driver_that_hangs_or_lies_never_ends_a_run(bench_for: MakeBench, fault: str) -> None:
    outcomes = suite.run(bench_for(fault, limits=IMPATIENT), CHECKS)
    assert [outcome.check for outcome in outcomes] == list(CHECKS)
    assert [found(outcome) for outcome in outcomes if "unexpectedly" in outcome.detail] == []
    assert exit_status((each.finding.status for each in outcomes), unanswered=3) == 1


def test_a_check_ends_when_its_time_is_over(bench_for: MakeBench) -> None:
    bench = bench_for(limits=TimeLimits(check_s=0.0))
    [outcome] = suite.run(bench, [BY_ID["prepare-answers"]])
    assert "the check did not end within 0 s" in outcome.detail
