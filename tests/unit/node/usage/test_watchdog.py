"""A share is judged by all of its processes together, after a while, and never for what is not known."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage_findings import (
    MAX_COMMAND,
    MAX_COMMANDS,
    MAX_OVER_GRANT,
    IdleClaim,
    OverGrant,
    Unattributed,
)
from dra_driver.core.model.usage_rules import OverGrantAction, UsageRules, idle_after_min
from dra_driver.node.usage.values import GpuUse, SeenProcess
from dra_driver.node.usage.watchdog import (
    CALM_S,
    ClaimUse,
    ForeignState,
    IdleState,
    ShareUse,
    WatchdogState,
    idle_s,
    used_any,
    watch,
    watch_idle,
    watch_unattributed,
)
from tests.fakes.stand_in import present
from tests.unit.node.usage.claims import GIB, MIB, NOW, claim, named, pod

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
    _, told = looks(OVER, OVER)
    assert told[0] == ()
    assert told[1] == (
        OverGrant(
            **named(claim()),
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
    assert last(UNKNOWN, UNKNOWN, UNKNOWN) is None
    assert last(OVER, OVER, UNKNOWN) is None
    assert last(OVER, OVER, UNKNOWN, OVER) is None
    unattributed = replace(OVER, pods=())
    assert last(unattributed, unattributed, unattributed) is None


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
    """Another one of its name has another UID, and starting from scratch."""
    state, told = looks(OVER, OVER, None)
    assert (state, told[-1]) == ({}, ())


def test_a_clock_that_jumps_counts_as_one_step_at_most() -> None:
    state, _ = watch({}, [OVER], 0.0, NOW)
    _, slept = watch(state, [OVER], 86400.0, NOW + timedelta(days=1))
    assert slept[0].since == NOW + timedelta(days=1) - timedelta(seconds=30)
    _, back = watch(state, [OVER], -3600.0, NOW)
    assert back == ()


def test_memory_that_grows_little_by_little_is_told_in_steps() -> None:
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
    state: WatchdogState = {}
    for used, processes, attributed, elapsed in looks_at:
        use = replace(OVER, used_bytes=used, processes=processes, pods=(pod(),) if attributed else ())
        state, found = watch(state, [use], elapsed, NOW)
        for each in found:
            if each.action is OverGrantAction.EVICT:
                assert used is not None
                assert attributed
                assert used > 12 * GIB + processes * 512 * MIB


PYTHON = SeenProcess(pid=10, command="python3", memory_bytes=2 * GIB)
GPU = GpuUse(gpu_uuid=GpuUuid("GPU-0"), device="gpu-0", unattributed=(PYTHON,))


def unattributed_after(*uses: GpuUse, every_s: float = 15.0) -> tuple[Unattributed, ...]:
    state: ForeignState = {}
    found: tuple[Unattributed, ...] = ()
    for number, use in enumerate(uses):
        state, found = watch_unattributed(state, [use], every_s, NOW + timedelta(seconds=number * every_s))
    return found


def test_a_process_is_told_when_it_stays() -> None:
    assert unattributed_after(GPU, GPU) == ()
    assert unattributed_after(GPU, GPU, GPU) == (
        Unattributed(gpu_uuid="GPU-0", device="gpu-0", processes=1, bytes=2 * GIB, since=NOW, commands=("python3",)),
    )
    assert unattributed_after(GPU, GPU, GPU, replace(GPU, unattributed=())) == ()
    two = replace(GPU, unattributed=(PYTHON, SeenProcess(pid=11)))
    (found,) = unattributed_after(two, two, two)
    assert (found.processes, found.bytes) == (2, None)


def test_short_processes_and_programs_of_the_driver_are_not_reported() -> None:
    """The MPS server has memory on each shared GPU; /proc cuts its name to 15 characters."""
    passing = [replace(GPU, unattributed=(replace(PYTHON, pid=pid),)) for pid in range(5)]
    assert unattributed_after(*passing) == ()
    server = replace(GPU, unattributed=(replace(PYTHON, command="nvidia-cuda-mps"),))
    assert unattributed_after(server, server, server) == ()


def test_names_are_bounded_and_the_largest_come_first() -> None:
    many = tuple(SeenProcess(pid=number, command=f"{number}{'x' * 200}", memory_bytes=number) for number in range(9))
    use = replace(GPU, unattributed=many)
    (found,) = unattributed_after(use, use, use)
    assert len(found.commands) == MAX_COMMANDS
    assert found.commands[0] == f"8{'x' * 200}"[:MAX_COMMAND]


def test_memory_that_changes_little_is_told_as_before() -> None:
    grown = [replace(GPU, unattributed=(replace(PYTHON, memory_bytes=size),)) for size in (2 * GIB + 1, 4 * GIB)]
    assert unattributed_after(GPU, GPU, GPU, grown[0])[0].bytes == 2 * GIB
    assert unattributed_after(GPU, GPU, GPU, grown[1])[0].bytes == 4 * GIB


UNUSED = ClaimUse(claim=claim(), used=False, after_min=1)
USED, NOT_KNOWN = replace(UNUSED, used=True), replace(UNUSED, used=None)


def idle_after(*uses: ClaimUse, every_s: float = 30.0) -> tuple[IdleState, tuple[IdleClaim, ...]]:
    state: IdleState = {}
    found: tuple[IdleClaim, ...] = ()
    for number, use in enumerate(uses):
        state, found = watch_idle(state, [use], every_s, NOW + timedelta(seconds=number * every_s))
    return state, found


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([], None), ([False], False), ([False, True], True), ([None, True], True), ([None, False], None)],
)
def test_one_device_in_use_is_enough_and_one_unknown_forbids_idle(
    devices: list[bool | None], expected: bool | None
) -> None:
    assert used_any(devices) is expected


def test_a_claim_is_idle_after_the_minutes_of_its_policy() -> None:
    assert idle_after(UNUSED, UNUSED)[1] == ()
    assert idle_after(UNUSED, UNUSED, UNUSED)[1] == (IdleClaim(**named(claim()), since=NOW),)
    assert idle_after(*[UNUSED] * 9)[1] == (IdleClaim(**named(claim()), since=NOW),)


@pytest.mark.parametrize("between", [USED, NOT_KNOWN])
def test_use_and_not_knowing_both_begin_the_time_again(between: ClaimUse) -> None:
    assert idle_after(UNUSED, UNUSED, UNUSED, between)[1] == ()
    assert idle_after(UNUSED, UNUSED, between, UNUSED, UNUSED)[1] == ()
    assert idle_after(*[between] * 9)[1] == ()


@pytest.mark.parametrize(("minutes", "found"), [([5, 30], 30), ([5, None], None), ([None], None), ([], None)])
def test_a_claim_of_several_gpus_is_idle_by_the_most_patient_policy(
    minutes: list[int | None], found: int | None
) -> None:
    assert idle_after_min([UsageRules(idle_after_min=each) for each in minutes]) == found


def test_without_minutes_no_claim_is_idle_but_its_time_is_known() -> None:
    never = replace(UNUSED, after_min=None)
    state, found = idle_after(*[never] * 5)
    assert found == ()
    assert idle_s(state, claim().uid, used=False) == 120.0
    assert idle_s(idle_after(USED)[0], claim().uid, used=True) == 0.0
    assert idle_s(state, claim().uid, used=None) is None


def test_a_clock_that_jumps_makes_no_claim_idle() -> None:
    state, _ = watch_idle({}, [UNUSED], 0.0, NOW)
    assert watch_idle(state, [UNUSED], 86400.0, NOW)[1] == ()
