"""Counters allow every layout that the hardware allows, and no second use of an engine that exists once."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.node.slices import counters
from tests.fakes.stand_in import present
from tests.unit.node.slices.gpus import A100, H100, RTX, instance, mig_gpu

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


def test_a_second_media_engine_is_refused() -> None:
    """Memory slices alone would allow two of them."""
    gpu = mig_gpu(H100)
    left = counters.available(gpu, ())
    extended = present(gpu.profile(20))
    assert counters.leaves_enough(extended, 0, left)
    assert not counters.leaves_enough(extended, 0, counters.available(gpu, (instance(gpu, 20, 6),)))


def test_unified_memory_and_unknown_numbers_are_not_counted() -> None:
    """A guess would exclude layouts, or allow too many."""
    gpu = mig_gpu(H100, memory_bytes=None)
    unknown = tuple(replace(profile, decoders=None) for profile in gpu.mig_profiles)
    left = counters.available(replace(gpu, mig_profiles=unknown), ())
    assert not {"memory", "decoders"} & left.keys()
    assert left["jpeg-engines"] == 7


def test_foreign_instances_are_subtracted_from_the_set() -> None:
    """Their owners do not ask the scheduler."""
    gpu = mig_gpu(A100)
    left = counters.available(gpu, (instance(gpu, 9, 4, whole=False),))
    assert (left["multiprocessors"], left["decoders"]) == (98 - 42, 5 - 2)
    assert left["memory"] == gpu.memory_bytes - 19968 * 2**20 if gpu.memory_bytes else False
    assert [left[f"memory-slice-{index}"] for index in range(8)] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_an_instance_of_an_unknown_profile_takes_its_memory_slices() -> None:
    """A newer driver's profile, or numbers that do not add up; no counter goes below zero."""
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
