"""Texts that would end the process in libyaml's loader."""

import pytest

from dra_driver.core.text import MAX_DEPTH, check_nesting

DEEP = 60_000


@pytest.mark.parametrize(
    "text", ["[" * DEEP, "{a: " * DEEP, "- " * DEEP, "? " * DEEP, "a: 1\n---\nb:\n  " + "[" * DEEP]
)
def test_deep_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line [0-9]: nested more than 100 levels deep$"):
        check_nesting(text)


def test_what_is_long_and_not_deep_is_taken() -> None:
    check_nesting("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    check_nesting("---\n[[a], {b: [c]}]\n" * MAX_DEPTH)
