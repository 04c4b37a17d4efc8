"""Our allocator gives the answers of the schedulers of Kubernetes 1.34 and 1.35 that are recorded in tests/golden."""

from itertools import islice
from pathlib import Path

import pytest

from dra_driver.scheduler.allocation import SchedulerQuirks
from tests.golden import run
from tests.golden.run import allocate_difference

TABLE = Path(run.__file__).with_name("allocate.jsonl.gz")
CASES = {("1.34", "on"): 1237, ("1.34", "default"): 1332, ("1.35", "on"): 1332, ("1.35", "default"): 1332}


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("version", "gates"), CASES)
def test_golden_cases_of_older_versions_agree(version: str, gates: str, every: int) -> None:
    """With the gates on, and with the gates that are off by default: `explain` answers for the version it meets."""
    quirks = SchedulerQuirks.of_version(version)
    table = islice(run.cases(TABLE), 0, None, every)
    asked = 0
    for case in run.allocation_cases(table, version, gates):
        asked += 1
        assert allocate_difference(case["input"], case["expected"], quirks) == "", case["id"]
    assert asked > CASES[version, gates] // every - 40
    assert every > 1 or asked == CASES[version, gates]


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_selectors_of_older_versions_agree(version: str) -> None:
    """Each selector whose answer is not that of 1.36, and some of the others; all of them where the test is slow."""
    assert different_selectors(version, 8) == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_all_selectors_of_older_versions_agree(version: str) -> None:
    assert different_selectors(version, 1) == []


def different_selectors(version: str, every: int) -> list[str]:
    """What our engine, with the functions of that version, answers otherwise than that version."""
    differing = run.answers("cel", version)
    assert len(differing) == 8
    lacks = SchedulerQuirks.of_version(version).functions_lacking
    asked = [
        (case["input"], differing[case["id"]] if case["id"] in differing else case["expected"])
        for number, case in enumerate(run.cases(TABLE.with_name("cel.jsonl.gz")))
        if number % every == 0 or case["id"] in differing
    ]
    return [text for question, expected in asked if (text := run.cel_difference(question, expected, lacks))]
