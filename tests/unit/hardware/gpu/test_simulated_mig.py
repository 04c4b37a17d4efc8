"""MIG on simulated GPUs: what hardware allows and what it refuses, on every board of the catalogue that can do it."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from dra_driver.core.errors import NoRoomError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.hardware.gpu.catalog import models
from tests.fakes.simulated_gpus import SimulatedBackend

MIG_MODELS = sorted(key for key, model in models().items() if model.mig is not None)
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def board(key: str) -> tuple[SimulatedBackend, Gpu]:
    backend = SimulatedBackend.from_spec(f"1x{key}+mig", "n")
    return backend, backend.snapshot().gpus[0]


def profile(gpu: Gpu, name: str) -> MigProfile:
    return next(found for found in gpu.mig_profiles if found.name == name)


def make(backend: SimulatedBackend, gpu: Gpu, name: str, start: int) -> int:
    gi_id = backend.create_gpu_instance(gpu.uuid, profile(gpu, name).profile_id, start)
    backend.create_compute_instance(gpu.uuid, gi_id)
    return gi_id


def breaks_a_rule(gpu: Gpu, taken: Iterable[tuple[MigProfile, int]]) -> bool:
    taken = list(taken)
    slices = Counter(slot for found, start in taken for slot in range(start, start + found.memory_slices))
    per_profile = Counter(found.profile_id for found, _ in taken)
    whole = next(found for found in gpu.mig_profiles if found.memory_slices == gpu.memory_slices)
    return (
        any(count > 1 for count in slices.values())
        or sum(found.compute_slices for found, _ in taken) > whole.compute_slices
        or any(
            count > (found.max_instances if (found := gpu.profile(pid)) else 0) for pid, count in per_profile.items()
        )
        or any(
            (total := getattr(whole, engine)) is not None
            and sum(getattr(found, engine) or 0 for found, _ in taken) > total
            for engine in ENGINES
        )
    )


def layout(gpu: Gpu, instances: Iterable[MigInstance]) -> list[tuple[MigProfile, int]]:
    return [
        (found, instance.start) for instance in instances if (found := gpu.profile(instance.profile_id)) is not None
    ]


@pytest.mark.parametrize("key", MIG_MODELS)
def test_a_walk_of_makes_and_removals_obeys_the_rules_at_every_step(key: str) -> None:
    backend, gpu = board(key)
    choices = [(found, start) for found in gpu.mig_profiles for start in found.starts]
    walk = random.Random(key)  # noqa: S311 - the same walk every time
    outcomes: Counter[bool] = Counter()
    for _ in range(80):
        before = backend.mig_instances(gpu.uuid)
        if before and walk.random() < 0.4:
            gone = walk.choice(before)
            backend.destroy_compute_instance(gpu.uuid, gone.gi_id, 0)
            backend.destroy_gpu_instance(gpu.uuid, gone.gi_id)
            assert backend.mig_instances(gpu.uuid) == tuple(i for i in before if i != gone)
            continue
        found, start = walk.choice(choices)
        refused = breaks_a_rule(gpu, [*layout(gpu, before), (found, start)])
        outcomes[refused] += 1
        if refused:
            with pytest.raises(NoRoomError, match=r"no room for .*: "):
                backend.create_gpu_instance(gpu.uuid, found.profile_id, start)
            assert backend.mig_instances(gpu.uuid) == before
        else:
            make(backend, gpu, found.name, start)
        now = backend.mig_instances(gpu.uuid)
        assert [instance.start for instance in now] == sorted(instance.start for instance in now)
        assert len({instance.gi_id for instance in now}) == len(now)
        assert all(instance.device is not None and not instance.owned for instance in now)
    assert outcomes[True] > 5
    assert outcomes[False] > 5
    for instance in backend.mig_instances(gpu.uuid):
        backend.destroy_compute_instance(gpu.uuid, instance.gi_id, 0)
        backend.destroy_gpu_instance(gpu.uuid, instance.gi_id)
    assert backend.snapshot().gpus[0] == gpu


@pytest.mark.parametrize(
    ("key", "wanted", "refused"),
    [
        ("h100-sxm5-80gb", [("3g.40gb", 0), ("3g.40gb", 4)], ("1g.10gb", 6)),
        ("h100-sxm5-80gb", [("1g.10gb", start) for start in range(7)], ("1g.10gb", 0)),
        ("h100-sxm5-80gb", [("1g.20gb", 6), ("2g.20gb", 0), ("2g.20gb", 2)], ("3g.40gb", 4)),
        ("a100-sxm4-40gb", [("1g.5gb+me", 0)], ("1g.5gb+me", 1)),
        ("a100-sxm4-80gb", [("4g.40gb", 0), ("3g.40gb", 4)], ("1g.10gb+me", 6)),
        ("a30-24gb", [("2g.12gb+me", 0)], ("1g.6gb+me", 2)),
        ("b300", [("1g.34gb+me", 0)], ("1g.34gb+me", 6)),
        ("rtx-pro-6000-blackwell-se-96gb", [("1g.24gb+me.all", 0), ("1g.24gb-me", 3)], ("1g.24gb", 6)),
        ("rtx-pro-6000-blackwell-se-96gb", [("1g.24gb", 0)], ("2g.48gb+me.all", 6)),
    ],
)
def test_known_layouts_fit_and_one_more_does_not(
    key: str, wanted: list[tuple[str, int]], refused: tuple[str, int]
) -> None:
    """Memory, compute slices and the one set of media engines, from NVIDIA's tables of what goes together."""
    backend, gpu = board(key)
    for name, start in wanted:
        make(backend, gpu, name, start)
    with pytest.raises(NoRoomError):
        backend.create_gpu_instance(gpu.uuid, profile(gpu, refused[0]).profile_id, refused[1])


@pytest.mark.parametrize(
    ("key", "name", "ids"),
    [
        ("a100-sxm4-40gb", "1g.5gb", {0: 7, 6: 13}),
        ("a100-sxm4-40gb", "2g.10gb", {0: 3, 2: 4, 4: 5}),
        ("a100-sxm4-40gb", "1g.10gb", {6: 6}),
        ("a100-sxm4-40gb", "3g.20gb", {0: 1, 4: 2}),
        ("a100-sxm4-40gb", "7g.40gb", {0: 0}),
        ("a30-24gb", "1g.6gb", {0: 3, 3: 6}),
        ("a30-24gb", "2g.12gb", {0: 1, 2: 2}),
        ("rtx-pro-6000-blackwell-se-96gb", "1g.24gb", {0: 3, 9: 6}),
    ],
)
def test_gpu_instances_get_the_ids_that_drivers_give(key: str, name: str, ids: dict[int, int]) -> None:
    """Ids are in device files and capability numbers, and are not 0, 1, 2."""
    backend, gpu = board(key)
    assert {start: make(backend, gpu, name, start) for start in ids} == ids
