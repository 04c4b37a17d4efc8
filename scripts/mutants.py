"""Mutation check of safety-critical lines: each mutation of tests/mutants.toml has to make its tests fail.

usage: mutants.py [--only TEXT] [--jobs N]

A mutation replaces a text that stands exactly once in its function or file. It is applied to a copy of the repository,
and only the tests that it names are run there; a test that fails kills it. First all named tests run on an unchanged
copy and have to pass. The table that is printed says what each mutation breaks and which test noticed. Exit status 1: a
mutation survived, no longer applies, or a test fails without any.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants.toml"
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
TEST_S = 300.0
"""A mutation may hang what it breaks: tests that take longer count as failed."""
_FAILED_STATUS = 1
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Mutant(Struct, frozen=True):
    """One mutation: in ``at``, ``old`` (exactly once) becomes ``new``; ``tests`` are pytest node ids.

    ``at`` is a file, or FILE::Class.function of a Python file. Between the words of Python any white space matches.
    """

    name: str
    at: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.at.partition("::")[0]

    def applied(self, text: str) -> str:
        """The file's text with the mutation. Raises ValueError if it does not apply once, or is not Python then."""
        _, _, function = self.at.partition("::")
        is_python = self.file.endswith(".py")
        pattern = loose(self.old) if is_python else re.compile(re.escape(self.old))
        spans = spans_of(text, function) if function else [(0, len(text))]
        found = [match for begin, end in spans for match in pattern.finditer(text, begin, end)]
        if len(found) != 1:
            raise ValueError(f"its text stands {len(found)} times in {self.at}, expected once")
        mutated = text[: found[0].start()] + self.new + text[found[0].end() :]
        if is_python:
            ast.parse(mutated)
        return mutated

    def problem(self, root: Path) -> str:
        """Why it cannot be applied; "" if it can."""
        try:
            self.applied((root / self.file).read_text())
        except (OSError, ValueError, SyntaxError) as error:
            return str(error)
        return ""


def loose(code: str) -> "re.Pattern[str]":
    """Matches ``code`` however its lines are broken; a comma before a closing bracket is optional."""
    words = re.findall(r"\w+|[^\w\s]", code)
    return re.compile(r"\s*".join((",?\\s*" if word in ")]}" else "") + re.escape(word) for word in words))


def spans_of(text: str, function: str) -> list[tuple[int, int]]:
    """Where the classes or functions called ``function`` (Class.function) begin and end."""
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    scopes: list[ast.AST] = [ast.parse(text)]
    for name in function.split("."):
        inner = [each for scope in scopes for each in ast.walk(scope)]
        scopes = [each for each in inner if isinstance(each, SCOPES) and each.name == name]
    return [(starts[each.lineno - 1], starts[each.end_lineno or each.lineno]) for each in scopes]  # type: ignore[attr-defined]


class Outcome(Struct, frozen=True):
    """What became of a mutation; ``by`` is the test that noticed it."""

    mutant: Mutant
    verdict: str
    by: str = ""
    seconds: float = 0.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants.py", description="Mutation check of safety-critical lines.")
    parser.add_argument("--only", default="", help="mutations with this text in their name or place")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies to work on side by side")
    options = parser.parse_args(argv)
    mutants = [each for each in read() if options.only in each.name or options.only in each.at]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(max(1, options.jobs)):
            copies.put(copied(Path(folder) / str(number)))
        failed = baseline(copies, mutants)
        outcomes = [] if failed else run_all(copies, mutants, options.jobs)
    print(table(outcomes))
    survivors = [each for each in outcomes if each.verdict != "killed"]
    print(f"{len(outcomes) - len(survivors)} of {len(mutants)} killed in {time.monotonic() - begin:.0f} s")
    return 1 if failed or survivors else 0


def read() -> list[Mutant]:
    """The list; names are unique."""
    rows = tomllib.loads(LIST.read_text())["mutant"]
    mutants = [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    names = [each.name for each in mutants]
    if len(set(names)) != len(names):
        raise SystemExit(f"{LIST}: two mutations have one name")
    return mutants


def copied(target: Path) -> Path:
    """A copy of the tracked and not ignored files."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def baseline(copies: "SimpleQueue[Path]", mutants: Sequence[Mutant]) -> bool:
    """Whether a named test fails (or does not exist) on the unchanged copy; says which."""
    copy = copies.get()
    done = pytest(copy, sorted({test for mutant in mutants for test in mutant.tests}), stop_at_first=False)
    copies.put(copy)
    if done.returncode != 0:
        print(f"tests fail without any mutation:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def run_all(copies: "SimpleQueue[Path]", mutants: Sequence[Mutant], jobs: int) -> list[Outcome]:
    with ThreadPoolExecutor(max(1, jobs)) as threads:
        return list(threads.map(lambda mutant: run(copies, mutant), mutants))


def run(copies: "SimpleQueue[Path]", mutant: Mutant) -> Outcome:
    """Apply it, run its tests, take it back."""
    copy = copies.get()
    begin = time.monotonic()
    path = copy / mutant.file
    try:
        if problem := mutant.problem(copy):
            return Outcome(mutant, problem)
        text = path.read_text()
        path.write_text(mutant.applied(text))
        try:
            done = pytest(copy, mutant.tests, stop_at_first=True)
        except subprocess.TimeoutExpired:
            return Outcome(mutant, "killed", "tests that never end", time.monotonic() - begin)
        finally:
            path.write_text(text)
        failed = _FAILED_TEST.search(done.stdout)
        if done.returncode == _FAILED_STATUS and failed:
            return Outcome(mutant, "killed", failed.group(1), time.monotonic() - begin)
        if done.returncode == 0:
            return Outcome(mutant, "SURVIVED", ", ".join(mutant.tests), time.monotonic() - begin)
        return Outcome(mutant, f"pytest ended with status {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    finally:
        copies.put(copy)


def pytest(copy: Path, tests: Sequence[str], *, stop_at_first: bool) -> "subprocess.CompletedProcess[str]":
    """Run tests of a copy, whose code comes before any that is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", "--tb=no"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*command, *(["-x"] if stop_at_first else []), *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per mutation."""
    width = max((len(each.mutant.name) for each in outcomes), default=0)
    return "\n".join(
        f"{each.mutant.name:{width}}  {each.verdict:8} {each.seconds:5.1f} s  {each.by}" for each in outcomes
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
