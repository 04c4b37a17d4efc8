"""The page of faults and their tests cannot drift apart."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.scripts import script

docs = script("faults_docs")

ROOT = Path(__file__).parents[2]
TEST = 'import pytest\n\n\n@pytest.mark.fault("one")\ndef test_it() -> None: ...\n'
ROW = '[[fault]]\nid = "{}"\ngroup = "Disk"\nwhat = "w"\ndoes = "d"\nwhere = "root"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("docs/faults", "tests/chaos"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/faults/faults.toml").write_text(ROW.format("one"))
    (tmp_path / "tests/chaos/test_x.py").write_text(TEST)
    record = {"fault": "one", "test": "tests/chaos/test_x.py::test_it[a]", "seconds": 1.25, "seen": "s", "kept": 4}
    run = {"date": "2026-01-01", "machine": "m", "seconds": 60, "records": [record]}
    (tmp_path / "docs/faults/chaos.json").write_text(json.dumps(run))
    return tmp_path


def test_a_row_has_its_figure(tree: Path) -> None:
    docs.generate(tree, tree)
    assert "| w | d | nothing | 1.2 | root |" in (tree / "docs/faults.md").read_text()


def test_a_row_that_was_not_run_says_so(tree: Path) -> None:
    (tree / "docs/faults/chaos.json").unlink()
    docs.generate(tree, tree)
    assert "| **not run** |" in (tree / "docs/faults.md").read_text()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tree: (tree / "docs/faults/faults.toml").write_text(ROW.format("one") + ROW.format("two")), "row two"),
        (lambda tree: (tree / "docs/faults/faults.toml").write_text(ROW.format("one") * 2), "row one occurs twice"),
        (lambda tree: (tree / "tests/chaos/test_y.py").write_text(TEST.replace("one", "new")), "no row new"),
        (lambda tree: (tree / "tests/chaos/test_x.py").write_text(TEST.replace("_it", "_that")), "does not exist"),
    ],
    ids=["row without a test", "row twice", "test without a row", "figure without a test"],
)
def test_what_does_not_agree_is_named(tree: Path, change: Callable[[Path], object], complaint: str) -> None:
    change(tree)
    with pytest.raises(SystemExit, match=complaint):
        docs.generate(tree, tree)


def test_markers_inside_parametrize_count(tree: Path) -> None:
    text = '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("one"))])\ndef test_it(x): ...\n'
    (tree / "tests/chaos/test_x.py").write_text(text)
    assert docs.tests_by_fault(tree) == {"one": ["tests/chaos/test_x.py::test_it"]}
