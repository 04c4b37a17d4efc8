"""How devices are spread over slices, and how slices are named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.shapes import is_subdomain
from dra_driver.node.slices.build import Built, GpuGroup, build_devices
from dra_driver.node.slices.layout import generate_name, index_of, split
from tests.unit.node.slices.gpus import ALL, gpu, h100s, mig_gpu, node_of, snapshot, split_devices


def devices(count: int) -> list[Any]:
    return [{"name": f"gpu-{number}"} for number in range(count)]


def group(number: int, size: int, *, max_devices: int = 0, counted: bool = True) -> GpuGroup:
    named: Any = tuple({"name": f"gpu-{number}-{index}"} for index in range(size))
    counter_set: Any = {"name": f"gpu-{number}-counter-set", "counters": {"memory": {"value": "1"}}}
    return GpuGroup(devices=named, counter_set=counter_set if counted else None, max_devices=max_devices or size)


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_a_slice_has_at_most_64_devices_and_there_is_at_least_one(count: int, sizes: list[int]) -> None:
    """A 65th device would make the slice invalid with the first taint; an empty pool must be known to be empty."""
    slices = split_devices(devices(count))
    assert [len(one.devices) for one in slices] == sizes
    assert [device for one in slices for device in one.devices] == devices(count)
    assert [one.index for one in slices] == list(range(len(sizes)))


def test_counter_sets_come_first_eight_to_a_slice_and_never_beside_devices() -> None:
    """A ninth set, or devices in the same slice, would be refused; and devices refer to the sets."""
    slices = split(build_devices(h100s(16), features=ALL))
    assert [(len(one.counter_sets), len(one.devices)) for one in slices] == [(8, 0), (8, 0), *[(0, 52)] * 8]
    assert [one.index for one in slices] == list(range(10))


def test_in_1_34_a_counter_set_is_beside_its_devices() -> None:
    """Elsewhere the API server refuses it; and two sets of 16 counters would fill a slice."""
    slices = split(build_devices(snapshot(*h100s(2).gpus, gpu(2), gpu(3)), features=ALL), counters_beside_devices=True)
    assert [(len(one.counter_sets), len(one.devices)) for one in slices] == [(1, 26), (1, 26), (0, 2)]
    assert [one.index for one in slices] == [0, 1, 2]
    for one in slices[:2]:
        names = {counter_set.name for counter_set in one.counter_sets}
        assert {taken.counter_set for device in one.devices for taken in device.consumes_counters} == names


def test_in_1_34_a_gpu_that_may_be_cut_keeps_its_slice_while_it_is_not() -> None:
    """So one GPU's change is one write."""
    groups = (group(0, 26), group(1, 0, max_devices=26, counted=False), group(2, 1, counted=False))
    before = split(Built(groups=groups), counters_beside_devices=True)
    assert [(len(one.counter_sets), len(one.devices)) for one in before] == [(1, 26), (0, 0), (0, 1)]
    whole = split(build_devices(node_of(2), features=ALL), counters_beside_devices=True)
    assert [(len(one.counter_sets), len(one.devices)) for one in whole] == [(0, 2)]


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 64)), max_size=20))
def test_a_gpu_is_never_split_and_no_slice_is_too_long(sizes: list[tuple[int, int]]) -> None:
    """Half of a GPU in a slice that is not written yet would be half an offer."""
    groups = tuple(
        group(number, min(size, max_devices), max_devices=max_devices)
        for number, (size, max_devices) in enumerate(sizes)
    )
    slices = split(Built(groups=groups))
    assert all(len(one.devices) <= 64 and len(one.counter_sets) <= 8 for one in slices)
    assert all(not (one.devices and one.counter_sets) for one in slices)
    assert [device for one in slices for device in one.devices] == [d for one in groups for d in one.devices]
    for one in groups:
        assert sum(any(device in part.devices for device in one.devices) for part in slices) <= 1


def test_a_gpu_that_changes_leaves_the_other_slices_alone() -> None:
    """Places are reserved for what it may become, so one GPU's change is one write in the same generation."""
    before = split(Built(groups=(group(0, 26), group(1, 26), group(2, 26), group(3, 26))))
    after = split(Built(groups=(group(0, 26), group(1, 0, max_devices=26), group(2, 26), group(3, 26, max_devices=26))))
    changed = [one.index for one, other in zip(before, after, strict=True) if one.devices != other.devices]
    assert changed == [1]


def test_a_gpu_without_anything_to_offer_keeps_its_place() -> None:
    """It may come back; its slice is empty until then."""
    hidden = split(build_devices(snapshot(mig_gpu(minor=0), mig_gpu(minor=1, mig_enabled=True)), features=ALL))
    assert [len(one.devices) for one in hidden] == [0, 51]


@given(
    st.integers(0, 0xFFFFE),  # its successor still has five digits: 64 million devices on one node
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}", fullmatch=True),
)
def test_names_are_valid_ordered_and_carry_their_index(index: int, node: str) -> None:
    """Name order is allocation order, and slices are matched by the index; node names may have 253 characters."""
    name = generate_name(index, "gpu.nvidia.com", node) + "x7k2p"
    assert is_subdomain(name)
    assert len(name) <= 63
    assert index_of(name) == index
    assert generate_name(index, "d", node) < generate_name(index + 1, "d", node)


@pytest.mark.parametrize("name", ["node-a-gpu.nvidia.com-x7k2p", "0000-a", "", "00000", "g0000-a"])
def test_other_names_have_no_index(name: str) -> None:
    """Slices of drivers for Kubernetes 1.35 and before, and of people, do not match."""
    assert index_of(name) is None
