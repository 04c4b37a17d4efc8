"""The second try of `.ci/run` passes only what fails beside others and passes alone."""

from pathlib import Path

import pytest

from tests.fakes import scripts

script = scripts.script("retry_failed")

ROOT = Path(__file__).parents[2]


def test_a_test_that_passes_alone_is_named_and_passes(capfd: pytest.CaptureFixture[str]) -> None:
    assert script.judge(["a", "b"], 2, lambda test: True) == 0
    assert capfd.readouterr().out.count("Unsteady") == 2


def test_a_test_that_fails_again_fails() -> None:
    assert script.judge(["a", "b"], 2, lambda test: test == "a") == 1


@pytest.mark.parametrize(("failed", "reported"), [([], 0), (list("abcd"), 4), (["a"], 2), ([], 1)])
def test_what_is_not_understood_is_not_repeated(failed: list[str], reported: int) -> None:
    """No failure in the list, too many, and a report that disagrees: the run failed for another reason."""
    assert script.judge(failed, reported, lambda test: True) == 1


def test_failures_and_errors_count_and_skips_do_not(tmp_path: Path) -> None:
    """A test has an error when its fixtures fail, or after it has passed."""
    report = tmp_path / "report.xml"
    cases = "".join(f'<testcase name="t">{inner}</testcase>' for inner in ("", "<failure/>", "<error/>", "<skipped/>"))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert script.failures_in(report) == 2
    assert script.passed_in(report) == 1
    assert script.failures_in(tmp_path / "missing.xml") == script.passed_in(tmp_path / "missing.xml") == 0
