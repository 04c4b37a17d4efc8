"""Text for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.text import MAX_DEPTH, check_nesting, gib, listed, one_line, printable, quoted, span, wrapped

ESCAPE = "\x1b[31mred\u202e"


@given(st.text())
def test_printable_text_keeps_its_columns(text: str) -> None:
    """Excerpts point at columns, and nothing in them moves the cursor of a terminal."""
    shown = printable(text)
    assert len(shown) == len(text)
    assert shown.isprintable()


def test_unprintable_characters_are_replaced() -> None:
    """Line ends and tabs separate words; terminal commands and changes of the direction do not get through."""
    assert printable(f"a\n\tb {ESCAPE}") == "a  b ?[31mred?"
    assert one_line(f" a\r\n\tb  {ESCAPE} ", 9) == "a b ?[31…"


def test_quoted_value_is_escaped_and_short() -> None:
    assert quoted(ESCAPE) == "'\\x1b[31mred\\u202e'"
    assert len(quoted("x" * 1000)) == 80


def test_wrapped_lines_keep_their_indentation() -> None:
    assert wrapped("  a word\nand  expression", "    ", 12) == ["  a word and", "    expressi", "    on"]
    assert wrapped("") == [""]


def test_listed_names_are_few_and_differ() -> None:
    assert listed(["a", "b", "a"], 2) == "a, b"
    assert listed(["a", "b", "a", "c", "d"], 2) == "a, b and 2 more"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "?"),
        (0, "0"),
        (10 * 2**30, "10 GiB"),
        (9984 << 20, "9.8 GiB"),
        (80944 << 20, "79 GiB"),
        (1004 << 27, "126 GiB"),
    ],
)
def test_bytes_are_shown_in_gib(count: int | None, shown: str) -> None:
    assert gib(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "?"), (0.4, "0s"), (119, "119s"), (600, "10m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")],
)
def test_duration_has_one_unit(seconds: float | None, shown: str) -> None:
    """The unit changes at two of the next, so that an age is never off by half."""
    assert span(seconds) == shown


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
