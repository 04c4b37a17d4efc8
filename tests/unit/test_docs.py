"""Generated pages match their figures, and the tests that docs/internals/security-review.md names exist."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fakes.scripts import script
from tests.harness.figures import Report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/internals/security-review.md"
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
THREATS = 25
"""Rows of the page. One may go when what it names can no longer happen at all."""


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| threat |")]


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
    assert missing("`tests/unit/test_docs.py::test_a_test_that_was_renamed_is_noticed`") == []
    assert missing("`tests/unit/test_docs.py::test_x`, `tests/unit/no_such.py::test_y`") == [
        "tests/unit/test_docs.py::test_x",
        "tests/unit/no_such.py::test_y",
    ]


faults_docs = script("faults_docs")


TEST = 'import pytest\n\n\n@pytest.mark.fault("one")\ndef test_it() -> None: ...\n'
ROW = '[[fault]]\nid = "{}"\ngroup = "Disk"\nwhat = "w"\ndoes = "d"\nwhere = "root"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("docs/internals/faults", "tests/chaos"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/internals/faults/faults.toml").write_text(ROW.format("one"))
    (tmp_path / "tests/chaos/test_x.py").write_text(TEST)
    record = {
        "fault": "one",
        "test": "tests/chaos/test_x.py::test_it[a]",
        "seconds": 1.25,
        "seen": "s",
        "kept": 4,
        "of": 4,
    }
    run = {"date": "2026-01-01", "machine": "m", "seconds": 60, "records": [record]}
    (tmp_path / "docs/internals/faults/chaos.json").write_text(json.dumps(run))
    return tmp_path


def test_a_row_has_its_figure(tree: Path) -> None:
    faults_docs.generate(tree, tree)
    assert "| w | d | none of 4 | 1.2 | root |" in (tree / "docs/internals/faults.md").read_text()


@pytest.mark.parametrize(
    ("record", "row", "lost"),
    [
        ({"kept": 3, "of": 4}, 'lost = "a partition"\n', "1 of 4: a partition"),
        ({"kept": 4, "of": 4}, 'lost = "programs"\n', "none of 4: programs"),
        ({"kept": 0, "of": 0}, "", "(no claim is left to lose)"),
        ({"kept": 4}, "", "not measured"),
        ({"kept": 3, "of": 4}, "", None),
    ],
)
def test_only_what_was_counted_is_called_lost_or_kept(
    tree: Path, record: dict[str, int], row: str, lost: str | None
) -> None:
    (tree / "docs/internals/faults/faults.toml").write_text(ROW.format("one") + row)
    path = tree / "docs/internals/faults/chaos.json"
    run = json.loads(path.read_text())
    del run["records"][0]["of"]
    run["records"][0] |= record
    path.write_text(json.dumps(run))
    if lost is None:
        with pytest.raises(SystemExit, match="lost claims, and row one does not say which"):
            faults_docs.generate(tree, tree)
        return
    faults_docs.generate(tree, tree)
    assert f"| w | d | {lost} | 1.2 | root |" in (tree / "docs/internals/faults.md").read_text()


def test_a_row_that_was_not_run_says_so(tree: Path) -> None:
    (tree / "docs/internals/faults/chaos.json").unlink()
    faults_docs.generate(tree, tree)
    assert "| **not run** |" in (tree / "docs/internals/faults.md").read_text()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda tree: (tree / "docs/internals/faults/faults.toml").write_text(ROW.format("one") + ROW.format("two")),
            "row two",
        ),
        (
            lambda tree: (tree / "docs/internals/faults/faults.toml").write_text(ROW.format("one") * 2),
            "row one occurs twice",
        ),
        (lambda tree: (tree / "tests/chaos/test_y.py").write_text(TEST.replace("one", "new")), "no row new"),
        (lambda tree: (tree / "tests/chaos/test_x.py").write_text(TEST.replace("_it", "_that")), "does not exist"),
    ],
    ids=["row without a test", "row twice", "test without a row", "figure without a test"],
)
def test_what_does_not_agree_is_named(tree: Path, change: Callable[[Path], object], complaint: str) -> None:
    change(tree)
    with pytest.raises(SystemExit, match=complaint):
        faults_docs.generate(tree, tree)


def test_markers_inside_parametrize_count(tree: Path) -> None:
    text = '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("one"))])\ndef test_it(x): ...\n'
    (tree / "tests/chaos/test_x.py").write_text(text)
    assert faults_docs.tests_by_fault(tree) == {"one": ["tests/chaos/test_x.py::test_it"]}


performance_docs = script("performance_docs")


def test_a_figure_over_its_budget_exceeds_it() -> None:
    found = json.loads((ROOT / performance_docs.DATA).read_text())
    for kind, value in (("ours", 11.0), ("go", 10.0)):
        for figures in found[kind]:
            figures["none"]["prepare_p50"] = value
    text = performance_docs.page(found, {})
    assert "| prepare, no claim held | **11.00** (11.00-11.00) | **10.00**" in text
    assert "| 1.100 | 1: **exceeded** |" in text


def test_a_figure_of_this_driver_alone_has_its_budget_and_the_load(tmp_path: Path) -> None:
    report = Report()
    report.line("idle CPU, 128 claims", 0.234, "%", 0.2, "over 60 s")
    report.line("memory, RSS", 57.0, "MiB", 60.0)
    report.save(tmp_path / "alone.json", "idle_bench")
    alone = json.loads((tmp_path / "alone.json").read_text())
    alone["idle_bench"] |= {"load": 7.5, "nice": -10}
    text = performance_docs.page(json.loads((ROOT / performance_docs.DATA).read_text()), alone)
    assert "| idle CPU, 128 claims | 0.23 % | 0.2: **exceeded** | over 60 s |" in text
    assert "| memory, RSS | 57.00 MiB | 60: met |  |" in text
    assert "Load average at the start 7.5, niceness -10." in " ".join(text.split())


def test_figures_of_another_bench_stay(tmp_path: Path) -> None:
    for bench in ("node", "idle_bench"):
        Report().save(tmp_path / "alone.json", bench)
    assert set(json.loads((tmp_path / "alone.json").read_text())) == {"node", "idle_bench"}


def test_the_page_names_no_path_of_a_machine() -> None:
    text = performance_docs.page(
        json.loads((ROOT / performance_docs.DATA).read_text()), json.loads((ROOT / performance_docs.ALONE).read_text())
    )
    assert not [path for path in ("/home/", "/tmp/", "/root/", "/usr/") if path in text]


def test_plots_are_well_formed() -> None:
    drawn = performance_docs.plots(json.loads((ROOT / performance_docs.DATA).read_text()))
    assert set(drawn) == {"prepare.svg", "memory.svg", "explain.svg"}
    for text in drawn.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314 - made by this project
        assert "nan" not in text


rights_docs = script("rights_docs")


POLICY = (
    "resourceslices.resource.k8s.io \"x\" is forbidden: ValidatingAdmissionPolicy 'own' with binding 'own' denied "
    "request: the driver on node node-a may not write the pool node-b/x; check the ClusterRole of this service account"
)
RBAC = 'secrets "x" is forbidden: User "system:serviceaccount:a:b" cannot get resource "secrets" in API group ""'
NODE = 'resourceslices.resource.k8s.io "x" is forbidden: can only create ResourceSlice with the same NodeName'


@pytest.mark.parametrize(("said", "by"), [(POLICY, "admission policy"), (RBAC, "RBAC"), (NODE, "NodeRestriction")])
def test_refusal_names_its_origin(said: str, by: str) -> None:
    assert rights_docs.by(said) == by


def test_optional_components_have_sections() -> None:
    row = {"verb": "list", "resource": "pods", "where": "all namespaces", "requests": 3}
    figures = {"version": "v1.36.2", "values": {}, "used": {}, "refused": {}}
    optional = {**figures, "values": {"drainer.enabled": True}, "used": {"drainer": [row]}}
    refused = {"refused": {"a drainer's token": [{"what": "a secret", "said": RBAC}]}}
    readers = {**figures, "used": {"person": [row]}}
    page = rights_docs.page({**figures, "readers": readers, "optional": {**optional, **refused}})
    assert "`drainer.enabled=true`" in page
    assert (
        page.index("### The drainer")
        < page.index("| pods | all namespaces | list 3 |")
        < page.index("## Components that only")
    )
    assert page.index("### The person") < page.index("## Refused requests")
    assert "### Account: a drainer's token (1 requests)" in page
    assert "Optional components" not in rights_docs.page(figures)


def test_the_index_links_each_page_once() -> None:
    linked = re.findall(r"^- \[[^]]*\]\(([^)]*)\): ", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    pages = [
        str(path.relative_to(ROOT / "docs"))
        for folder in ("", "internals")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ]
    assert sorted(linked) == sorted({*pages, "decisions/0001-record-decisions.md"} - {"README.md"})
