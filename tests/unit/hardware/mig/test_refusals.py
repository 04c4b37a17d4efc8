"""When partitions are withheld, over any order of refusals, successes and times."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
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
    """A call that has little time tries several times; the kubelet's next call for the claim counts again."""
    state = NO_REFUSALS
    for time in (0.0, 5.0, 10.0, 44.0):
        state = after_refusal(state, PARTS[0], time)
    assert len(state.counted) == 1
    state = after_refusal(state, PARTS[0], ONE_CALL_S)
    assert not state.withheld
    assert after_refusal(state, PARTS[0], 2 * ONE_CALL_S).withheld


def test_refusals_of_more_than_ten_minutes_ago_do_not_count() -> None:
    """A node that refuses once an hour goes on offering partitions."""
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
