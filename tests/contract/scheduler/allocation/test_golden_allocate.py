"""Our allocator gives the answers of the scheduler of Kubernetes 1.36 that are recorded in tests/golden."""

import copy
from collections import Counter
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DraError
from dra_driver.scheduler.allocation import AllocationOutcome, Allocator, Limits, SchedulerFeatures
from tests.fuzz import allocate_fuzz
from tests.golden import run
from tests.golden.run import questions

TABLE = Path(run.__file__).with_name("allocate.jsonl.gz")
Question = dict[str, Any]


def test_every_golden_case_agrees() -> None:
    """Allocations equal the scheduler's, and errors occur where the scheduler has errors."""
    total, different, texts = run.compare(TABLE)
    assert total.total() == 1332
    assert different == Counter(), "\n".join(texts[:10])


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_an_answer_reused_for_an_equal_node_is_what_a_search_finds(every: int) -> None:
    """The allocator may reuse the answer for one node on its copy; a search on the copy gives the same answer."""
    reused = 0
    for question in islice(questions(TABLE), 0, None, every):
        doubled = _with_double(question)
        searched, asked = _ask(doubled, reuse_after=10**6), _ask(doubled, reuse_after=-1)
        assert searched == asked
        reused += isinstance(asked, AllocationOutcome) and asked.allocations is not None
    assert reused > 500 // every


def test_damaged_inputs_end_in_an_answer_or_a_dra_error() -> None:
    """Each of 300 damaged inputs ends in an answer or a DraError, and in the same one when asked again."""
    assert allocate_fuzz.run(300, seed=7, slow_s=20, keep=None) == 0


def _with_double(question: Question) -> Question:
    """The question with a second node that gets copies of the first node's own slices."""
    doubled = copy.deepcopy(question)
    name = question["node"]["metadata"]["name"]
    own = [item for item in doubled["slices"] if item["spec"].get("nodeName") == name]
    for item in copy.deepcopy(own):
        item["metadata"]["name"] += "-double"
        item["spec"]["nodeName"] = "double"
        item["spec"]["pool"]["name"] += "-double"
        doubled["slices"].append(item)
    return doubled


def _ask(question: Question, reuse_after: int) -> AllocationOutcome | str:
    """The answer for the copy, after the answer for the original."""
    numbers = count(1)
    try:
        allocator = Allocator(
            slices=question["slices"],
            classes=question["classes"],
            allocated=question["allocated_claims"],
            features=SchedulerFeatures.from_gates(question["features"]),
            limits=Limits(reuse_after=reuse_after),
            new_share_id=lambda: f"share-{next(numbers)}",
        )
        about = allocator.question(question["claims"])
        double = copy.deepcopy(question["node"])
        double["metadata"]["name"] = "double"
        for node in (question["node"], double):
            numbers = count(1)
            outcome = about.on(node)
    except DraError as error:
        return type(error).__name__
    return outcome
