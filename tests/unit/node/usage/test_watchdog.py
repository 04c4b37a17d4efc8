"""A share is judged by all of its processes together, after a while, and never for what is not known."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.usage_findings import MAX_OVER_GRANT, OverGrant
from dra_driver.core.model.usage_rules import OverGrantAction, UsageRules
from dra_driver.node.usage.watchdog import CALM_S, ShareUse, WatchdogState, watch
from tests.fakes.stand_in import present
from tests.unit.node.usage.claims import GIB, MIB, NOW, claim, pod

EVICT = UsageRules(over_grant=OverGrantAction.EVICT)
OVER = ShareUse(
    claim=claim(), device="gpu-0", grant_bytes=12 * GIB, used_bytes=20 * GIB, processes=2, pods=(pod(),), rules=EVICT
)
FINE = replace(OVER, used_bytes=12 * GIB)
UNKNOWN = replace(OVER, used_bytes=None)


def looks(*uses: ShareUse | None, every_s: float = 10.0) -> tuple[WatchdogState, list[tuple[OverGrant, ...]]]:
    state: WatchdogState = {}
    told = []
    for number, use in enumerate(uses):
        at = NOW + timedelta(seconds=number * every_s)
        state, found = watch(state, [] if use is None else [use], every_s, at)
        told.append(found)
    return state, told


def last(*uses: ShareUse | None, every_s: float = 10.0) -> OverGrant | None:
    found = looks(*uses, every_s=every_s)[1][-1]
    return found[0] if found else None


def test_memory_over_the_grant_is_told_at_the_second_look() -> None:
    """One look may have hit a moment; the finding says since when."""
    _, told = looks(OVER, OVER)
    assert told[0] == ()
    assert told[1] == (
        OverGrant(
            claim=claim(),
            device="gpu-0",
            pods=(pod(),),
            used_bytes=20 * GIB,
            grant_bytes=12 * GIB,
            processes=2,
            since=NOW,
            action=OverGrantAction.EVICT,
        ),
    )


def test_each_process_may_have_its_context_beyond_the_grant() -> None:
    """Two processes: 1 GiB more. One byte beyond it is over; without an overhead, one byte beyond the grant."""
    at_most = replace(OVER, used_bytes=13 * GIB)
    assert last(at_most, at_most) is None
    beyond = replace(OVER, used_bytes=13 * GIB + 1)
    assert last(beyond, beyond) is not None
    strict = replace(OVER, used_bytes=12 * GIB + 1, rules=UsageRules(overhead_bytes=0))
    assert last(strict, strict) is not None


def test_unknown_memory_is_never_over_and_ends_what_was_found() -> None:
    """A claim that cannot be measured is not accused; the time begins again."""
    assert last(UNKNOWN, UNKNOWN, UNKNOWN) is None
    assert last(OVER, OVER, UNKNOWN) is None
    assert last(OVER, OVER, UNKNOWN, OVER) is None


def test_memory_without_a_pod_that_has_it_is_never_over() -> None:
    """Without attribution there is no claim to tell."""
    alone = replace(OVER, pods=())
    assert last(alone, alone, alone) is None


def test_a_claim_that_keeps_its_grant_again_is_told_for_a_while_and_threatened_with_nothing() -> None:
    """Up and down is one finding, and an eviction needs that it is over at that moment."""
    found = present(last(OVER, OVER, FINE))
    assert found.action is OverGrantAction.REPORT
    again = present(last(OVER, OVER, FINE, OVER))
    assert (again.action, again.since) == (OverGrantAction.EVICT, NOW)
    assert last(OVER, OVER, *([FINE] * int(CALM_S / 10))) is None


def test_a_spike_between_two_looks_is_nothing() -> None:
    assert last(OVER, FINE, OVER, FINE, OVER) is None


def test_a_claim_that_ended_is_forgotten() -> None:
    """Another one of its name has another UID, and begins anew."""
    state, told = looks(OVER, OVER, None)
    assert (state, told[-1]) == ({}, ())


def test_a_clock_that_jumps_counts_as_one_step_at_most() -> None:
    """A machine that slept for a day saw nothing in that time; a step back counts nothing."""
    state, _ = watch({}, [OVER], 0.0, NOW)
    _, slept = watch(state, [OVER], 86400.0, NOW + timedelta(days=1))
    assert slept[0].since == NOW + timedelta(days=1) - timedelta(seconds=30)
    _, back = watch(state, [OVER], -3600.0, NOW)
    assert back == ()


def test_memory_that_grows_little_by_little_is_told_in_steps() -> None:
    """Each new number is a write to the API server."""
    _, told = looks(OVER, OVER, replace(OVER, used_bytes=21 * GIB), replace(OVER, used_bytes=23 * GIB))
    assert [found[0].used_bytes // GIB for found in told[1:]] == [20, 20, 23]


def test_pods_that_come_and_go_are_told_at_once() -> None:
    found = present(last(OVER, OVER, replace(OVER, pods=(pod("llm-1"), pod()))))
    assert found.pods == (pod("llm-1"), pod())


def test_a_claim_is_judged_on_each_device_apart() -> None:
    uses = [OVER, replace(FINE, device="gpu-1")]
    state, _ = watch({}, uses, 10.0, NOW)
    assert [each.device for each in watch(state, uses, 10.0, NOW)[1]] == ["gpu-0"]


def test_findings_are_bounded() -> None:
    uses = [replace(OVER, claim=claim(f"c{number}")) for number in range(MAX_OVER_GRANT + 50)]
    state, _ = watch({}, uses, 10.0, NOW)
    assert len(watch(state, uses, 10.0, NOW)[1]) == MAX_OVER_GRANT


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 40 * GIB)),
            st.integers(0, 5),
            st.booleans(),
            st.floats(-1000, 1000, allow_nan=False),
        ),
        max_size=20,
    )
)
def test_whatever_comes_only_who_is_over_at_that_look_may_be_evicted(
    looks_at: list[tuple[int | None, int, bool, float]],
) -> None:
    """Any order of known, unknown, attributed and other looks, by any clock."""
    state: WatchdogState = {}
    for used, processes, attributed, elapsed in looks_at:
        use = replace(OVER, used_bytes=used, processes=processes, pods=(pod(),) if attributed else ())
        state, found = watch(state, [use], elapsed, NOW)
        for each in found:
            if each.action is OverGrantAction.EVICT:
                assert used is not None
                assert attributed
                assert used > 12 * GIB + processes * 512 * MIB
