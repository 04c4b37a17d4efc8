"""Scripts of the repository: the gate on skips, the second try, mutations, and the check on generated code."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.fakes.scripts import SCRIPTS, script

check_skips = script("check_skips")


LIMITS = {r"no kubectl .*": 2}


def skip_report(folder: Path, *reasons: str, passed: int = 1) -> Path:
    cases = "".join(f'<testcase name="t"><skipped type="pytest.skip" message="{text}"/></testcase>' for text in reasons)
    path = folder / "report.xml"
    cases += '<testcase name="ok"/>' * passed
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_listed_reasons_pass_up_to_their_count(tmp_path: Path) -> None:
    total, reasons = check_skips.read_report(skip_report(tmp_path, *["no kubectl on PATH"] * 2))
    assert (total, dict(reasons)) == (3, {"no kubectl on PATH": 2})
    assert list(check_skips.breaches(total, reasons, LIMITS)) == []
    total, reasons = check_skips.read_report(skip_report(tmp_path, *["no kubectl on PATH"] * 3))
    assert list(check_skips.breaches(total, reasons, LIMITS)) == [
        "3 tests were skipped, tests/skips.toml allows 2: no kubectl on PATH"
    ]


def test_other_reasons_and_empty_reports_are_named() -> None:
    found = list(check_skips.breaches(0, {"there is no kubectl on PATH": 1}, LIMITS))
    assert [text.partition(":")[0] for text in found] == [
        "The report has 0 tests",
        "1 tests were skipped for a reason that tests/skips.toml does not list",
    ]


def test_the_gate_fails_on_what_the_list_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_skips, "ROOT", tmp_path)  # without files to count
    older = "/usr/bin/kubectl is older than 1.34, which does not know resource.k8s.io/v1"
    assert check_skips.main(["check_skips.py", str(skip_report(tmp_path, older, passed=20_000))]) == 0
    assert f"     1 {older}\n" in capfd.readouterr().out
    for reasons, passed in ((["gcc is not installed"], 20_000), ([older] * 22, 20_000), ([], 5_000)):
        assert check_skips.main(["check_skips.py", str(skip_report(tmp_path, *reasons, passed=passed))]) == 1


SLOW = """
@pytest.mark.slow
class TestA:
    def test_one(self): ...
    def test_two(self): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_three(x): ...
"""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("tests/unit/test_x.py", SLOW, ["3 tests are marked slow, tests/skips.toml allows 2"]),
        ("tests/unit/test_x.py", f"pytestmark = pytest.mark.slow\n{SLOW}", ["6 tests are marked slow"]),
        ("tests/unit/test_x.py", SLOW.replace("@pytest.mark.slow", ""), []),
        ("tests/unit/x_test.py", "def test_it(): ...", ["tests/unit/x_test.py has 1 tests, which pytest does not"]),
    ],
)
def test_a_new_mark_slow_and_a_file_that_is_not_collected_are_named(
    tmp_path: Path, name: str, text: str, found: list[str]
) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / name).write_text(text)
    sentences = list(check_skips.left_out(tmp_path, 2))
    assert [sentence[: len(start)] for sentence, start in zip(sentences, found, strict=True)] == found


@pytest.mark.slow
def test_without_gcc_a_run_says_what_it_did_not_try(tmp_path: Path) -> None:
    test = "tests/contract/node/exporter/test_process.py::test_real_gpus_are_read_through_nvml"
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, cwd=check_skips.ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "Not tried: 1 tests, because\n     1 gcc is not installed" in done.stdout
    assert ": install gcc\n" in done.stdout


retry_failed = script("retry_failed")


def test_a_test_that_passes_alone_is_named_and_passes(capfd: pytest.CaptureFixture[str]) -> None:
    assert retry_failed.judge(["a", "b[1]"], 2, lambda test: True, ["a", "b"]) == 0
    assert capfd.readouterr().out.count("Unsteady") == 2
    assert retry_failed.judge(["a", "b"], 2, lambda test: True, ["a"]) == 0
    assert capfd.readouterr().out.endswith("Not listed as unsteady (`unsteady` of tests/skips.toml): b\n")
    assert retry_failed.judge(["a", "b"], 2, lambda test: True, []) == 1


def test_the_list_of_unsteady_tests_is_short_and_names_tests_that_exist() -> None:
    document = tomllib.loads(check_skips.LIST.read_text())
    assert len(document["unsteady"]) <= document["most_unsteady"]
    for test in document["unsteady"]:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (check_skips.ROOT / path).read_text()


def test_a_test_that_fails_again_fails() -> None:
    assert retry_failed.judge(["a", "b"], 2, lambda test: test == "a", ["a", "b"]) == 1


@pytest.mark.parametrize(("failed", "reported"), [([], 0), (list("abcd"), 4), (["a"], 2), ([], 1)])
def test_what_is_not_understood_is_not_repeated(failed: list[str], reported: int) -> None:
    """No failure in the list, too many, and a report that disagrees: the run failed for another reason."""
    assert retry_failed.judge(failed, reported, lambda test: True, failed) == 1


def test_failures_and_errors_count_and_skips_do_not(tmp_path: Path) -> None:
    """A test has an error when its fixtures fail, or after it has passed."""
    report = tmp_path / "report.xml"
    cases = "".join(f'<testcase name="t">{inner}</testcase>' for inner in ("", "<failure/>", "<error/>", "<skipped/>"))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert retry_failed.failures_in(report) == 2
    assert retry_failed.passed_in(report) == 1
    assert retry_failed.failures_in(tmp_path / "missing.xml") == retry_failed.passed_in(tmp_path / "missing.xml") == 0


mutants = script("mutants")
TEXT = """class A:
    def f(self):
        return g(
            1, 2,
        )

    def h(self):
        return g(1, 2)
"""


def test_every_mutation_applies() -> None:
    assert {each.name: problem for each in mutants.read() if (problem := each.problem(SCRIPTS.parent))} == {}


def mutant(at: str, old: str, new: str) -> "mutants.Mutant":  # type: ignore[name-defined]
    return mutants.Mutant(name="m", at=at, old=old, new=new, tests=())


def test_line_breaks_of_the_code_do_not_count() -> None:
    assert "return 3\n\n    def h" in mutant("a.py::A.f", "g(1, 2)", "3").applied(TEXT)


@pytest.mark.parametrize(
    ("at", "old", "new", "error"),
    [
        ("a.py", "g(1, 2)", "3", "stands 2 times in a.py"),
        ("a.py::A.x", "g(1, 2)", "3", "stands 0 times"),
        ("a.py::A.h", "return", "return (", "was never closed"),
    ],
)
def test_a_mutation_that_does_not_apply_is_an_error(at: str, old: str, new: str, error: str) -> None:
    with pytest.raises((ValueError, SyntaxError), match=error):
        mutant(at, old, new).applied(TEXT)


gen = script("gen")

ROOT = Path(__file__).parents[2]


def test_edited_missing_and_left_over_files_are_named(tmp_path: Path) -> None:
    fresh, tree = tmp_path / "fresh", tmp_path / "tree"
    for root, files in ((fresh, {"a_pb2.py": "1", "b_pb2.py": "1"}), (tree, {"a_pb2.py": "2", "c_pb2.pyi": "1"})):
        folder = root / gen.GENERATED / "v1"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    assert gen.differences(fresh, tree) == [
        "dra_driver/core/_pb/v1/a_pb2.py: differs",
        "dra_driver/core/_pb/v1/b_pb2.py: missing",
        "dra_driver/core/_pb/v1/c_pb2.pyi: nothing makes it any more",
    ]
