"""What the published order of GPUs strands, beside the order of minor numbers (`python -m tests.bench.linking`)."""

import pytest

from tests.bench.linking import BOARDS, KINDS, measure

MIXED = ["4 GPUs, pairs 0-2 1-3", "8 GPUs, pairs 0-4 1-5 2-6 3-7", "6 GPUs, pairs 0-1 2-3, two alone"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MIXED)
def test_published_order_strands_fewer_pairs_than_minor_numbers(name: str, kind: str) -> None:
    """At most half as many claims for two are refused although two GPUs are free."""
    tallies = measure(BOARDS[name], kind, sequences=25, seed=7)
    ours, minor = tallies["ours"], tallies["by minor"]
    assert ours.claims == minor.claims
    assert ours.stranded < 0.7 * minor.stranded
    assert ours.refusals <= minor.refusals


def test_pairs_of_neighbours_are_published_as_before() -> None:
    """There the order of minor numbers is the same."""
    tallies = measure(BOARDS["4 GPUs, pairs 0-1 2-3"], "coming and going", sequences=30, seed=7)
    assert tallies["ours"] == tallies["by minor"]
