"""The order in which partitions are published, on every board of the catalogue, and the slices that it strands."""

import itertools

import pytest

from dra_driver.core.model.mig import MigProfile
from dra_driver.hardware.mig.order import placement_order
from tests.bench.packing import KINDS, measure
from tests.fakes.simulated_gpus import SimulatedBackend

SEVENS = ["a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb", "gb300"]
FOURS = ["a30-24gb", "rtx-pro-6000-blackwell-se-96gb"]


def profiles(model: str) -> tuple[MigProfile, ...]:
    return SimulatedBackend.from_spec(f"1x{model}", "n").snapshot().gpus[0].mig_profiles


def starts(model: str, profile_id: int) -> list[int]:
    return [start for profile, start in placement_order(profiles(model)) if profile.profile_id == profile_id]


@pytest.mark.parametrize("model", SEVENS + FOURS)
def test_every_placement_once_small_before_large(model: str) -> None:
    found = placement_order(profiles(model))
    everything = {(profile.profile_id, start) for profile in profiles(model) for start in profile.starts}
    assert len(found) == len(everything)
    assert {(profile.profile_id, start) for profile, start in found} == everything
    assert placement_order(tuple(reversed(profiles(model)))) == found
    sizes = [(profile.memory_slices, profile.compute_slices) for profile, _ in found]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("model", SEVENS)
def test_seven_slices_fill_from_the_end(model: str) -> None:
    """4g can only begin at 0, so every other profile begins as far from there as it can."""
    assert starts(model, 19) == [6, 5, 4, 3, 2, 1, 0]
    assert starts(model, 15) == [6, 4, 2, 0]
    assert starts(model, 14) == [4, 2, 0]
    assert starts(model, 9) == [4, 0]


def test_plain_before_special() -> None:
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


@pytest.mark.parametrize("kind", KINDS)
def test_published_order_strands_less_than_order_of_names(kind: str) -> None:
    """On boards with seven compute slices fewer slices are refused for their place alone, and larger ones stay free."""
    tallies = measure("h100-sxm5-80gb", kind, gpus=4, sequences=400, seed=7)
    ours, names = tallies["ours"], tallies["by name"]
    assert ours.requests == names.requests
    assert ours.stranded < names.stranded
    assert ours.largest > names.largest


def test_about_half_as_much_is_stranded_as_by_name() -> None:
    """When a node fills up with all sizes equally often, about half as much is stranded."""
    tallies = measure("a100-sxm4-40gb", "filling", gpus=4, sequences=200, seed=7)
    assert tallies["ours"].stranded < 0.65 * tallies["by name"].stranded


@pytest.mark.parametrize("model", ["a30-24gb", "rtx-pro-6000-blackwell-se-96gb"])
def test_boards_that_divide_evenly_pack_equally_well(model: str) -> None:
    tallies = measure(model, "coming and going", gpus=4, sequences=20, seed=7)
    assert tallies["ours"].stranded == tallies["by name"].stranded
