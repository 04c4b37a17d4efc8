"""The order in which partitions are published, on every board of the catalogue."""

import itertools

import pytest

from dra_driver.core.model.mig import MigProfile
from dra_driver.hardware.mig.order import placement_order
from tests.fakes.simulated_gpus import SimulatedBackend

SEVENS = ["a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb", "gb300"]
FOURS = ["a30-24gb", "rtx-pro-6000-blackwell-se-96gb"]


def profiles(model: str) -> tuple[MigProfile, ...]:
    return SimulatedBackend.from_spec(f"1x{model}", "n").snapshot().gpus[0].mig_profiles


def starts(model: str, profile_id: int) -> list[int]:
    return [start for profile, start in placement_order(profiles(model)) if profile.profile_id == profile_id]


@pytest.mark.parametrize("model", SEVENS + FOURS)
def test_every_placement_once(model: str) -> None:
    """Nothing is lost or doubled, whatever order the profiles come in."""
    found = placement_order(profiles(model))
    everything = {(profile.profile_id, start) for profile in profiles(model) for start in profile.starts}
    assert len(found) == len(everything)
    assert {(profile.profile_id, start) for profile, start in found} == everything
    assert placement_order(tuple(reversed(profiles(model)))) == found


@pytest.mark.parametrize("model", SEVENS + FOURS)
def test_small_before_large(model: str) -> None:
    """A request that names no profile takes the least that satisfies it."""
    sizes = [(profile.memory_slices, profile.compute_slices) for profile, _ in placement_order(profiles(model))]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("model", SEVENS)
def test_seven_slices_fill_from_the_end(model: str) -> None:
    """4g can only begin at 0, so every other profile begins as far from there as it can."""
    assert starts(model, 19) == [6, 5, 4, 3, 2, 1, 0]
    assert starts(model, 15) == [6, 4, 2, 0]
    assert starts(model, 14) == [4, 2, 0]
    assert starts(model, 9) == [4, 0]


def test_plain_before_special() -> None:
    """Of equally large partitions the one without the scarce media engine, or without graphics, is offered first."""
    names = [profile.name for profile, _ in placement_order(profiles("rtx-pro-6000-blackwell-se-96gb"))]
    firsts = list(dict.fromkeys(names))
    assert firsts[:5] == ["1g.24gb-me", "1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all"]
    assert firsts.index("4g.96gb") < firsts.index("4g.96gb+gfx")


def largest_beside(board: tuple[MigProfile, ...], taken: set[int]) -> int:
    """Compute slices of the largest profile that fits beside the taken memory slices."""
    fitting = (
        profile.compute_slices
        for profile in board
        for start in profile.starts
        if taken.isdisjoint(range(start, start + profile.memory_slices))
    )
    return max(fitting, default=0)


@pytest.mark.parametrize("model", SEVENS + FOURS)
def test_the_first_placement_keeps_the_largest_profile(model: str) -> None:
    """No other placement of the same profile on an empty GPU leaves a larger profile possible."""
    board = profiles(model)
    for profile in board:
        left = {
            start: largest_beside(board, set(range(start, start + profile.memory_slices))) for start in profile.starts
        }
        assert left[starts(model, profile.profile_id)[0]] == max(left.values())


def test_up_to_three_small_ones_keep_the_largest_profile() -> None:
    """Of all ways to place one, two or three 1g. (With four no fixed order can: they would have to begin at 0.)"""
    board = profiles("h100-sxm5-80gb")
    listed = starts("h100-sxm5-80gb", 19)
    for count in (1, 2, 3):
        best = max(largest_beside(board, set(taken)) for taken in itertools.combinations(range(7), count))
        assert largest_beside(board, set(listed[:count])) == best == 4


def test_a_gpu_that_cannot_be_cut_has_no_order() -> None:
    """No profiles, no placements."""
    assert placement_order(()) == ()
