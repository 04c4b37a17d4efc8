"""What the published order strands, beside the order of names."""

import pytest

from tests.bench.packing import KINDS, measure


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
    """Every order packs them equally well; the published order is no worse."""
    tallies = measure(model, "coming and going", gpus=4, sequences=20, seed=7)
    assert tallies["ours"].stranded == tallies["by name"].stranded
