"""MIG on simulated GPUs: what hardware allows and what it refuses, on every board of the catalogue that can do it."""

import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    HardwareError,
    MigUnsupportedError,
    NoRoomError,
    ResetRequiredError,
)
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.hardware.gpu.backend import ComputeMode, GpuBackend
from dra_driver.hardware.gpu.catalog import models
from dra_driver.hardware.gpu.simulated.spec import parse_document
from tests.fakes.simulated_gpus import SimulatedBackend

MIG_MODELS = sorted(key for key, model in models().items() if model.mig is not None)
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def board(key: str, mig: bool = True) -> tuple[SimulatedBackend, Gpu]:
    backend = SimulatedBackend.from_spec(f"1x{key}{'+mig' if mig else ''}", "n")
    return backend, backend.snapshot().gpus[0]


def profile(gpu: Gpu, name: str) -> MigProfile:
    return next(found for found in gpu.mig_profiles if found.name == name)


def make(backend: SimulatedBackend, gpu: Gpu, name: str, start: int) -> int:
    gi_id = backend.create_gpu_instance(gpu.uuid, profile(gpu, name).profile_id, start)
    backend.create_compute_instance(gpu.uuid, gi_id)
    return gi_id


def breaks_a_rule(gpu: Gpu, taken: Iterable[tuple[MigProfile, int]]) -> bool:
    """The rules once more, by sets and sums over everything that would exist."""
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
    """Whatever order claims come and go in: what fits is made, what does not is refused, nothing is left at the end."""
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


def test_boards_that_want_a_reset_refuse_the_switch_and_an_administrator_makes_it() -> None:
    """Ampere: only an administrator may reset a GPU."""
    backend, gpu = board("a100-sxm4-40gb", mig=False)
    with pytest.raises(ResetRequiredError):
        backend.set_mig_mode(gpu.uuid, True)
    assert not backend.mig_mode(gpu.uuid)
    backend.set_mig_mode(gpu.uuid, False)
    backend.foreign_mig_mode(gpu.uuid, True)
    assert backend.mig_mode(gpu.uuid)
    with pytest.raises(ResetRequiredError):
        backend.set_mig_mode(gpu.uuid, False)


def refused(kind: type[HardwareError], message: str, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(kind, match=message):
        call(*arguments)


def test_each_refusal_names_what_is_in_the_way() -> None:
    """Messages of the simulation. The contract tests check the kind of each error and the state after it."""
    backend, gpu = board("h100-sxm5-80gb", mig=False)
    uuid = gpu.uuid
    refused(MigUnsupportedError, "MIG mode is off", backend.create_gpu_instance, uuid, 19, 0)
    backend.set_busy(uuid, "dcgm")
    refused(GpuBusyError, "dcgm", backend.set_mig_mode, uuid, True)
    backend.set_busy(uuid, None)
    backend.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    backend.set_mig_mode(uuid, True)
    assert backend.compute_mode(uuid) is ComputeMode.DEFAULT
    refused(MigUnsupportedError, "compute mode", backend.set_compute_mode, uuid, ComputeMode.PROHIBITED)
    refused(MigUnsupportedError, "no such profile", backend.create_gpu_instance, uuid, 4711, 0)
    refused(MigUnsupportedError, r"2g\.20gb begins at 0, 2, 4", backend.create_gpu_instance, uuid, 14, 1)
    refused(DeviceLostError, "GPU instance 7", backend.create_compute_instance, uuid, 7)
    gi_id = make(backend, gpu, "1g.10gb", 0)
    refused(GpuBusyError, "1 GPU instances exist", backend.set_mig_mode, uuid, False)
    refused(NoRoomError, "compute instance already", backend.create_compute_instance, uuid, gi_id)
    refused(GpuBusyError, "has a compute instance", backend.destroy_gpu_instance, uuid, gi_id)
    backend.set_in_use(uuid, gi_id)
    refused(GpuBusyError, "in use by a process", backend.destroy_compute_instance, uuid, gi_id, 0)
    plain, l4 = board("l4-24gb", mig=False)
    refused(MigUnsupportedError, "does not support MIG", plain.mig_mode, l4.uuid)
    assert (plain.mig_instances(l4.uuid), l4.memory_slices) == ((), 0)


def calls(backend: GpuBackend, gpu: GpuUuid) -> list[object]:
    return [
        lambda: backend.mig_mode(gpu),
        lambda: backend.set_mig_mode(gpu, True),
        lambda: backend.mig_instances(gpu),
        lambda: backend.create_gpu_instance(gpu, 19, 0),
        lambda: backend.create_compute_instance(gpu, 7),
        lambda: backend.destroy_compute_instance(gpu, 7, 0),
        lambda: backend.destroy_gpu_instance(gpu, 7),
        lambda: backend.compute_mode(gpu),
        lambda: backend.set_compute_mode(gpu, ComputeMode.DEFAULT),
    ]


@pytest.mark.parametrize("number", range(9))
def test_every_call_reports_a_missing_gpu_or_driver(number: int) -> None:
    """No call answers for hardware that is not there."""
    backend, gpu = board("h100-sxm5-80gb")
    for uuid in (GpuUuid("GPU-00000000-0000-0000-0000-000000000000"), gpu.uuid):
        backend.mark_lost(0, "XID 79")
        with pytest.raises(DeviceLostError, match="XID 79" if uuid == gpu.uuid else "is not on this node"):
            calls(backend, uuid)[number]()  # type: ignore[operator]
    backend.replace_node(parse_document("driverUnavailable: gone\ngpus: []", "n"))
    with pytest.raises(DriverUnavailableError, match="gone"):
        calls(backend, gpu.uuid)[number]()  # type: ignore[operator]


def test_other_programs_are_bound_by_the_same_rules() -> None:
    """An instance of another program is like one of this driver: whole, divided or incomplete."""
    backend, gpu = board("a100-sxm4-40gb")
    full = backend.foreign_create(gpu.uuid, 14, 0)
    partial = backend.foreign_create(gpu.uuid, 9, 4, "partial")
    empty = backend.foreign_create(gpu.uuid, 19, 2, "none")
    assert full.device is not None
    assert partial.device is None
    assert partial.compute[0].uuid is not None
    assert empty.compute == ()
    assert backend.mig_instances(gpu.uuid) == (full, empty, partial)
    with pytest.raises(HardwareError):
        backend.foreign_create(gpu.uuid, 14, 0)
