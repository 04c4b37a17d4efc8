"""The suite finds every fault of a deliberately broken driver, by the check that is for it, and no fault elsewhere."""

import pytest

from dra_driver.conformance import suite
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import CheckOutcome
from tests.contract.conformance.conftest import MakeBench
from tests.fakes.subject.faults import FAULTS

BY_ID = {check.id: check for check in CHECKS}
MAY_BE_MISSING: dict[str, str] = {}
"""Checks that the driver without faults cannot show, with the reason."""


def found(outcome: CheckOutcome) -> str:
    return f"{outcome.check.id}: {outcome.verdict}: {outcome.detail}"


def test_a_driver_without_faults_passes_every_check(bench_for: MakeBench) -> None:
    outcomes = suite.run(bench_for(), CHECKS)
    assert [found(outcome) for outcome in outcomes if outcome.verdict != "passed"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_by_its_check(bench_for: MakeBench, fault: str) -> None:
    check = BY_ID[FAULTS[fault][0]]
    [outcome] = suite.run(bench_for(fault), [check])
    assert outcome.verdict == ("failed" if check.level == "must" else "advice"), found(outcome)
    assert outcome.detail


def test_every_check_has_a_fault() -> None:
    """A check that was never seen to fail proves nothing."""
    assert {check.id for check in CHECKS} - {check for check, _ in FAULTS.values()} == set()
