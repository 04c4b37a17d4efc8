"""Compare our engines with golden tables (README.md): ``python tests/golden/run.py FILE...``. Exit status 1 on any
difference and 2 on a table that it cannot read. A new kind of table is one more entry in ``ENGINES``."""

import argparse
import gzip
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from itertools import count
from pathlib import Path

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.allocation import V1_36, Allocator, Limits, SchedulerFeatures, SchedulerQuirks
from dra_driver.scheduler.cel import DeviceView, compile_selector

_SHOWN_DIFFERENCES = 20


class Engine(NamedTuple):
    """One kind of case: ``answers`` recognises its inputs; ``difference`` is empty where the answer is as expected."""

    answers: Callable[[dict[str, Any]], bool]
    difference: Callable[[dict[str, Any], dict[str, Any]], str]


def cel_answer(question: dict[str, Any], lacks: frozenset[str] = frozenset()) -> tuple[str, Any]:
    """Kind of the answer (``compile_error``, ``runtime_error``, ``result``) and text or result; the version ``lacks``
    these."""
    try:
        program = compile_selector(question["expression"], lacks)
    except CelSyntaxError as error:
        return "compile_error", str(error)
    try:
        return "result", program.evaluate(wire_view(question["device"]))
    except CelEvaluationError as error:
        return "runtime_error", str(error)


def wire_view(device: dict[str, Any]) -> DeviceView:
    capacity = {name: {"value": value} for name, value in (device.get("capacity") or {}).items()}
    return DeviceView.from_wire({**device, "capacity": capacity}, device.get("driver", ""))


def cel_difference(question: dict[str, Any], expected: dict[str, Any], lacks: frozenset[str] = frozenset()) -> str:
    """Empty if the kind of answer and the result agree; error texts may differ."""
    wanted = next(kind for kind in ("compile_error", "runtime_error", "result") if expected[kind] is not None)
    kind, value = cel_answer(question, lacks)
    if kind == wanted and (kind != "result" or value == expected["result"]):
        return ""
    return f"{question['expression']}\n    expected {wanted}: {expected[wanted]}\n    found    {kind}: {value}"


_PATIENT = Limits(timeout_s=300)  # the answers do not depend on how fast this machine is


def allocate_answer(question: dict[str, Any], quirks: SchedulerQuirks = V1_36) -> tuple[Any, str | None]:
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


ENGINES: dict[str, Engine] = {
    "allocate": Engine(lambda question: "claims" in question, allocate_difference),
    "cel": Engine(lambda question: "expression" in question, cel_difference),
}


def cases(path: Path) -> Iterator[dict[str, Any]]:
    """All cases of a table, in the order of the file."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    yield from (json.loads(line) for line in text.split("\n") if line.strip())


def case_id(case: dict[str, Any]) -> str:
    """The ``id`` of a case: its family and the start of the SHA-256 of family and input as canonical JSON."""
    content = {"family": case["family"], "input": case["input"]}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{case['family']}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def compare(path: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    total: Counter[str] = Counter()
    different: Counter[str] = Counter()
    texts = []
    for case in cases(path):
        engine = next((e for e in ENGINES.values() if e.answers(case["input"])), None)
        if engine is None:
            raise ValueError(f"{path}: no engine answers case {case['id']} (known kinds: {', '.join(ENGINES)})")
        total[case["family"]] += 1
        text = engine.difference(case["input"], case["expected"])
        if text:
            different[case["family"]] += 1
            texts.append(f"{case['id']}: {text}")
    return total, different, texts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare our engines with golden tables")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    status = 0
    for path in parser.parse_args(arguments).files:
        try:
            total, different, texts = compare(path)
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        print(path)
        for family in sorted(total):
            print(f"  {family:24} {total[family] - different[family]:5} of {total[family]:5}")
        print(f"  {'all':24} {total.total() - different.total():5} of {total.total():5}")
        for text in texts[:_SHOWN_DIFFERENCES]:
            print(f"  differs: {text}")
        status = max(status, 1 if texts else 0)
    return status


def questions(table: Path) -> Iterator[dict[str, Any]]:
    return (case["input"] for case in cases(table))


if __name__ == "__main__":
    sys.exit(main())
