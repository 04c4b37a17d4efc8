"""Consumable capacities are valid for the API server, whatever the size of the GPU."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.terms import SharingTerms, Strategy
from dra_driver.published import shares
from dra_driver.sim.apiserver.rules.devices import device_problems


def terms(max_shares: int | None = None, default_percent: int = 100) -> SharingTerms:
    return SharingTerms(strategy=Strategy.MPS, max_shares=max_shares, default_percent=default_percent)


@given(st.none() | st.integers(0, 2**40), st.none() | st.integers(-1, 200), st.integers(0, 100))
def test_policies_are_valid_for_any_memory_and_any_number_of_shares(
    memory: int | None, count: int | None, percent: int
) -> None:
    """A step that does not divide the range would make the slice invalid."""
    capacity = shares.capacity_of(memory, terms(count, percent))
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": capacity}
    assert device_problems(device, None, "devices[0]", per_device=False) == []


def test_memory_and_compute_default_to_all_of_it() -> None:
    """A claim that asks for nothing in particular gets the GPU alone; memory is rounded down to whole MiB."""
    found = shares.capacity_of(81559 * 2**20 + 5, terms(3))
    assert found["memory"] == {
        "value": "81559Mi",
        "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}},
    }
    assert found["computePercent"]["requestPolicy"]["default"] == "100"
    assert found["shares"] == {"value": "3", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}


def test_claims_for_memory_alone_can_share_a_gpu_if_the_policy_allows() -> None:
    """Otherwise the first of them takes all compute, and the second stays Pending."""
    assert shares.capacity_of(2**30, terms(default_percent=0))["computePercent"] == {
        "value": "100",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
    }


def test_on_unified_memory_only_compute_is_shared() -> None:
    """The total is unknown."""
    found = shares.capacity_of(None, terms(default_percent=0))
    assert set(found) == {"computePercent"}
    assert found["computePercent"]["requestPolicy"]["default"] == "100", "a plain claim still gets it alone"
