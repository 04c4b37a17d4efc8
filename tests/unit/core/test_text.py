"""Text for people, and times of Kubernetes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.backoff import Backoff
from dra_driver.core.text import gib, listed, one_line, printable, quoted, span, wrapped
from dra_driver.core.time import parse_time, rfc3339, rfc3339_micro

ESCAPE = "\x1b[31mred\u202e"


@given(st.text())
def test_printable_text_keeps_its_columns(text: str) -> None:
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
        (0, "0.0 GiB"),
        (1 << 20, "<0.1 GiB"),
        (10 * 2**30, "10.0 GiB"),
        (9984 << 20, "9.8 GiB"),
        (80944 << 20, "79.0 GiB"),
        (1004 << 27, "125.5 GiB"),
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


PARIS = timezone(timedelta(hours=1))


def test_times_are_written_in_utc_without_or_with_six_decimals() -> None:
    """metav1.Time has no decimals; the API server refuses a Lease with fewer than six."""
    assert rfc3339(datetime(2026, 1, 31, 12, 0, 0, 999_999, tzinfo=PARIS)) == "2026-01-31T11:00:00Z"
    assert rfc3339(1_769_857_200.9) == "2026-01-31T11:00:00Z"
    assert rfc3339_micro(datetime(2026, 1, 31, 12, 0, 0, 50, tzinfo=UTC)) == "2026-01-31T12:00:00.000050Z"
    assert rfc3339_micro(0) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("text", ["2026-01-31T11:00Z", "2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00.000000001Z"])
def test_time_is_read_in_utc(text: str) -> None:
    at = parse_time(text)
    assert at == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert at is not None
    assert at.tzinfo is UTC


@pytest.mark.parametrize(
    "value", [None, 7, "", "soon", "2026-01-31", "2026-01-31T12:00:00", "0001-01-01T00:00:00+01:00", ["2026"]]
)
def test_value_that_is_no_time_is_none(value: object) -> None:
    assert parse_time(value) is None


@given(st.datetimes(timezones=st.just(UTC)))
def test_written_time_is_read_back(at: datetime) -> None:
    assert parse_time(rfc3339_micro(at)) == at
    assert parse_time(rfc3339(at)) == at.replace(microsecond=0)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    """A component that fails for hours tries twice a minute, and at once after it worked."""
    backoff = Backoff(first_s=1.0, longest_s=5.0)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0
    backoff.failures = 10**9  # a month of failures: 2 to the power of that count would have millions of digits
    assert backoff.next_s() == 5.0


def test_jitter_shortens_a_pause_to_half_at_most() -> None:
    assert Backoff(first_s=1.0, longest_s=5.0, rand=lambda: 1.0).next_s() == 0.5
    assert Backoff(first_s=1.0, longest_s=5.0, rand=lambda: 0.0).next_s() == 1.0
