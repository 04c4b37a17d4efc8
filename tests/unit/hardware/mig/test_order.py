"""The order of partitions, whose model places each claim as the allocator does, and the withholding of refused GPUs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigProfile, PartitionId
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.hardware.mig.manager import (
    LIMIT,
    NO_REFUSALS,
    ONE_CALL_S,
    WITHHELD_S,
    WITHIN_S,
    CutRefusals,
    after_refusal,
    at,
)
from dra_driver.hardware.mig.order import fixed_placements, placement_order
from dra_driver.node.slices import Built
from tests.bench.packing import KINDS, Board, Node, Request, measure, name_order, sequence
from tests.fakes.published import Scheduler, built, partition, published
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
    assert ours.intact > names.intact


def test_about_half_as_much_is_stranded_as_by_name() -> None:
    tallies = measure("a100-sxm4-40gb", "filling", gpus=4, sequences=200, seed=7)
    assert tallies["ours"].stranded < 0.65 * tallies["by name"].stranded


@pytest.mark.parametrize("model", ["a30-24gb", "rtx-pro-6000-blackwell-se-96gb"])
def test_boards_that_divide_evenly_pack_equally_well(model: str) -> None:
    tallies = measure(model, "coming and going", gpus=4, sequences=20, seed=7)
    assert tallies["ours"].stranded == tallies["by name"].stranded


GPU = GpuUuid("GPU-0")
PARTS = tuple(PartitionId(GPU, 19, start) for start in range(7))


def refused(*times: float) -> CutRefusals:
    state = NO_REFUSALS
    for number, time in enumerate(times):
        state = after_refusal(state, PARTS[number % len(PARTS)], time)
    return state


def test_the_third_refusal_within_ten_minutes_withholds() -> None:
    """Two may be a monitor that looks for a moment."""
    assert not refused(0, 1).withheld
    assert refused(0, 1, 2).withheld
    assert refused(0, 300, 599).withheld
    assert refused(0, 0, 0).withheld, "a monitor that holds up three pods holds up the fourth, too"


def test_tries_of_one_call_count_once() -> None:
    state = NO_REFUSALS
    for time in (0.0, 5.0, 10.0, 44.0):
        state = after_refusal(state, PARTS[0], time)
    assert len(state.counted) == 1
    state = after_refusal(state, PARTS[0], ONE_CALL_S)
    assert not state.withheld
    assert after_refusal(state, PARTS[0], 2 * ONE_CALL_S).withheld


def test_refusals_of_more_than_ten_minutes_ago_do_not_count() -> None:
    assert not refused(0, 300, 600).withheld
    assert refused(0, 300, 600, 899).withheld
    assert not refused(0, 600, 1200, 1800, 2400).withheld


def test_withholding_ends_after_ten_minutes_and_starts_from_nothing() -> None:
    """Refusals of claims that were allocated before neither prolong it nor count afterwards."""
    state = refused(0, 1, 2, 100, 500, 601)
    assert at(state, 601.9).withheld
    assert state.partitions == frozenset(PARTS[:6]), "claims wait for them, so they stay published"
    assert at(state, 602) == NO_REFUSALS
    assert not after_refusal(state, PARTS[0], 602).withheld


def test_a_clock_that_jumps_withholds_for_ten_minutes_at_most() -> None:
    state = at(refused(5000, 5001, 5002), 10.0)
    assert state.withheld
    assert at(state, 609.9).withheld
    assert at(state, 610.0) == NO_REFUSALS
    state = at(refused(5000, 5001), 10.0)
    assert at(state, 610.0) == NO_REFUSALS
    assert after_refusal(state, PARTS[2], 20.0).withheld
    assert at(refused(0, 1, 2), 1e9) == NO_REFUSALS


@given(st.lists(st.floats(min_value=0, max_value=1e5), max_size=30))
def test_the_state_is_bounded(times: list[float]) -> None:
    state = refused(*times)
    assert len(state.counted) <= LIMIT
    assert list(state.counted) == sorted(state.counted, key=lambda each: each[0])
    assert len(state.partitions) <= len(PARTS)


class Comparison(RuleBasedStateMachine):
    """The state machine beside a list of everything that happened, with a clock that goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = NO_REFUSALS
        self.counting: list[tuple[float, PartitionId]] = []
        self.since: float | None = None

    @rule(seconds=st.sampled_from([1.0, 60.0, 299.0, 599.0, 600.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.since is not None and self.now - self.since >= WITHHELD_S:
            self.since, self.counting = None, []

    @rule(part=st.sampled_from(PARTS))
    def refusal(self, part: PartitionId) -> None:
        self.state = after_refusal(self.state, part, self.now)
        if self.since is None and all(each != part or self.now - time >= ONE_CALL_S for time, each in self.counting):
            self.counting.append((self.now, part))
            if sum(self.now - time < WITHIN_S for time, _ in self.counting) >= LIMIT:
                self.since = self.now

    @rule()
    def success(self) -> None:
        self.state, self.counting, self.since = NO_REFUSALS, [], None

    @invariant()
    def agrees(self) -> None:
        assert at(self.state, self.now).withheld == (self.since is not None)


TestComparison = Comparison.TestCase


GPUS = 2


def by_name(listed: Built) -> Built:
    groups = (replace(group, devices=tuple(sorted(group.devices, key=lambda one: one.name))) for group in listed.groups)
    return replace(listed, groups=tuple(groups))


def events(requests: list[Request]) -> list[tuple[float, int, MigProfile, bool]]:
    found = [(request.at, number, request.wanted, True) for number, request in enumerate(requests)]
    found += [(request.at + request.stays, number, request.wanted, False) for number, request in enumerate(requests)]
    return sorted(found, key=lambda event: (event[0], event[3]))


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("a100-sxm4-40gb", "ours"),
        ("a100-sxm4-40gb", "by name"),
        ("b200-180gb", "ours"),
        ("a30-24gb", "by name"),
        ("rtx-pro-6000-blackwell-se-96gb", "ours"),
    ],
)
def test_model_and_allocator_agree(model: str, order: str) -> None:
    """What the table of stranded capacity is computed with places every partition where the scheduler does."""
    snapshot = SimulatedBackend.from_spec(f"{GPUS}x{model}+mig", "n").snapshot()
    board = Board(snapshot.gpus[0].mig_profiles)
    listed = built(snapshot) if order == "ours" else by_name(built(snapshot))
    scheduler = Scheduler(published(listed))
    node = Node(board, placement_order(board.profiles) if order == "ours" else name_order(board.profiles), GPUS)
    placed: dict[int, tuple[str, tuple[MigProfile, int, int]]] = {}
    refused = 0
    for _, number, profile, arrives in events(sequence(board, "coming and going", GPUS, "contract")):
        if not arrives:
            if number in placed:
                claim, place = placed.pop(number)
                scheduler.release(claim)
                node.remove(place)
            continue
        expected = node.place(profile)
        granted = scheduler.allocate(partition("one", profile.name))
        if expected is None or granted is None:
            assert expected is None
            assert granted is None
            refused += 1
            continue
        _, gpu, start = expected
        label, (device,) = granted
        assert device.startswith(f"gpu-{gpu}-mig-")
        assert device.endswith(f"-{profile.profile_id}-{start}")
        placed[number] = (label, expected)
    assert refused > 5


def test_a_fixed_layout_has_a_place_for_each_partition_or_none() -> None:
    (item,) = parse_groups("1xa100-sxm4-40gb", "node-a").gpus
    profiles = {profile.name: profile for profile in item.gpu.mig_profiles}
    sevenths = fixed_placements([profiles["1g.5gb"]] * 7)
    assert sevenths is not None
    assert [start for _, start in sevenths] == list(range(7))
    mixed = fixed_placements([profiles["1g.5gb"], profiles["2g.10gb"], profiles["3g.20gb"]])
    assert mixed is not None
    covered = [index for profile, start in mixed for index in range(start, start + profile.memory_slices)]
    assert len(covered) == len(set(covered))
    assert fixed_placements([profiles["1g.5gb"]] * 8) is None
    assert fixed_placements([profiles["4g.20gb"], profiles["3g.20gb"], profiles["1g.5gb"]]) is None
    assert fixed_placements([]) is None
