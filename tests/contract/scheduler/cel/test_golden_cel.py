"""Our CEL engine gives the answers of the scheduler of Kubernetes 1.36 that are recorded in tests/golden."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import compile_selector
from tests.golden import run
from tests.harness.cel import Expression, evaluate_counting, value_of

TABLE = Path(run.__file__).with_name("cel.jsonl.gz")


def test_every_golden_case_agrees() -> None:
    """The kind of answer and the result are the scheduler's for all cases of the table, also where the cost, which is
    usually not counted, is counted. Another error than CelSyntaxError and CelEvaluationError fails the test."""
    total, texts = 0, []
    for case in run.cases(TABLE):
        question, expected = case["input"], case["expected"]
        total += 1
        if difference := run.cel_difference(question, expected):
            texts.append(f"{case['id']}: {difference}")
        elif (result := expected["result"]) is not None:
            program = compile_selector(question["expression"])
            if evaluate_counting(program, run.wire_view(question["device"])) != result:
                texts.append(f"{case['id']}: another result when the cost is counted: {question['expression']}")
    assert total == 1894
    assert texts == [], "\n".join(texts[:10])


@pytest.mark.parametrize("table", ["cel", "allocate"])
def test_ids_of_cases_are_the_hash_of_their_inputs(table: str) -> None:
    """README.md tells how to compute the ID of a new case; every recorded case follows that rule."""
    wrong = [case["id"] for case in run.cases(TABLE.with_name(f"{table}.jsonl.gz")) if case["id"] != run.case_id(case)]
    assert wrong == []


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


VARIABLES: dict[str, Any] = {"a": 7, "b": -2, "s": "gpu", "t": True, "n": [3, 1, 2], "m": {"x": 1, "y": 20}}
ERROR = "error"
OPERATORS = ("+", "-", "*", "/", "%")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def joined(parts: st.SearchStrategy[str], operators: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds(lambda one, by, two: f"{one} {by} {two}", parts, st.sampled_from(operators), parts)


def wider(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(joined(numbers, OPERATORS), numbers.map("({})".format), numbers.map("-({})".format))


NUMBERS = st.recursive(st.sampled_from(["a", "b", "5", "0", "n[1]", "size(s)", "m.y", "-a"]), wider, max_leaves=6)
TRUTHS = st.recursive(
    st.one_of(joined(NUMBERS, COMPARISONS), st.sampled_from(["t", "!t", "2 in n", "'x' in m", "s.startsWith('g')"])),
    lambda truths: st.one_of(
        joined(truths, ("&&", "||")),
        truths.map("!({})".format),
        # cel-python alone accepts a ternary between ? and : without parentheses.
        st.builds("({}) ? ({}) : {}".format, truths, truths, truths),
        truths.map("n.exists(i, i > 2 && ({}))".format),
    ),
    max_leaves=5,
)


def ours(text: str) -> object:
    try:
        return Expression(text, tuple(VARIABLES)).evaluate({name: value_of(it) for name, it in VARIABLES.items()})
    except CelEvaluationError:
        return ERROR


def theirs(text: str) -> object:
    environment = celpy.Environment()
    given_ = {name: json_to_cel(it) for name, it in VARIABLES.items()}
    try:
        return bool(environment.program(environment.compile(text)).evaluate(given_))
    except CELEvalError:
        return ERROR


@given(TRUTHS)
@example("a + b * 5 == -3")
@example("a - b - 5 == 4")
@example("a * 5 / b * 2 == -34")
@example("t || t && !t")
@example("a < 5 == !t")
@example("a > 5 && 2 in n || a / 0 == 1")
@settings(max_examples=200)
def test_answers_are_equal(text: str) -> None:
    """Arithmetic, comparisons, logic, ternaries, macros, and errors such as a division by zero."""
    assume(len(text) < 400)
    assert ours(text) == theirs(text)


@pytest.mark.parametrize("text", ["a +", "(a", "a b", "1 ? 2", "[1, 2", "a..b", "'open", "&& t", "a < < b", ")"])
@pytest.mark.parametrize("read", [lambda text: Expression(text, tuple(VARIABLES)), celpy.Environment().compile])
def test_neither_reads_a_broken_expression(text: str, read: Callable[[str], object]) -> None:
    with pytest.raises((CelSyntaxError, CELParseError)):
        read(text)
