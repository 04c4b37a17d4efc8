"""How devices are spread over slices, and what slices are called."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.names import is_subdomain
from dra_driver.slices.layout import generate_name, index_of, split


def devices(count: int) -> list[Any]:
    return [{"name": f"gpu-{number}"} for number in range(count)]


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_at_most_64_devices_a_slice_and_never_no_slice(count: int, sizes: list[int]) -> None:
    """A 65th device would make the slice invalid with the first taint; an empty pool must be known to be empty."""
    slices = split(devices(count))
    assert [len(one.devices) for one in slices] == sizes
    assert [device for one in slices for device in one.devices] == devices(count)
    assert [one.index for one in slices] == list(range(len(sizes)))


@given(
    st.integers(0, 0xFFFFE),  # its successor still has five digits: 64 million devices on one node
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}", fullmatch=True),
)
def test_names_are_valid_ordered_and_carry_their_index(index: int, node: str) -> None:
    """Name order is allocation order, and the index finds the slice again; node names may be 253 characters long."""
    name = generate_name(index, "gpu.nvidia.com", node) + "x7k2p"
    assert is_subdomain(name)
    assert len(name) <= 63
    assert index_of(name) == index
    assert generate_name(index, "d", node) < generate_name(index + 1, "d", node)


@pytest.mark.parametrize("name", ["node-a-gpu.nvidia.com-x7k2p", "0000-a", "", "00000", "g0000-a"])
def test_other_names_have_no_index(name: str) -> None:
    """Slices of drivers for Kubernetes 1.35 and before, and of people, are not taken for ours."""
    assert index_of(name) is None
