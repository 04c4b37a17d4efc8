"""Our CEL engine against what the scheduler of Kubernetes 1.36 answered, recorded in tests/golden."""

from collections import Counter
from pathlib import Path

import pytest

from dra_driver.cel import compile_selector
from dra_driver.errors import CelEvaluationError, CelSyntaxError
from tests.golden import run

TABLE = Path(run.__file__).with_name("cel.jsonl.gz")


def test_every_golden_case_agrees() -> None:
    """Kind of answer and result are the scheduler's for all cases of the table."""
    total, different, texts = run.compare(TABLE)
    assert total.total() == 1894
    assert different == Counter(), "\n".join(texts[:10])


def test_counting_changes_no_answer() -> None:
    """Expressions that are too cheap to be metered answer the same when they are."""
    for case in run.cases(TABLE):
        if case["expected"]["result"] is not None:
            program = compile_selector(case["input"]["expression"])
            assert program.evaluate_counting(run.wire_view(case["input"]["device"])) == case["expected"]["result"]


def test_the_runner_reports_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that disagrees ends with status 1 and names the case; one of an unknown kind with status 2."""
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


def test_errors_are_of_the_promised_kinds() -> None:
    """A case fails with one of the two errors of the tree, never with anything else."""
    for case in run.cases(TABLE):
        if case["expected"]["runtime_error"] is not None:
            with pytest.raises(CelEvaluationError):
                compile_selector(case["input"]["expression"]).evaluate(run.wire_view(case["input"]["device"]))
        elif case["expected"]["compile_error"] is not None:
            with pytest.raises(CelSyntaxError):
                compile_selector(case["input"]["expression"])
