"""Our CEL engine gives the answers of the scheduler of Kubernetes 1.36 that are recorded in tests/golden."""

from collections import Counter
from pathlib import Path

import pytest

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import compile_selector
from tests.golden import run

TABLE = Path(run.__file__).with_name("cel.jsonl.gz")


def test_every_golden_case_agrees() -> None:
    """The kind of answer and the result are the scheduler's for all cases of the table."""
    total, different, texts = run.compare(TABLE)
    assert total.total() == 1894
    assert different == Counter(), "\n".join(texts[:10])


@pytest.mark.parametrize("table", ["cel", "allocate"])
def test_ids_of_cases_are_the_hash_of_their_inputs(table: str) -> None:
    """README.md tells how to compute the ID of a new case; every recorded case follows that rule."""
    wrong = [case["id"] for case in run.cases(TABLE.with_name(f"{table}.jsonl.gz")) if case["id"] != run.case_id(case)]
    assert wrong == []


def test_metered_evaluation_gives_the_same_results() -> None:
    """An expression whose cost is usually not counted has the same result when it is counted."""
    for case in run.cases(TABLE):
        if case["expected"]["result"] is not None:
            program = compile_selector(case["input"]["expression"])
            assert program.evaluate_counting(run.wire_view(case["input"]["device"])) == case["expected"]["result"]


@pytest.mark.slow
def test_the_runner_reports_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner exits with 1 and names the case where a table disagrees, and with 2 for a table of an unknown kind."""
    device = '{"driver": "x"}'
    wrong = (
        f'{{"id": "a-1", "family": "a", "input": {{"expression": "true", "device": {device}}},'
        ' "expected": {"compile_error": null, "result": false, "runtime_error": null}}\n'
    )
    (tmp_path / "wrong.jsonl").write_text(wrong)
    (tmp_path / "odd.jsonl").write_text('{"id": "b-1", "family": "b", "input": {}, "expected": {}}\n')
    assert run.main([str(tmp_path / "wrong.jsonl")]) == 1
    assert "a-1" in capsys.readouterr().out
    assert run.main([str(tmp_path / "odd.jsonl")]) == 2
    assert run.main([str(TABLE)]) == 0


def test_failing_cases_raise_only_the_two_documented_errors() -> None:
    """A case that fails raises CelSyntaxError when compiled or CelEvaluationError when evaluated."""
    for case in run.cases(TABLE):
        if case["expected"]["runtime_error"] is not None:
            with pytest.raises(CelEvaluationError):
                compile_selector(case["input"]["expression"]).evaluate(run.wire_view(case["input"]["device"]))
        elif case["expected"]["compile_error"] is not None:
            with pytest.raises(CelSyntaxError):
                compile_selector(case["input"]["expression"])
