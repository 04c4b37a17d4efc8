"""A short run of the CEL fuzzer; long runs with other seeds are started by hand."""

import pytest

from tests.fuzz import cel_fuzz


def test_damaged_expressions_raise_documented_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    """No other exception, no difference between fast and metered evaluation, no slow expression."""
    assert cel_fuzz.main(["--count", "500", "--seed", "7"]) == 0, capsys.readouterr().out
