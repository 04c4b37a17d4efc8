"""Fuzz the allocator with changed golden inputs: ``python tests/fuzz/allocate_fuzz.py --count 20000 --seed 1``.

Findings: an exception other than a DraError, neither allocations nor a reason, more than 32 devices for a claim, one
device for two claims, another answer with the cache of equivalent nodes, or a slow input. Exit status 1 on a
finding."""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dra_driver.core.errors import DraError
from dra_driver.scheduler.allocation import AllocationOutcome, Allocator, Limits, SchedulerFeatures
from tests.fuzz.allocate_mutations import Question, plausible, wild
from tests.golden.run import questions

TABLE = ROOT / "tests" / "golden" / "allocate.jsonl.gz"
_TIMEOUT_S = 2.0
_SHOWN = 5


def answer(question: Question, **limits: Any) -> tuple[str, AllocationOutcome | str]:
    numbers = count(1)
    try:
        allocator = Allocator(
            slices=question.get("slices", []),
            classes=question.get("classes", []),
            allocated=question.get("allocated_claims", []),
            features=SchedulerFeatures.from_gates(
                question["features"] if isinstance(question.get("features"), dict) else {}
            ),
            limits=Limits(**{"timeout_s": _TIMEOUT_S, **limits}),
            new_share_id=lambda: f"share-{next(numbers)}",
        )
        outcome = allocator.allocate(question.get("node", {}), question.get("claims", []))
    except DraError as error:
        return "error", str(error)
    return ("no" if outcome.allocations is None else "fits"), outcome


def complaint(question: Question) -> tuple[str, str]:
    """What is wrong (empty if nothing is), and the kind of the answer."""
    kind, found = answer(question)
    if kind == "error" and not found:
        return "an error without a text", kind
    if isinstance(found, AllocationOutcome):
        if kind == "no" and not found.reason:
            return "neither allocations nor a reason", kind
        problem = _violation(found)
        if problem:
            return problem, kind
        again, same = answer(question, reuse_after=-1)
        if (again, same) != (kind, found) and "no answer after" not in str(same):
            return f"a different answer with the cache of equivalent nodes: {same}", kind
    return "", kind


def _violation(outcome: AllocationOutcome) -> str:
    taken: Counter[tuple[Any, ...]] = Counter()
    for allocation in outcome.allocations or ():
        results = allocation["devices"].get("results", [])
        if len(results) > 32:
            return f"{len(results)} devices in one claim"
        exclusive = [item for item in results if not item.get("adminAccess") and "shareID" not in item]
        taken.update((item["driver"], item["pool"], item["device"]) for item in exclusive)
    twice = [key for key, number in taken.items() if number > 1]
    return f"allocated twice: {twice[0]}" if twice else ""


def run(number: int, seed: int, slow_s: float, keep: Path | None) -> int:
    rng = random.Random(seed)  # noqa: S311  repeatable on purpose
    table = list(questions(TABLE))
    kinds: Counter[str] = Counter()
    found: list[str] = []
    slowest = 0.0
    for index in range(number):
        mutate: Callable[..., Question] = wild if rng.random() < 0.6 else plausible
        question = mutate(rng.choice(table), rng)
        started = time.monotonic()
        try:
            problem, kind = complaint(question)
        except Exception:  # noqa: BLE001  an unexpected exception is a finding
            problem, kind = traceback.format_exc(limit=-3), "crash"
        took = time.monotonic() - started
        slowest = max(slowest, took)
        kinds[kind] += 1
        problem = problem or (f"took {took:.1f} s" if took > slow_s else "")
        if problem:
            found.append(f"question {index}: {problem}")
            if keep is not None:
                (keep / f"{seed}-{index}.json").write_text(json.dumps(question))
    print(
        f"{number} questions, seed {seed}: {dict(sorted(kinds.items()))}, slowest {slowest:.2f} s, {len(found)} found"
    )
    for text in found[:_SHOWN]:
        print(text)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the allocator with changed golden inputs")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=3 * _TIMEOUT_S, help="seconds a question may take")
    parser.add_argument("--keep", type=Path, help="folder for the inputs of findings")
    args = parser.parse_args()
    return run(args.count, args.seed, args.slow, args.keep)


if __name__ == "__main__":
    sys.exit(main())
