"""Writes docs/internals/faults.md from faults.toml and from the last runs of `make chaos` and of the lab.

A test names its row with ``@pytest.mark.fault("<id>")``. scripts/gen.py fails if a row has no test, if a test names
no row, or if a recorded time belongs to a test that does not exist.

usage: faults_docs.py collect FOLDER RUN [SECONDS]

Joins the records in FOLDER into docs/internals/faults/RUN.json (RUN is chaos or lab) and writes the page.
"""

import ast
import json
import os
import platform
import statistics
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("docs/internals/faults")
PAGE = Path("docs/internals/faults.md")
ROWS = FOLDER / "faults.toml"
RUNS = {"chaos": "`make chaos`", "lab": "the lab: Kubernetes 1.36.2 with containerd 2.1.9"}
TESTS = ("tests/chaos/test_*.py", "tests/e2e/test_faults.py")
UNMEASURED = "not measured"


def generate(source: Path, target: Path) -> None:
    """Write the page below ``target``. Raises SystemExit with what does not agree."""
    rows = read_rows(source)
    if found := list(disagreements(rows, tests_by_fault(source), records(source))):
        raise SystemExit("docs/internals/faults and its tests do not agree:\n" + "\n".join(found))
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(rows, source))


def outputs(root: Path) -> list[Path]:
    """The generated files that exist below ``root``."""
    return [root / PAGE] if (root / PAGE).exists() else []


