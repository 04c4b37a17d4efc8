"""Quantities and versions: accepted texts, their values and order, and printed texts."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.quantity import NANO, Format, Quantity
from dra_driver.core.semver import Semver, from_loose

QUANTITIES = st.builds(Quantity, st.integers(-(10**30), 10**30), st.sampled_from(list(Format)))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"), ("-0.0Gi", "0"), ("Ki", "0"), ("+", "0"), ("1024Mi", "1Gi"), ("81559Mi", "81559Mi"),
        ("80Gi", "80Gi"), ("0.5Gi", "512Mi"), ("1.5Ki", "1536"), ("1000m", "1"), ("1500m", "1500m"), (".5", "500m"),
        ("5.", "5"), ("+5k", "5k"), ("-1024Ki", "-1Mi"), ("0.1Ki", "102400m"), ("1025", "1025"),
        ("1023Ki", "1023Ki"), ("12e6", "12e6"), ("1E3", "1e3"), ("100e0", "100"), ("1E", "1E"), ("1000E", "1000E"),
        ("10000E", "10000E"), ("0.0000000001", "1n"), ("-0.0000000001", "-1n"), ("0.3n", "1n"), ("1e-20", "1e-9"),
        ("100Ei", "9223372036854775807"), ("0.001Ki", "1024m"), ("0.0005Ki", "512m"),
    ],
)  # fmt: skip
def test_prints_as_kubernetes_prints(text: str, canonical: str) -> None:
    """A value read from one object and written to another must be the text that the API server would store."""
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", " 1", "1 ", "1ki", "1Mb", "1KiB", "1e", "1e3k", "--1", "1.2.3", "0x10", "1_0", "٣"),
        *("1e999999999", "1e-999999999", "9" * 5000),  # refused before any arithmetic
    ],
)
def test_refuses_what_kubernetes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        Quantity.parse(text)


@given(QUANTITIES)
def test_text_round_trips(quantity: Quantity) -> None:
    """Printing and reading again gives the same number, and after that the same text.

    Only after that: a binary quantity without a whole power of 1024 prints as a plain number (15625000), which is read
    as a decimal one and prints as 15625k, in Kubernetes too.
    """
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(Quantity.parse(str(again))) == str(again)


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_exact(count: int) -> None:
    quantity = Quantity.from_bytes(count)
    assert quantity.as_int() == count
    assert Quantity.parse(str(quantity)).as_int() == count


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=12))
def test_fractions_round_away_from_zero(number: object) -> None:
    exact = Fraction(str(number)) * NANO
    nano = Quantity.parse(f"{number:f}").nano
    assert abs(nano) - abs(exact) < 1
    assert abs(nano) >= abs(exact)


@given(QUANTITIES, QUANTITIES)
def test_order_and_sums_follow_the_numbers(left: Quantity, right: Quantity) -> None:
    assert (left < right) == (left.nano < right.nano)
    assert (left == right) == (left.nano == right.nano)
    assert hash(left) == hash(Quantity(left.nano, Format.BINARY_SI))
    assert (left + right).nano == left.nano + right.nano
    assert (left - right).nano == left.nano - right.nano


@pytest.mark.parametrize(
    ("text", "whole", "integer"), [("1500m", 2, False), ("-1500m", -2, False), ("2Ki", 2048, True)]
)
def test_whole_units(text: str, whole: int, integer: bool) -> None:
    assert Quantity.parse(text).as_int() == whole
    assert Quantity.parse(text).is_integer() is integer


NUMBERS = st.integers(0, 2**64 - 1)
IDENTIFIERS = st.from_regex(r"(0|[1-9][0-9]{0,5}|[0-9]{0,3}[A-Za-z-][0-9A-Za-z-]{0,5})", fullmatch=True)
BUILDS = st.from_regex(r"[0-9A-Za-z-]{1,6}", fullmatch=True)
VERSIONS = st.builds(
    Semver,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(IDENTIFIERS, max_size=4).map(tuple),
    st.lists(BUILDS, max_size=3).map(tuple),
)


@given(VERSIONS)
def test_version_text_round_trips(version: Semver) -> None:
    again = Semver.parse(str(version))
    assert again == version
    assert str(again) == str(version)


def test_precedence_of_the_specification() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    ordered += ["1.0.0-rc.1", "1.0.0", "2.0.0", "2.1.0", "2.1.1"]
    assert [str(version) for version in sorted(map(Semver.parse, reversed(ordered)))] == ordered


@given(VERSIONS, VERSIONS)
def test_comparison_is_one_order(left: Semver, right: Semver) -> None:
    assert left.compare(right) == -right.compare(left)
    assert (left.compare(right) < 0) == (left < right)
    assert (left.compare(right) == 0) == (left == right)
    if left == right:
        assert hash(left) == hash(right)


def test_build_metadata_does_not_count() -> None:
    assert Semver.parse("1.2.3+a") == Semver.parse("1.2.3+b")


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "1.2", "1.2.3.4", "01.2.3", "1.02.3", "v1.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a..b",
        "1.2.x", " 1.2.3", "1.2.3\n", "18446744073709551616.0.0", "1.0.0-18446744073709551616", "1" * 300 + ".0.0",
        "١.2.3",
    ],
)  # fmt: skip
def test_refuses_what_is_not_strict(text: str) -> None:
    """The API server refuses a whole slice for one such attribute, so nothing is let through."""
    with pytest.raises(ValueError, match="semantic version"):
        Semver.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.65.06", "580.65.6"), ("8.0", "8.0.0"), ("13", "13.0.0"), ("v1.2", "1.2.0"),
        ("550.54.15-rc.1", "550.54.15-rc.1"), ("0012.0.0", "12.0.0"), ("1.2.3.4", None), ("unknown", None),
        ("", None), ("1.2.3-", None), ("9" * 30, None),
    ],
)  # fmt: skip
def test_repairs_what_drivers_print(text: str, expected: str | None) -> None:
    """NVIDIA's driver prints 580.65.06, which is not a semantic version; what cannot be repaired is left out."""
    assert from_loose(text) == expected


@given(st.text(max_size=20))
def test_repair_gives_strict_versions_or_nothing(text: str) -> None:
    repaired = from_loose(text)
    assert repaired is None or str(Semver.parse(repaired)) == repaired
