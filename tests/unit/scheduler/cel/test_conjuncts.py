"""Splitting selectors into conjuncts."""

import pytest

from dra_driver.core.errors import CelSyntaxError
from dra_driver.scheduler.cel.conjuncts import split_conjuncts


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
def test_only_top_level_conjunctions_are_split(expression: str, parts: list[str]) -> None:
    """Each conjunct is a selector that alone makes the whole false."""
    assert list(split_conjuncts(expression)) == parts


def test_deep_parentheses_give_one_conjunct_or_a_syntax_error() -> None:
    assert len(split_conjuncts("(" * 200 + "a && b" + ")" * 200)) == 1
    with pytest.raises(CelSyntaxError):
        split_conjuncts("(" * 5000 + "a" + ")" * 5000)


def test_a_syntax_error_is_raised() -> None:
    with pytest.raises(CelSyntaxError):
        split_conjuncts("a && ")