def read_rows(root: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads((root / ROWS).read_text())["fault"]
    return found


def tests_by_fault(root: Path) -> dict[str, list[str]]:
    """Tests, as ``file::function``, by the fault that their marker names."""
    found: dict[str, list[str]] = {}
    for path in sorted(each for pattern in TESTS for each in root.glob(pattern)):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                for fault in _marked(function):
                    found.setdefault(fault, []).append(f"{path.relative_to(root)}::{function.name}")
    return found


def _marked(function: ast.FunctionDef) -> Iterator[str]:
    """The arguments of ``fault(...)`` in the decorators, ``pytest.param(..., marks=...)`` included."""
    for decorator in function.decorator_list:
        for call in ast.walk(decorator):
            is_fault = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fault"
            if is_fault and isinstance(call, ast.Call) and isinstance(call.args[0], ast.Constant):
                yield str(call.args[0].value)


def records(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each run's last time, by run."""
    paths = {run: root / FOLDER / f"{run}.json" for run in RUNS}
    return {run: json.loads(path.read_text())["records"] for run, path in paths.items() if path.exists()}


def disagreements(
    rows: Sequence[Mapping[str, str]],
    tests: Mapping[str, Sequence[str]],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[str]:
    """A sentence for each thing that does not fit."""
    ids = [row["id"] for row in rows]
    yield from (f"row {each} occurs twice" for each in {each for each in ids if ids.count(each) > 1})
    yield from (f"row {each} has no test: add @pytest.mark.fault({each!r})" for each in ids if each not in tests)
    for fault, names in tests.items():
        if fault not in ids:
            yield f"{', '.join(names)}: no row {fault} in {ROWS}"
    known = {name for names in tests.values() for name in names}
    explained = {row["id"] for row in rows if "lost" in row}
    for run, found in runs.items():
        for record in found:
            if record["test"].partition("[")[0] not in known:
                yield f"{run}.json has {record['test']}, which does not exist: run it again"
            if record["kept"] < record.get("of", 0) and record["fault"] not in explained:
                yield f"{run}.json: {record['test']} lost claims, and row {record['fault']} does not say which (`lost`)"


def page(rows: Sequence[Mapping[str, str]], root: Path) -> str:
    """The page as Markdown."""
    runs = records(root)
    parts = [HEAD.strip(), "\n".join(_runs(root))]
    for group in dict.fromkeys(row["group"] for row in rows):
        chosen = [row for row in rows if row["group"] == group]
        parts.append(f"## {group}\n\n" + "\n".join(_table(chosen, runs)))
    return "\n\n".join([*parts, TAIL.strip()]) + "\n"


def _runs(root: Path) -> Iterator[str]:
    yield "| run | date | machine | tests | took |"
    yield "|---|---|---|---|---|"
    for run, what in RUNS.items():
        path = root / FOLDER / f"{run}.json"
        if not path.exists():
            yield f"| {what} | not run yet | | | |"
            continue
        found = json.loads(path.read_text())
        took = f"{found['seconds'] / 60:.0f} min" if found.get("seconds") else ""
        yield f"| {what} | {found['date']} | {found['machine']} | {len(found['records'])} | {took} |"


def _table(rows: Sequence[Mapping[str, str]], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield "| fault | reaction of the driver | lost | seconds until normal | test environment |"
    yield "|---|---|---|---|---|"
    for row in rows:
        figures = [_figure(row["id"], run, found) for run, found in runs.items()]
        seconds = ", ".join(each for each in figures if each) or "**not run**"
        yield f"| {row['what']} | {row['does']} | {_lost(row, runs)} | {seconds} | {row['where']} |"


def _lost(row: Mapping[str, str], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the records counted, with the row's explanation; nothing is called kept that no test counted."""
    each_run = (record for records in runs.values() for record in records if record["fault"] == row["id"])
    found = [record for record in each_run if "of" in record]
    if not found:
        return UNMEASURED
    lost, of = max((record["of"] - record["kept"], record["of"]) for record in found)
    counted = f"{lost or 'none'} of {of}" if of else "(no claim is left to lose)"
    return f"{counted}: {row['lost']}" if "lost" in row else counted


def _figure(fault: str, run: str, found: Sequence[Mapping[str, Any]]) -> str:
    seconds = [float(record["seconds"]) for record in found if record["fault"] == fault]
    if not seconds:
        return ""
    several = f" (most {max(seconds):.1f})" if len(seconds) > 1 else ""
    return f"{statistics.median(seconds):.1f}{several}{' in the lab' if run == 'lab' else ''}"


def collect(folder: Path, run: str, seconds: float | None = None) -> Path:
    """Join the records of one run; returns the file. Raises SystemExit without any."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise SystemExit(f"{folder} has no record: did the tests run with FAULT_RECORDS={folder}?")
    for record in found:
        record["seen"] = _without_folders(record["seen"])
    found.sort(key=lambda record: (record["fault"], record["test"]))
    path = ROOT / FOLDER / f"{run}.json"
    kernel = platform.release().partition("-")[0]
    document = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, Linux {kernel}",
        "seconds": seconds,
        "records": found,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path


def _without_folders(text: str) -> str:
    """Without the folders of the machine: temporary ones differ each time."""
    words = [
        f".../{word.rpartition('/')[2]}" if "/dra-" in word and "://" not in word else word for word in text.split()
    ]
    return " ".join(words)


HEAD = """
# Faults

This page is generated by `scripts/faults_docs.py` from [faults/faults.toml](faults/faults.toml) and the records of the
last runs; do not edit it. Every row has a test that injects the fault into a real node process with simulated GPUs.

During the fault, the test prepares a claim of each form (a whole GPU with a time slice, a MIG partition, a time-sliced
share, an MPS share). *Lost* counts claims that are missing afterwards, or have a different answer to a repeated call.
Claims that the test ends do not count. *Seconds until normal* start at the end of the fault, or at the start of the
next process. They end when the slices are complete, `/readyz` reports ready, and a new claim is prepared. Rows with
several tests show the median and the maximum. After each test, the last claim is unprepared, and the test requires that
no journal row, CDI file, GPU state backup, partition, MIG mode, time slice or daemon remains.

[chaos.json](faults/chaos.json) and [lab.json](faults/lab.json) name the test of each fault and the message that it
recorded. No fault was tried on a real GPU.
"""
TAIL = """
## Repeat it

    make chaos        # under 15 minutes; prints this table and regenerates this page

Tests without the required privileges are skipped with the reason, and their rows show *not run*. The lab's part is
`tests/e2e/test_faults.py`, on a node of a cluster ([CONTRIBUTING.md](../../CONTRIBUTING.md#against-a-real-cluster)):
with `FAULT_RECORDS` set to a directory, `python scripts/faults_docs.py collect DIRECTORY lab` collects its figures.
"""


def main(arguments: Sequence[str]) -> int:
    if not 3 <= len(arguments) <= 4 or arguments[0] != "collect" or arguments[2] not in RUNS:
        print(__doc__, file=sys.stderr)
        return 2
    seconds = float(arguments[3]) if len(arguments) == 4 else None
    print(collect(Path(arguments[1]), arguments[2], seconds).relative_to(ROOT))
    generate(ROOT, ROOT)
    print("\n".join(line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith(("|", "## "))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
