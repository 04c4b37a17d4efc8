"""The brake over fleets of all sizes, and the pace."""

import pytest
from msgspec.structs import replace

from dra_driver.controller.eviction_api import BrakeRules, Pace, brake_state
from dra_driver.controller.pending_evictions import Fleet, fleet_of, slice_view
from tests.fakes.stand_in import present
from tests.unit.controller.objects import Obj, at, device, resource_slice, taint

RULES = BrakeRules(percent=20, window_s=600)


def fleet(size: int, tainted: int, *, seconds: float = 0.0, key: str = "gpu.nvidia.com/xid") -> Fleet:
    return fleet_with(*(device(n, taint(seconds, key=key)) if n < tainted else device(n) for n in range(size)))


def fleet_with(*devices: Obj) -> Fleet:
    return fleet_of([present(slice_view(resource_slice(*devices)))])


@pytest.mark.parametrize(
    ("size", "tainted", "on"),
    [
        (0, 0, False),
        (1, 1, False),  # one broken GPU is the ordinary case, whatever part of the fleet it is
        (4, 1, False),
        (2, 2, True),
        (4, 2, True),
        (10, 2, False),  # exactly 20 %
        (9, 2, True),
        (1000, 200, False),
        (1000, 201, True),
    ],
)
def test_fleets_of_all_sizes(size: int, tainted: int, on: bool) -> None:
    state = brake_state(fleet(size, tainted), RULES, at(60))
    assert (state.on, state.recent, state.fleet) == (on, tainted, size)


def test_the_window_is_that_of_the_taints_so_a_restart_forgets_nothing() -> None:
    assert brake_state(fleet(8, 4), RULES, at(599)).on
    assert brake_state(fleet(8, 4), RULES, at(599)).until == at(600)
    assert not brake_state(fleet(8, 4), RULES, at(600)).on


def test_a_long_grace_time_does_not_outlast_the_brake() -> None:
    """Else all pods of a false alarm become due at once, just after the window."""
    rules = BrakeRules(percent=20, window_s=600, grace_s=900)
    assert brake_state(fleet(8, 4), rules, at(1799)).on
    assert brake_state(fleet(8, 4), rules, at(1799)).until == at(1800)
    assert not brake_state(fleet(8, 4), rules, at(1800)).on
    of_policies = replace_grace(fleet(8, 4), 3600)
    assert brake_state(of_policies, RULES, at(7199)).on
    assert not brake_state(of_policies, RULES, at(7200)).on


def replace_grace(of: Fleet, grace_s: int) -> Fleet:
    return replace(of, tainted={key: replace(found, grace_s=grace_s) for key, found in of.tainted.items()})


def test_a_node_whose_clock_is_ahead_counts() -> None:
    assert brake_state(fleet(8, 4, seconds=3600), RULES, at(0)).on


@pytest.mark.parametrize("key", ["gpu.dra-driver.io/drained", "gpu.dra-driver.io/detached"])
def test_taints_that_a_person_asked_for_do_not_count(key: str) -> None:
    assert not brake_state(fleet(8, 8, key=key), RULES, at(1)).on


def test_partitions_count_for_their_gpu_and_once() -> None:
    parts = [device(0, taint(), part=f"-mig-{n}") for n in range(10)]
    state = brake_state(fleet_with(*parts, *(device(n) for n in range(1, 8))), RULES, at(1))
    assert (state.recent, state.fleet, state.on) == (1, 8, False)


def test_a_gpu_that_was_tainted_again_counts_by_its_newest_taint() -> None:
    assert brake_state(fleet_with(*(device(n, taint(-9999), taint(0, key="k")) for n in range(4))), RULES, at(1)).on


def test_one_hundred_percent_switches_it_off() -> None:
    assert not brake_state(fleet(8, 8), BrakeRules(percent=100, window_s=600), at(1)).on


def test_the_pace_spreads_a_minute_evenly() -> None:
    assert Pace(10, lambda: None, lambda: 0.0).left_s() == 6.0
    assert Pace(600, lambda: None, lambda: 0.0).left_s() == 0.1
