"""The gate on skipped tests passes what tests/skips.toml lists and names everything else."""

from pathlib import Path

import pytest

from tests.fakes import scripts

script = scripts.script("check_skips")

ROOT = Path(__file__).parents[2]
LIMITS = {r"no kubectl .*": 2}


def report(folder: Path, *reasons: str, passed: int = 1) -> Path:
    cases = "".join(f'<testcase name="t"><skipped type="pytest.skip" message="{text}"/></testcase>' for text in reasons)
    path = folder / "report.xml"
    cases += '<testcase name="ok"/>' * passed
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_listed_reasons_pass_up_to_their_count(tmp_path: Path) -> None:
    total, reasons = script.read_report(report(tmp_path, *["no kubectl on PATH"] * 2))
    assert (total, dict(reasons)) == (3, {"no kubectl on PATH": 2})
    assert list(script.breaches(total, reasons, LIMITS)) == []
    total, reasons = script.read_report(report(tmp_path, *["no kubectl on PATH"] * 3))
    assert list(script.breaches(total, reasons, LIMITS)) == [
        "3 tests were skipped, tests/skips.toml allows 2: no kubectl on PATH"
    ]


def test_other_reasons_and_empty_reports_are_named() -> None:
    found = list(script.breaches(0, {"there is no kubectl on PATH": 1}, LIMITS))
    assert [text.partition(":")[0] for text in found] == [
        "The report has 0 tests",
        "1 tests were skipped for a reason that tests/skips.toml does not list",
    ]


def test_the_gate_fails_on_what_the_list_lacks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    older = "/usr/bin/kubectl is older than 1.34, which does not know resource.k8s.io/v1"
    assert script.main(["check_skips.py", str(report(tmp_path, older, passed=20_000))]) == 0
    assert f"     1 {older}\n" in capfd.readouterr().out
    for reasons, passed in ((["gcc is not installed"], 20_000), ([older] * 22, 20_000), ([], 5_000)):
        assert script.main(["check_skips.py", str(report(tmp_path, *reasons, passed=passed))]) == 1
