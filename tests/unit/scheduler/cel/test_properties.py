"""Properties of the language that hold for all values."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import DeviceView, compile_selector
from dra_driver.scheduler.cel.text import (
    double_text,
    duration_text,
    parse_double,
    parse_duration,
    parse_timestamp,
    timestamp_text,
)
from dra_driver.scheduler.cel.values import Duration, Timestamp
from tests.harness.cel import evaluate_counting

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
ATTRIBUTE = st.one_of(
    INT64.map(lambda n: {"int": n}), st.booleans().map(lambda b: {"bool": b}), TEXT.map(lambda t: {"string": t})
)
A = 'device.attributes["x"]'


def answer(expression: str, **attributes: Any) -> bool | None:
    """The result, None for an error. Fast and metered evaluation must agree."""
    program, view = compile_selector(expression), DeviceView("x", {"attributes": attributes})
    results: list[bool | None] = []
    for evaluate in (program.evaluate, lambda view: evaluate_counting(program, view)):
        try:
            results.append(evaluate(view))
        except CelEvaluationError:
            results.append(None)
    assert results[0] == results[1]
    return results[0]


@given(INT64, INT64)
def test_integers_stay_within_64_bits(a: int, b: int) -> None:
    fits = -(2**63) <= a + b < 2**63
    assert answer(f"{A}.a + {A}.b == {A}.c", a={"int": a}, b={"int": b}, c={"int": a + b}) is (True if fits else None)


@given(INT64, INT64.filter(bool))
def test_division_truncates_toward_zero(a: int, b: int) -> None:
    """a == (a / b) * b + a % b, with the sign of a, as in Go."""
    expected = None if (a, b) == (-(2**63), -1) else True
    expression = f"({A}.a / {A}.b) * {A}.b + {A}.a % {A}.b == {A}.a && ({A}.a % {A}.b) * {A}.z >= 0"
    sign = -1 if a < 0 else 1
    assert answer(expression, a={"int": a}, b={"int": b}, z={"int": sign}) is expected


@given(ATTRIBUTE, ATTRIBUTE)
def test_equality_never_fails_and_is_symmetric(a: Any, b: Any) -> None:
    there, back = answer(f"{A}.a == {A}.b", a=a, b=b), answer(f"{A}.b == {A}.a", a=a, b=b)
    assert there is back
    assert there is (a == b)
    assert answer(f"{A}.a != {A}.b", a=a, b=b) is (not there)


@given(st.sampled_from(["true", "false", f"{A}.missing == 1"]), st.sampled_from(["true", "false", f"{A}.missing == 1"]))
def test_logic_is_commutative(one: str, two: str) -> None:
    for operator in ("&&", "||"):
        assert answer(f"({one}) {operator} ({two})") is answer(f"({two}) {operator} ({one})")


@given(TEXT, TEXT)
def test_string_functions_agree_on_unicode(a: str, b: str) -> None:
    expression = (
        f"({A}.a + {A}.b).startsWith({A}.a) && ({A}.a + {A}.b).endsWith({A}.b)"
        f" && size({A}.a + {A}.b) == size({A}.a) + size({A}.b) && ({A}.a + {A}.b).indexOf({A}.b) <= size({A}.a)"
    )
    assert answer(expression, a={"string": a}, b={"string": b}) is True


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_survive_their_text(value: float) -> None:
    read = parse_double(double_text(value))
    assert read == value
    assert math.copysign(1.0, read) == math.copysign(1.0, value)


@given(st.integers(-(2**53), 2**53))
def test_durations_survive_their_text(ns: int) -> None:
    read = parse_duration(duration_text(Duration(ns)))
    assert read is not None
    assert abs(read.ns - ns) <= 1


@given(st.integers(-62135596800 * 10**9, 253402300799 * 10**9), st.integers(-23 * 60, 23 * 60))
def test_timestamps_survive_their_text(ns: int, offset_min: int) -> None:
    moment = Timestamp(ns, offset_min * 60)
    text = timestamp_text(moment)
    if len(text.split("-")[0]) == 4 and not text.startswith("0000"):
        assert parse_timestamp(text) == moment


@given(st.text(max_size=200))
def test_any_text_compiles_or_is_a_syntax_error(text: str) -> None:
    try:
        compile_selector(text)
    except CelSyntaxError as error:
        assert str(error)  # noqa: PT017  any other exception fails the test
