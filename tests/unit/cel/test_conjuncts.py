"""Cutting selectors into the parts that can be blamed one by one."""

import pytest

from dra_driver.cel.conjuncts import split_conjuncts
from dra_driver.errors import CelSyntaxError


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a", ["a"]),
        ("a && b.c == 1", ["a", "b.c == 1"]),
        ("(a && (b && c)) && d", ["a", "b", "c", "d"]),
        ("a && b || c", ["a && b || c"]),
        ("a && (b || c)", ["a", "b || c"]),
        ("a && b ? c : d", ["a && b ? c : d"]),
        ("f(a && b) && x['&&'] == \"(\"", ["f(a && b)", "x['&&'] == \"(\""]),
        ("(a) == (b && c)", ["(a) == (b && c)"]),
        ("!(a && b)", ["!(a && b)"]),
        ("a // && b\n && c", ["a", "c"]),
    ],
)
def test_only_what_top_level_and_joins_is_cut(expression: str, parts: list[str]) -> None:
    """Every part is a selector whose failure alone makes the whole false."""
    assert list(split_conjuncts(expression)) == parts


def test_deep_parentheses_end_in_a_part_or_an_error_never_in_a_crash() -> None:
    assert len(split_conjuncts("(" * 200 + "a && b" + ")" * 200)) == 1
    with pytest.raises(CelSyntaxError):
        split_conjuncts("(" * 5000 + "a" + ")" * 5000)


def test_what_does_not_parse_is_an_error() -> None:
    with pytest.raises(CelSyntaxError):
        split_conjuncts("a && ")
