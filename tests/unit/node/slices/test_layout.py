"""How devices are spread over slices, slice names, and counters that allow every layout of the hardware."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.kube.names import is_subdomain
from dra_driver.node.slices import counters
from dra_driver.node.slices.build import Built, GpuGroup, build_devices
from dra_driver.node.slices.layout import generate_name, index_of, split
from tests.fakes.stand_in import present
from tests.unit.node.slices.gpus import (
    A100,
    ALL,
    H100,
    RTX,
    h100s,
    instance,
    mig_gpu,
    node_of,
    split_devices,
)


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


def test_in_1_34_a_gpu_that_may_be_cut_keeps_its_slice_while_it_is_not() -> None:
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
    before = split(Built(groups=(group(0, 26), group(1, 26), group(2, 26), group(3, 26))))
    after = split(Built(groups=(group(0, 26), group(1, 0, max_devices=26), group(2, 26), group(3, 26, max_devices=26))))
    changed = [one.index for one, other in zip(before, after, strict=True) if one.devices != other.devices]
    assert changed == [1]


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


# The RTX PRO 6000 has so many kinds of partitions that its layouts are not to be counted; its numbers are as regular.
BOARDS = [key for key, model in catalog.models().items() if model.mig is not None and key != RTX]
Layout = tuple[tuple[MigProfile, int], ...]


def layouts(gpu: Gpu, start: int = 0, *, media: bool = True) -> Iterator[Layout]:
    """Every set of placements side by side. The engines of the ``+me`` profiles exist once (``media``)."""
    if start >= gpu.memory_slices:
        yield ()
        return
    yield from layouts(gpu, start + 1, media=media)
    for profile in gpu.mig_profiles:
        takes = profile.name.endswith("+me")
        if start in profile.starts and (media or not takes):
            for rest in layouts(gpu, start + profile.memory_slices, media=media and not takes):
                yield ((profile, start), *rest)


@pytest.mark.parametrize("key", BOARDS)
def test_counters_are_enough_for_every_layout_of_the_hardware(key: str) -> None:
    """A counter that is too small would exclude a layout that the hardware allows.

    Engines that exist once are the exception.
    """
    gpu = mig_gpu(key)
    counter_set = counters.wire_set(gpu, counters.available(gpu, ()))
    left = {name: amount(counter.value) for name, counter in counter_set.counters.items()}
    uses = {profile: counters.consumed_by(profile, counter_set) for profile in gpu.mig_profiles}
    numbers = {
        profile: {name: amount(counter.value) for name, counter in taken.items()} for profile, taken in uses.items()
    }
    checked = 0
    for layout in layouts(gpu):
        checked += 1
        for name, most in left.items():
            assert sum(numbers[profile].get(name, 0) for profile, _ in layout) <= most, (key, layout, name)
    assert checked > 20


def amount(value: object) -> int:
    return Quantity.parse(str(value)).as_int()


def test_an_instance_of_an_unknown_profile_takes_its_memory_slices() -> None:
    gpu = mig_gpu(A100)
    strange = replace(instance(gpu, 9, 4), profile_id=99)
    left = counters.available(gpu, (strange, *[instance(gpu, 0, 0)] * 3))
    assert min(left.values()) == 0
    assert counters.available(gpu, (strange,))["multiprocessors"] == 98
    described = replace(strange, profile=gpu.profile(9))
    assert counters.available(gpu, (described,))["multiprocessors"] == 98 - 42


def test_a_partition_consumes_counters_of_the_set_only() -> None:
    """A counter that the set lacks would make the whole pool invalid to the scheduler."""
    gpu = mig_gpu(H100, memory_bytes=None)
    found = counters.wire_set(gpu, counters.available(gpu, ()))
    profile = present(gpu.profile(14))
    taken = {**counters.consumed_by(profile, found), **counters.memory_slices_taken(2, 2)}
    assert set(taken) <= set(found.counters)
    assert {name for name in taken if name.startswith("memory")} == {"memory-slice-2", "memory-slice-3"}
