"""The rotation of the webhook's certificates, step by step."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from dra_driver.controller.webhook_plan import Life, Pair, Step, Stored, Times, done, next_step

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
TIMES = Times.of(90 * DAY)
LIVES: dict[bytes, Life | str] = {}
"""By certificate."""


def pair(name: str, begin: timedelta = -DAY, end: timedelta = 90 * DAY) -> Pair:
    LIVES[name.encode()] = Life(begin=NOW + begin, end=NOW + end)
    return Pair(certificate=name.encode(), key=b"k", ca=f"ca-{name};".encode())


def judge(of: Pair) -> Life | str:
    return LIVES[of.certificate]


def step(stored: Stored, at: timedelta = timedelta(), *, announced: bool = True) -> Step:
    return next_step(stored, judge, NOW + at, TIMES, announced=announced)


def test_short_lives_have_short_overlaps() -> None:
    assert Times.of(300 * timedelta(seconds=1)).overlap == timedelta(seconds=30)
    assert Times.of(90 * DAY) == Times(lifetime=90 * DAY, renew=30 * DAY, overlap=timedelta(hours=1))


def test_the_first_is_made_at_once() -> None:
    assert step(Stored()) is Step.REPLACE
    assert done(Stored(), Step.REPLACE, NOW, lambda: pair("a")) == Stored(current=pair("a"), since=NOW)


def test_a_good_one_stays() -> None:
    assert step(Stored(current=pair("a"))) is Step.NOTHING


@pytest.mark.parametrize("life", [(-2 * DAY, -DAY), (-2 * DAY, timedelta()), (DAY, 2 * DAY)])
def test_one_that_cannot_be_served_is_replaced_at_once(life: tuple[timedelta, timedelta]) -> None:
    """Expired while no controller ran, or made by a clock that goes wrong."""
    stored = Stored(current=pair("a", *life))
    assert step(stored) is Step.REPLACE
    assert done(stored, Step.REPLACE, NOW, lambda: pair("b")).former_ca == b"ca-a;"


def test_one_that_cannot_be_read_is_replaced_at_once() -> None:
    stored = Stored(current=pair("a"))
    LIVES[b"a"] = "it cannot be read"
    assert step(stored) is Step.REPLACE


def test_the_next_is_served_only_after_api_servers_had_time_to_trust_it() -> None:
    stored = Stored(current=pair("a"))
    assert step(stored, 60 * DAY - timedelta(seconds=1)) is Step.NOTHING
    assert step(stored, 60 * DAY) is Step.PREPARE
    at = 60 * DAY
    stored = done(stored, Step.PREPARE, NOW + at, lambda: pair("b", at, at + 90 * DAY))
    assert (stored.current, stored.bundle) == (pair("a"), b"ca-a;ca-b;")
    assert step(stored, at, announced=False) is Step.NOTHING
    assert step(stored, at + DAY, announced=False) is Step.NOTHING  # whatever time has passed
    assert step(stored, at) is Step.ANNOUNCED
    stored = done(stored, Step.ANNOUNCED, NOW + at, lambda: pair("x"))
    assert step(stored, at + timedelta(minutes=59)) is Step.NOTHING
    assert step(stored, at + timedelta(hours=1), announced=False) is Step.NOTHING  # the bundle was lost
    assert step(stored, at + timedelta(hours=1)) is Step.SERVE
    stored = done(stored, Step.SERVE, NOW + at + timedelta(hours=1), lambda: pair("x"))
    assert stored.current is not None
    assert (stored.current.certificate, stored.bundle) == (b"b", b"ca-b;ca-a;")
    assert step(stored, at + timedelta(minutes=119)) is Step.NOTHING
    assert step(stored, at + timedelta(hours=2)) is Step.FORGET
    stored = done(stored, Step.FORGET, NOW, lambda: pair("x"))
    assert (stored.bundle, stored.since) == (b"ca-b;", None)
    assert step(stored, at + timedelta(hours=2)) is Step.NOTHING


def test_a_time_in_the_future_counts_anew() -> None:
    """It was written by a replica whose clock goes wrong; its overlap would last for years."""
    stored = Stored(current=pair("a"), following=pair("b"), since=NOW + 400 * DAY)
    assert step(stored) is Step.ANNOUNCED
    assert step(Stored(current=pair("a"), former_ca=b"x", since=NOW + 400 * DAY)) is Step.FORGET


def test_the_next_is_served_at_once_when_the_current_one_is_over() -> None:
    stored = Stored(current=pair("a", -2 * DAY, -DAY), following=pair("b"))
    assert step(stored, announced=False) is Step.SERVE


def test_a_next_one_that_is_over_is_made_anew() -> None:
    stored = Stored(current=pair("a"), following=pair("b", -2 * DAY, -DAY))
    assert step(stored) is Step.PREPARE
    assert done(stored, Step.PREPARE, NOW, lambda: pair("c")).following == pair("c")


def test_nothing_changes_without_a_step() -> None:
    stored = Stored(current=pair("a"))
    assert done(stored, Step.NOTHING, NOW, lambda: pair("x")) == stored


def test_two_years_of_rotations_never_serve_what_is_not_trusted() -> None:
    """With a leader that looks every hour and configurations that are written a look later."""
    made = iter(names())
    stored, bundle, served = Stored(), b"", set()
    for hour in range(24 * 730):
        at = timedelta(hours=hour)
        found = step(stored, at, announced=bundle == stored.bundle)
        was = stored.current
        stored = done(stored, found, NOW + at, lambda at=at: pair(next(made), at, at + 90 * DAY))  # type: ignore[misc]
        assert stored.current is not None
        if was is not None and was != stored.current:
            assert stored.current.ca in bundle
        bundle = stored.bundle
        served.add(stored.current.certificate)
        life = judge(stored.current)
        assert isinstance(life, Life)
        assert life.begin <= NOW + at < life.end
    assert 12 <= len(served) <= 13


def names() -> Iterator[str]:
    for number in range(100):
        yield f"n{number}"


def test_a_key_is_not_printed() -> None:
    assert "k'" not in repr(Stored(current=pair("a")))
