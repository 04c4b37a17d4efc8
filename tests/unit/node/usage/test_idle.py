"""Idle is what is known not to be used, for as long as it was watched."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dra_driver.core.model.usage_findings import IdleClaim
from dra_driver.node.usage.values import SeenProcess
from dra_driver.node.usage.watchdog import ClaimUse, IdleState, idle_s, is_used, used_any, watch_idle
from tests.unit.node.usage.claims import NOW, claim

UNUSED = ClaimUse(claim=claim(), used=False, after_min=1)
USED, UNKNOWN = replace(UNUSED, used=True), replace(UNUSED, used=None)


def looks(*uses: ClaimUse, every_s: float = 30.0) -> tuple[IdleState, tuple[IdleClaim, ...]]:
    state: IdleState = {}
    found: tuple[IdleClaim, ...] = ()
    for number, use in enumerate(uses):
        state, found = watch_idle(state, [use], every_s, NOW + timedelta(seconds=number * every_s))
    return state, found


def process(percent: int | None) -> SeenProcess:
    return SeenProcess(pid=1, sm_percent=percent)


@pytest.mark.parametrize(
    ("percents", "device", "expected"),
    [
        (None, None, None),
        (None, 0, None),
        ([], None, False),
        ([0, 0], None, False),
        ([0, 3], None, True),
        ([None, 3], None, True),
        ([None, 0], None, None),
        ([None], 0, False),
        ([None], 7, True),
        ([], 7, False),
    ],
)
def test_use_is_computing_and_unknown_stays_unknown(
    percents: list[int | None] | None, device: int | None, expected: bool | None
) -> None:
    """A partition on a GPU without GPM has processes of which nothing is known; without processes it is not used."""
    assert is_used(None if percents is None else [process(each) for each in percents], device) is expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([], None), ([False], False), ([False, True], True), ([None, True], True), ([None, False], None)],
)
def test_one_device_in_use_is_enough_and_one_unknown_forbids_idle(
    devices: list[bool | None], expected: bool | None
) -> None:
    assert used_any(devices) is expected


def test_a_claim_is_idle_after_the_minutes_of_its_policy() -> None:
    """Counted from the first look at it; the moment it began stays the same."""
    assert looks(UNUSED, UNUSED)[1] == ()
    assert looks(UNUSED, UNUSED, UNUSED)[1] == (IdleClaim(claim=claim(), since=NOW),)
    assert looks(*[UNUSED] * 9)[1] == (IdleClaim(claim=claim(), since=NOW),)


@pytest.mark.parametrize("between", [USED, UNKNOWN])
def test_use_and_not_knowing_both_begin_the_time_again(between: ClaimUse) -> None:
    """Unknown is never idle."""
    assert looks(UNUSED, UNUSED, UNUSED, between)[1] == ()
    assert looks(UNUSED, UNUSED, between, UNUSED, UNUSED)[1] == ()
    assert looks(*[between] * 9)[1] == ()


def test_without_minutes_no_claim_is_idle_but_its_time_is_known() -> None:
    never = replace(UNUSED, after_min=None)
    state, found = looks(*[never] * 5)
    assert found == ()
    assert idle_s(state, claim().uid, used=False) == 120.0


def test_the_metric_is_absent_while_unknown_and_0_in_use() -> None:
    state, _ = looks(USED)
    assert idle_s(state, claim().uid, used=True) == 0.0
    assert idle_s(state, claim().uid, used=None) is None


def test_a_clock_that_jumps_makes_no_claim_idle() -> None:
    state, _ = watch_idle({}, [UNUSED], 0.0, NOW)
    assert watch_idle(state, [UNUSED], 86400.0, NOW)[1] == ()
