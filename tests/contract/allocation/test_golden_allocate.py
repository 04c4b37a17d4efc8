"""Our allocator against what the scheduler of Kubernetes 1.36 answered, recorded in tests/golden."""

import copy
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from dra_driver.allocation import AllocationOutcome, Allocator, Limits, SchedulerFeatures
from dra_driver.errors import DraError
from tests.fuzz import allocate_fuzz, allocate_mutations
from tests.golden import run
from tests.golden.allocate_family import questions

TABLE = Path(run.__file__).with_name("allocate.jsonl.gz")
Question = dict[str, Any]


def test_every_golden_case_agrees() -> None:
    """Allocations are the scheduler's, word for word, and errors occur where its errors do."""
    total, different, texts = run.compare(TABLE)
    assert total.total() == 1332
    assert different == Counter(), "\n".join(texts[:10])


def test_nodes_that_are_alike_get_the_same_answer() -> None:
    """An answer found for one node and reused for its double is what a search on the double would have found."""
    reused = 0
    for question in questions(TABLE):
        doubled = _with_double(question)
        searched, asked = _ask(doubled, reuse_after=10**6), _ask(doubled, reuse_after=-1)
        assert searched == asked
        reused += isinstance(asked, AllocationOutcome) and asked.allocations is not None
    assert reused > 500


def test_some_damage_does_no_harm() -> None:
    """A few hundred damaged questions end in an answer or an error of ours, and the same ones each time."""
    assert allocate_fuzz.run(300, seed=7, slow_s=20, keep=None) == 0


def _with_double(question: Question) -> Question:
    """The question with a second node that has copies of everything that the first one has alone."""
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
    """The answer on the double, after the original has been asked about."""
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


def test_mutations_repeat() -> None:
    """One seed gives one sequence of questions, so that a find can be looked at again."""
    table = list(questions(TABLE))
    first, second = (allocate_mutations.plausible(table[0], random.Random(3)) for _ in range(2))  # noqa: S311
    assert first == second
