"""docs/security-review.md names a test for each threat, and each of them exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/security-review.md"
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
THREATS = 25
"""Rows of the page. One may go when what it names can no longer happen at all."""


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| what could happen")]


def missing(text: str) -> list[str]:
    """The tests that ``text`` names and that are not in the tree."""
    return [f"{file}::{test}" for file, test in NAME.findall(text) if test not in functions(ROOT / file)]


def functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_threat_names_tests_that_exist() -> None:
    found = rows()
    assert len(found) >= THREATS
    assert [row for row in found if not NAME.search(row.split("|")[3])] == []
    assert [name for row in found for name in missing(row)] == []


def test_a_test_that_was_renamed_is_noticed() -> None:
    assert missing("`tests/unit/test_security_page.py::test_a_test_that_was_renamed_is_noticed`") == []
    assert missing("`tests/unit/test_security_page.py::test_x`, `tests/unit/no_such.py::test_y`") == [
        "tests/unit/test_security_page.py::test_x",
        "tests/unit/no_such.py::test_y",
    ]
