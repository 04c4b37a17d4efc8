"""Cells of the tables about use."""

import pytest

from dra_driver.kubectl.commands.usage_output import small


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0, 2, "0.00"),
        (12.5, 2, "12.50"),
        (0.1, 2, "0.10"),
        (0.0067, 2, "0.0067"),
        (0.00052, 2, "0.00052"),
        (0.25, 1, "0.25"),
        (1.26, 1, "1.3"),
        (1e-9, 1, "0.000000"),
    ],
)
def test_an_amount_below_the_last_digit_does_not_look_like_nothing(value: float, digits: int, shown: str) -> None:
    """What a claim of a minute costs is not 0.00."""
    assert small(value, digits) == shown
