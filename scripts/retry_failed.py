"""Runs the tests that failed in a run of pytest once more, one after another and alone; passes when all of them pass.

A test that fails beside others and passes alone met a machine that was too busy for one of its time limits: it has to
be mended. Each is printed as unsteady. ``unsteady`` of tests/skips.toml lists such tests; that list may not grow beyond
``most_unsteady``. One that is not listed does not fail the run, because a busy machine refuses no change that has
nothing to do with it; ``MOST_NEW`` + 1 of them do. More than ``MOST`` failures, and a report that does not agree with
pytest's own list of failures (a worker that crashed, a test file that cannot be imported), are not repeated. Used by
``.ci/run``.

With ``--listed``, each test of the list runs ``REPEATS`` times beside a busy loop on each core (`make test-slow`).

usage: retry_failed.py REPORT            REPORT: the JUnit report of the run (``--junitxml``)
       retry_failed.py --listed
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAST_FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
LIST = ROOT / "tests/skips.toml"
MOST = 3
MOST_NEW = 1
REPEATS = 30

Runs = Callable[[str], bool]


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    listed = tomllib.loads(LIST.read_text())["unsteady"]
    if argv[1] == "--listed":
        return repeat(listed)
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    return judge(failed, failures_in(Path(argv[1])), passes_alone, listed)


def judge(failed: list[str], reported: int, passes: Runs, listed: Sequence[str]) -> int:
    """The exit status. ``failed`` are ids of tests, ``reported`` is how many failed by the report."""
    if not failed or len(failed) > MOST or len(failed) != reported:
        print(
            f"Not repeated: {reported} tests failed by the report, {len(failed)} by pytest's list; at most {MOST} are."
        )
        return 1
    for test in failed:
        if not passes(test):
            print(f"Failed again, alone: {test}")
            return 1
        print(f"Unsteady, mend it: {test} failed beside others and passed alone")
    new = [test for test in failed if test.partition("[")[0] not in listed]
    if new:
        print(f"Not listed as unsteady (`unsteady` of tests/skips.toml): {', '.join(new)}")
    return int(len(new) > MOST_NEW)


def repeat(listed: Sequence[str]) -> int:
    """Run each test many times on a busy machine; the exit status."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        failures = {test: sum(not passes_alone(test) for _ in range(REPEATS)) for test in listed}
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print("".join(f"{test}: {count} of {REPEATS} failed\n" for test, count in failures.items()) or "No test is listed.")
    return 1 if any(failures.values()) else 0


def failures_in(report: Path) -> int:
    """Test cases with a failure or an error; 0 when there is no report."""
    return sum(bool(found & {"failure", "error"}) for found in outcomes(report))


def passed_in(report: Path) -> int:
    """Test cases that ran and passed: one that was skipped did not."""
    return sum(not found & {"failure", "error", "skipped"} for found in outcomes(report))


def outcomes(report: Path) -> list[set[str]]:
    """What a report has about each test case; nothing for one that passed."""
    try:
        cases = ET.parse(report).iter("testcase")  # noqa: S314 - the report of our own test run
    except (OSError, ET.ParseError):
        return []
    return [{child.tag for child in case} for case in cases]


def passes_alone(test: str) -> bool:
    """Runs one test in a pytest of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "0", f"--junitxml={report}", test]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0 and passed_in(report) >= 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
