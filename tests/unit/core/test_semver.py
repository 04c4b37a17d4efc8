"""Versions: strict reading, the specification's order, and repair of what drivers print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.semver import Semver, from_loose

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
def test_text_round_trips(version: Semver) -> None:
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
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "01.2.3",
        "1.02.3",
        "v1.2.3",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3+",
        "1.2.3-a..b",
        "1.2.x",
        " 1.2.3",
        "1.2.3\n",
        "18446744073709551616.0.0",
        "1.0.0-18446744073709551616",
        "1" * 300 + ".0.0",
        "١.2.3",
    ],
)
def test_refuses_what_is_not_strict(text: str) -> None:
    """The API server refuses a whole slice for one such attribute, so nothing is let through."""
    with pytest.raises(ValueError, match="semantic version"):
        Semver.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.65.06", "580.65.6"),
        ("8.0", "8.0.0"),
        ("13", "13.0.0"),
        ("v1.2", "1.2.0"),
        ("550.54.15-rc.1", "550.54.15-rc.1"),
        ("0012.0.0", "12.0.0"),
        ("1.2.3.4", None),
        ("unknown", None),
        ("", None),
        ("1.2.3-", None),
        ("9" * 30, None),
    ],
)
def test_repairs_what_drivers_print(text: str, expected: str | None) -> None:
    """NVIDIA's driver prints 580.65.06, which is not a semantic version; what cannot be repaired is left out."""
    assert from_loose(text) == expected


@given(st.text(max_size=20))
def test_repair_gives_strict_versions_or_nothing(text: str) -> None:
    repaired = from_loose(text)
    assert repaired is None or str(Semver.parse(repaired)) == repaired
