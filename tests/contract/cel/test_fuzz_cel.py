"""A small run of the fuzzer with every test run; long ones are started by hand with other seeds."""

import pytest

from tests.fuzz import cel_fuzz


def test_damaged_expressions_never_break_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """No exception but the promised ones, no disagreement between both ways of evaluation, nothing slow."""
    assert cel_fuzz.main(["--count", "1500", "--seed", "7"]) == 0, capsys.readouterr().out
