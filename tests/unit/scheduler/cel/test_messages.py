"""Errors of expressions that do not compile."""

import pytest

from dra_driver.core.errors import CelSyntaxError
from dra_driver.scheduler.cel import compile_selector


def complaint(expression: str) -> CelSyntaxError:
    with pytest.raises(CelSyntaxError) as caught:
        compile_selector(expression)
    return caught.value


def test_the_caret_points_at_the_position() -> None:
    error = complaint('device.driver == "x" &&\n  device.drivr == "y"')
    assert (error.line, error.column) == (2, 10)
    assert error.caret == '  |   device.drivr == "y"\n  |          ^'
    assert str(error).endswith(error.caret)
    assert error.problem == "device has no field 'drivr', did you mean 'driver'?"


def test_a_syntax_error_says_what_was_expected() -> None:
    assert (
        complaint('device.attributes["x".a').problem
        == "syntax error at the end of the expression: expected an operator or ']'"
    )


def test_a_single_equals_sign_is_explained() -> None:
    """The most frequent mistake has its own message."""
    assert "write == to compare" in complaint('device.driver = "x"').problem


def test_a_long_line_is_cut_around_the_caret() -> None:
    """Of a line of thousands of characters only the part around the caret is shown."""
    error = complaint("true || " * 1000 + "flase")
    assert "flase" in error.caret
    assert max(map(len, error.caret.split("\n"))) < 200


@pytest.mark.parametrize("expression", ["", "   ", "// only a comment"])
def test_an_empty_expression_is_a_syntax_error(expression: str) -> None:
    """An empty selector is a mistake; it does not select every device."""
    assert "expected an operand" in complaint(expression).problem
