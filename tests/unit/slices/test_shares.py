"""Consumable capacities must satisfy the API server for every size of GPU."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.sim.apiserver.rules_devices import device_problems
from dra_driver.slices import shares


@given(st.none() | st.integers(0, 2**40), st.none() | st.integers(-1, 200))
def test_policies_are_valid_for_any_memory_and_any_number_of_shares(memory: int | None, count: int | None) -> None:
    """One step that does not divide, and the whole slice is refused."""
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": shares.capacity_of(memory, count)}
    assert device_problems(device, None, "devices[0]", per_device=False) == []


def test_memory_and_compute_default_to_all_of_it() -> None:
    """A claim that asks for nothing in particular has the GPU alone; memory is rounded down to whole MiB."""
    found = shares.capacity_of(81559 * 2**20 + 5, 3)
    assert found["memory"] == {
        "value": "81559Mi",
        "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}},
    }
    assert found["computePercent"]["requestPolicy"]["default"] == "100"
    assert found["shares"] == {"value": "3", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}


def test_unified_memory_leaves_compute_alone_to_be_shared() -> None:
    """Nobody knows how much memory there is."""
    assert set(shares.capacity_of(None, None)) == {"computePercent"}
