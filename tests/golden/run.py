"""Compare our engines with golden tables (README.md): ``python tests/golden/run.py FILE...``. Exit status 1 on any
difference and 2 on a table that it cannot read. A new kind of table is one more entry in ``ENGINES``.

``versions/`` holds the answers of Kubernetes 1.34 and 1.35 that differ from 1.36. Gates are as in 1.36 (``on``) or off
as before 1.36 (``default``); 1.34 needs counter sets in the slices of their consumers."""

import argparse
import copy
import gzip
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.allocation import V1_36, Allocator, Limits, SchedulerFeatures, SchedulerQuirks
from dra_driver.scheduler.cel import DeviceView, compile_selector

Wire = dict[str, Any]
VERSIONS = Path(__file__).with_name("versions")
OFF_BEFORE_1_36 = ("DRAPartitionableDevices", "DRADeviceTaints", "DRADeviceBindingConditions", "DRAConsumableCapacity")
_SHOWN_DIFFERENCES = 20


class Engine(NamedTuple):
    """One kind of case: ``answers`` recognises its inputs; ``difference`` is empty where the answer is as expected."""

    answers: Callable[[Wire], bool]
    difference: Callable[[Wire, Wire], str]


def cel_answer(question: Wire, lacks: frozenset[str] = frozenset()) -> tuple[str, Any]:
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


def wire_view(device: Wire) -> DeviceView:
    capacity = {name: {"value": value} for name, value in (device.get("capacity") or {}).items()}
    return DeviceView(device.get("driver", ""), {**device, "capacity": capacity})


def cel_difference(question: Wire, expected: Wire, lacks: frozenset[str] = frozenset()) -> str:
    """Empty if the kind of answer and the result agree; error texts may differ."""
    wanted = next(kind for kind in ("compile_error", "runtime_error", "result") if expected[kind] is not None)
    kind, value = cel_answer(question, lacks)
    if kind == wanted and (kind != "result" or value == expected["result"]):
        return ""
    return f"{question['expression']}\n    expected {wanted}: {expected[wanted]}\n    found    {kind}: {value}"


_PATIENT = Limits(timeout_s=300)  # the answers do not depend on how fast this machine is


def allocate_answer(question: Wire, quirks: SchedulerQuirks = V1_36) -> tuple[Any, str | None]:
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


def allocate_difference(question: Wire, expected: Wire, quirks: SchedulerQuirks = V1_36) -> str:
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


def cases(path: Path) -> Iterator[Wire]:
    """All cases of a table, in the order of the file."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    yield from (json.loads(line) for line in text.split("\n") if line.strip())


def case_id(case: Wire) -> str:
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


def questions(table: Path) -> Iterator[Wire]:
    return (case["input"] for case in cases(table))


def answers(kind: str, version: str, gates: str | None = None) -> dict[str, Wire]:
    """The answers of this version that are not those of 1.36, by ID of the case. ``kind``: ``cel`` or ``allocate``."""
    with gzip.open(VERSIONS / f"{kind}-{version}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {row["id"]: row["expected"] for row in map(json.loads, lines) if row.get("gates") == gates}


def allocation_cases(table: Iterator[Wire], version: str, gates: str) -> Iterator[Wire]:
    """The cases of the table of 1.36 with the answers of this version; those that 1.34 cannot have are left out."""
    differing = answers("allocate", version, gates)
    for case in table:
        question: Wire | None = case["input"]
        if gates == "default":
            off = dict.fromkeys(OFF_BEFORE_1_36, False)
            question = {**case["input"], "features": {**case["input"]["features"], **off}}
        elif version == "1.34":
            question = with_counters_beside(case["input"])
        if question is not None:
            yield {**case, "input": question, "expected": differing.get(case["id"], case["expected"])}


def with_counters_beside(question: Wire) -> Wire | None:
    """The question with each counter set in the slice of its consumers; None where they are in several slices."""
    moved = copy.deepcopy(question)
    pools: dict[Any, list[Wire]] = {}
    for item in moved["slices"]:
        pool = item["spec"]["pool"]
        pools.setdefault((item["spec"]["driver"], pool["name"], pool.get("generation", 0)), []).append(item)
    emptied = [item for items in pools.values() for item in items if item["spec"].get("sharedCounters")]
    if not all(_move(items) for items in pools.values()):
        return None
    moved["slices"] = [item for item in moved["slices"] if not any(item is one for one in emptied)]
    return moved


def _move(items: list[Wire]) -> bool:
    holding = [item for item in items if item["spec"].get("sharedCounters")]
    if any(item["spec"].get("devices") for item in holding):
        return False
    sets = [one for item in holding for one in item["spec"]["sharedCounters"]]
    if len({one["name"] for one in sets}) < len(sets):
        return False
    for one in sets:
        users = [item for item in items if one["name"] in _consumed(item)]
        if len(users) > 1:
            return False
        for item in users:
            item["spec"].setdefault("sharedCounters", []).append(one)
    for item in items:
        if item not in holding and holding:
            pool = item["spec"]["pool"]
            pool["resourceSliceCount"] = max(0, (pool.get("resourceSliceCount") or 0) - len(holding))
    return all(_is_complete(item) for item in items)


def _consumed(item: Wire) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for device in item["spec"].get("devices") or []:
        for taken in device.get("consumesCounters") or []:
            found.setdefault(taken["counterSet"], set()).update(taken.get("counters") or {})
    return found


def _is_complete(item: Wire) -> bool:
    own = {one["name"]: set(one.get("counters") or {}) for one in item["spec"].get("sharedCounters") or []}
    return all(name in own and counters <= own[name] for name, counters in _consumed(item).items())


if __name__ == "__main__":
    sys.exit(main())
