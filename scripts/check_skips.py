"""Prints why tests were skipped, and fails on a reason that tests/skips.toml does not list, or lists for fewer tests.

Reads a JUnit report of pytest (``--junitxml``). Exit status 1 also when the report has fewer tests than ``least`` of
that file, when more tests are marked slow than ``most_slow``, and when pytest does not collect a file with tests: no
test must be left out unnoticed. Used by ``.ci/run`` only, because other machines lack other programs.

With ``e2e`` the report is that of tests/e2e on a cluster: reasons are compared with the list of that name, without
counts.

usage: check_skips.py REPORT [e2e]
"""

import ast
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/skips.toml"
FOLDERS = ("tests/scenario", "tests/contract", "tests/unit")


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3) or argv[2:] not in ([], ["e2e"]):
        print(__doc__, file=sys.stderr)
        return 2
    total, reasons = read_report(Path(argv[1]))
    document = tomllib.loads(LIST.read_text())
    listed, least = document["e2e" if argv[2:] else "skips"], 1 if argv[2:] else document["least"]
    limits = {entry["reason"]: int(entry.get("most", total)) for entry in listed}
    print(f"Skips: {reasons.total()} of {total} tests" + (":" if reasons else "."))
    for reason, count in reasons.most_common():
        print(f"  {count:4} {reason}")
    found = list(breaches(total, reasons, limits, least))
    found += [] if argv[2:] else left_out(ROOT, document["most_slow"])
    for breach in found:
        print(breach)
    return 1 if found else 0


def read_report(path: Path) -> tuple[int, Counter[str]]:
    """How many tests the report has, and how many were skipped (or failed as expected) by reason."""
    cases = list(ET.parse(path).iter("testcase"))  # noqa: S314 - the report of our own test run
    return len(cases), Counter(skip.get("message", "") for case in cases for skip in case.iter("skipped"))


def breaches(total: int, reasons: Mapping[str, int], limits: Mapping[str, int], least: int = 1) -> Iterator[str]:
    """A sentence for each reason that is not listed or counts more tests than listed, and for too few tests.

    ``limits`` has the most tests by regular expression, which is compared with the whole reason.
    """
    if total < least:
        yield f"The report has {total} tests: `make test` has {least} or more (`least` of tests/skips.toml)."
    for reason, count in reasons.items():
        most = next((most for pattern, most in limits.items() if re.fullmatch(pattern, reason)), None)
        if most is None:
            yield f"{count} tests were skipped for a reason that tests/skips.toml does not list: {reason}"
        elif count > most:
            yield f"{count} tests were skipped, tests/skips.toml allows {most}: {reason}"


def left_out(root: Path, most_slow: int) -> Iterator[str]:
    """A sentence for each file whose tests pytest does not collect, and for too many tests that are marked slow."""
    slow = 0
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        text = path.read_text()
        if not path.name.startswith("test_") and (tests := count_tests(ast.parse(text))):
            yield f"{path.relative_to(root)} has {tests} tests, which pytest does not collect: call it test_*.py"
        slow += count_slow(ast.parse(text)) if "mark.slow" in text else 0
    if slow > most_slow:
        yield (
            f"{slow} tests are marked slow, tests/skips.toml allows {most_slow} (`most_slow`): make the test cheap, or "
            "say in the commit why `make test` can do without it"
        )


def count_tests(tree: ast.AST) -> int:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return sum(function.name.startswith("test_") for function in functions)


def count_slow(tree: ast.Module) -> int:
    """Tests with a mark ``slow``: a mark of a class or file counts for each of its tests, one of some cases as one."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    scopes: list[tuple[ast.AST, list[ast.expr]]] = [(scope, scope.decorator_list) for scope in classes]
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            scopes.append((tree, [statement.value]))
    more = sum((count_tests(scope) - 1) * sum(map(count_marks, marks)) for scope, marks in scopes)
    return count_marks(tree) + more


def count_marks(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.Attribute) and node.attr == "slow" for node in ast.walk(tree))


def not_tried(reasons: Mapping[str, int]) -> Iterator[str]:
    """Lines about skipped tests by reason, with what would make them run."""
    listed = tomllib.loads(LIST.read_text())["skips"]
    for reason, count in sorted(reasons.items(), key=lambda each: -each[1]):
        needs = next((each["needs"] for each in listed if re.fullmatch(each["reason"], reason)), "")
        yield f"  {count:4} {reason}{f': {needs}' if needs else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
