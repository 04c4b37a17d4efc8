"""The engine and cel-python, two implementations of one language, give one answer.

Expressions are written with few parentheses, so that a wrong precedence or associativity changes the answer.
"""

from collections.abc import Callable
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import Expression, value_of

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
