"""The golden cases as Kubernetes 1.34 and 1.35 answer them; ``versions/`` holds the answers that differ from 1.36.
Gates are as in 1.36 (``on``) or off as before 1.36 (``default``); 1.34 needs counter sets in the slices of their
consumers."""

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Wire = dict[str, Any]
FOLDER = Path(__file__).with_name("versions")
OFF_BEFORE_1_36 = ("DRAPartitionableDevices", "DRADeviceTaints", "DRADeviceBindingConditions", "DRAConsumableCapacity")


def answers(kind: str, version: str, gates: str | None = None) -> dict[str, Wire]:
    """The answers of this version that are not those of 1.36, by ID of the case. ``kind``: ``cel`` or ``allocate``."""
    with gzip.open(FOLDER / f"{kind}-{version}.jsonl.gz", "rt", encoding="utf-8") as lines:
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
