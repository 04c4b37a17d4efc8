"""Compares our engines with golden tables: ``python tests/golden/run.py FILE...``.

A table is a file of JSON lines (``.jsonl`` or ``.jsonl.gz``): id, family, input, expected. What a case asks is told
from its input, so that one run may take tables of several kinds. Prints agreement by family and, for the first few,
what was expected and what was found; exits with status 1 on any difference and 2 on a table that it cannot read.

An engine is a function from a case's input to an answer, and a function that says how an answer differs from what is
expected; a new kind of table is one more entry in ``ENGINES``.
"""

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dra_driver.cel import DeviceView, compile_selector
from dra_driver.errors import CelEvaluationError, CelSyntaxError
from tests.golden.allocate_family import allocate_difference

_SHOWN_DIFFERENCES = 20


class Engine(NamedTuple):
    """How one kind of case is recognised, answered and judged."""

    asks: Callable[[dict[str, Any]], bool]
    difference: Callable[[dict[str, Any], dict[str, Any]], str]


def cel_answer(question: dict[str, Any]) -> tuple[str, Any]:
    """``compile_error``, ``runtime_error`` or ``result``, and the text or the result."""
    try:
        program = compile_selector(question["expression"])
    except CelSyntaxError as error:
        return "compile_error", str(error)
    try:
        return "result", program.evaluate(wire_view(question["device"]))
    except CelEvaluationError as error:
        return "runtime_error", str(error)


def wire_view(device: dict[str, Any]) -> DeviceView:
    """The view of a device as tables write it: capacities are plain texts there."""
    capacity = {name: {"value": value} for name, value in (device.get("capacity") or {}).items()}
    return DeviceView.from_wire({**device, "capacity": capacity}, device.get("driver", ""))


def cel_difference(question: dict[str, Any], expected: dict[str, Any]) -> str:
    """Empty if kind and result agree; texts of errors may differ."""
    wanted = next(kind for kind in ("compile_error", "runtime_error", "result") if expected[kind] is not None)
    kind, value = cel_answer(question)
    if kind == wanted and (kind != "result" or value == expected["result"]):
        return ""
    return f"{question['expression']}\n    expected {wanted}: {expected[wanted]}\n    found    {kind}: {value}"


ENGINES: dict[str, Engine] = {
    "allocate": Engine(lambda question: "claims" in question, allocate_difference),
    "cel": Engine(lambda question: "expression" in question, cel_difference),
}


def cases(path: Path) -> Iterator[dict[str, Any]]:
    """All cases of a table, in the order of the file."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    yield from (json.loads(line) for line in text.split("\n") if line.strip())


def compare(path: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    """Cases and differences by family, and the text of each difference."""
    total: Counter[str] = Counter()
    different: Counter[str] = Counter()
    texts = []
    for case in cases(path):
        engine = next((e for e in ENGINES.values() if e.asks(case["input"])), None)
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


if __name__ == "__main__":
    sys.exit(main())
