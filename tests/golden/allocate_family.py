"""Golden cases about allocation: the answer of our allocator, and how it differs from the expected one.

A case is one scheduling attempt of one pod on one node. Allocations are compared as JSON; of an error only whether it
occurs. Share IDs are random in a cluster and numbered in tables.
"""

import gzip
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.allocation import V1_36, Allocator, Limits, SchedulerFeatures, SchedulerQuirks

_PATIENT = Limits(timeout_s=300)  # the answers do not depend on how fast this machine is


def questions(table: Path) -> Iterator[dict[str, Any]]:
    """The inputs of a table of allocation cases."""
    with gzip.open(table, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line)["input"] for line in lines)


def allocate_answer(question: dict[str, Any], quirks: SchedulerQuirks = V1_36) -> tuple[Any, str | None]:
    """Allocations and error, at least one of them None."""
    numbers = count(1)
    try:
        allocator = Allocator(
            slices=question["slices"],
            classes=question["classes"],
            allocated=question["allocated_claims"],
            features=SchedulerFeatures.from_gates(question["features"]),
            quirks=quirks,
            limits=_PATIENT,
            new_share_id=lambda: f"share-{next(numbers)}",
        )
        outcome = allocator.allocate(question["node"], question["claims"])
    except (AllocationError, CelSyntaxError, CelEvaluationError) as error:
        return None, str(error)
    return outcome.allocations, outcome.reason if outcome.invalid_pools else None


def allocate_difference(question: dict[str, Any], expected: dict[str, Any], quirks: SchedulerQuirks = V1_36) -> str:
    """Empty if the allocations are equal and both or neither have an error; texts of errors may differ."""
    allocations, error = allocate_answer(question, quirks)
    if allocations == expected["allocations"] and (error is None) == (expected["error"] is None):
        return ""
    wanted = json.dumps(expected, sort_keys=True)
    found = json.dumps({"allocations": allocations, "error": error}, sort_keys=True)
    return f"{json.dumps(question['claims'])[:400]}\n    expected {wanted}\n    found    {found}"
