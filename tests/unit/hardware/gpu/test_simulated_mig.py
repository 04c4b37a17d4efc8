"""MIG on simulated GPUs: what hardware allows and what it refuses, on every board of the catalogue that can do it."""

import random
from collections import Counter
from collections.abc import Iterable

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
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.spec import parse_document

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


def test_a_partition_made_again_has_the_same_uuid_and_another_one_another() -> None:
    """As on hardware: a UUID is no proof of who made an instance."""
    backend, gpu = board("h100-sxm5-80gb")
    uuids = []
    for start in (0, 0, 1):
        gi_id = make(backend, gpu, "1g.10gb", start)
        (made,) = backend.mig_instances(gpu.uuid)
        assert made.device is not None
        uuids.append(made.device.uuid)
        backend.foreign_destroy(gpu.uuid, gi_id)
    assert uuids[0] == uuids[1] != uuids[2]
    assert all(str(uuid).startswith("MIG-") and len(str(uuid)) == 40 for uuid in uuids)


def test_the_snapshot_shows_what_was_made() -> None:
    """Publication looks at snapshots alone."""
    backend, gpu = board("h100-sxm5-80gb", mig=False)
    assert (gpu.mig_enabled, gpu.mig_resetless, len(gpu.mig_profiles), gpu.memory_slices) == (False, True, 7, 8)
    backend.set_mig_mode(gpu.uuid, True)
    gi_id = backend.create_gpu_instance(gpu.uuid, 9, 4)
    half_made = backend.snapshot().gpus[0]
    assert half_made.mig_enabled
    assert [(i.gi_id, i.profile_name, i.start, i.size, i.device) for i in half_made.mig_instances] == [
        (gi_id, "3g.40gb", 4, 4, None)
    ]
    made = backend.create_compute_instance(gpu.uuid, gi_id)
    assert backend.snapshot().gpus[0].mig_instances[0].device == made


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


def test_a_gpu_in_use_and_one_that_is_cut_keep_their_mode() -> None:
    """A monitoring agent that holds the GPU open, and existing partitions."""
    backend, gpu = board("h100-sxm5-80gb", mig=False)
    backend.set_busy(gpu.uuid, "dcgm")
    with pytest.raises(GpuBusyError, match="dcgm"):
        backend.set_mig_mode(gpu.uuid, True)
    backend.set_busy(gpu.uuid, None)
    backend.set_mig_mode(gpu.uuid, True)
    gi_id = make(backend, gpu, "1g.10gb", 0)
    with pytest.raises(GpuBusyError, match="1 GPU instances exist"):
        backend.set_mig_mode(gpu.uuid, False)
    backend.foreign_destroy(gpu.uuid, gi_id)
    backend.set_mig_mode(gpu.uuid, False)
    assert not backend.mig_mode(gpu.uuid)


def test_instances_are_removed_from_the_inside_out_and_not_while_in_use() -> None:
    """The order of a teardown."""
    backend, gpu = board("h100-sxm5-80gb")
    gi_id = make(backend, gpu, "2g.20gb", 2)
    with pytest.raises(GpuBusyError, match="has a compute instance"):
        backend.destroy_gpu_instance(gpu.uuid, gi_id)
    backend.set_in_use(gpu.uuid, gi_id)
    with pytest.raises(GpuBusyError, match="in use by a process"):
        backend.destroy_compute_instance(gpu.uuid, gi_id, 0)
    backend.set_in_use(gpu.uuid, gi_id, False)
    for _ in range(2):  # the second time it is gone already
        backend.destroy_compute_instance(gpu.uuid, gi_id, 0)
    for _ in range(2):
        backend.destroy_gpu_instance(gpu.uuid, gi_id)
    backend.destroy_compute_instance(gpu.uuid, gi_id, 0)
    assert backend.mig_instances(gpu.uuid) == ()


def test_what_cannot_be_made_is_refused_with_its_own_error() -> None:
    """Each error has another answer in prepare."""
    backend, gpu = board("h100-sxm5-80gb", mig=False)
    with pytest.raises(MigUnsupportedError, match="MIG mode is off"):
        backend.create_gpu_instance(gpu.uuid, 19, 0)
    backend.set_mig_mode(gpu.uuid, True)
    with pytest.raises(MigUnsupportedError, match="no such profile"):
        backend.create_gpu_instance(gpu.uuid, 4711, 0)
    with pytest.raises(MigUnsupportedError, match=r"2g\.20gb begins at 0, 2, 4"):
        backend.create_gpu_instance(gpu.uuid, 14, 1)
    with pytest.raises(DeviceLostError, match="GPU instance 7"):
        backend.create_compute_instance(gpu.uuid, 7)
    gi_id = make(backend, gpu, "1g.10gb", 0)
    with pytest.raises(NoRoomError, match="compute instance already"):
        backend.create_compute_instance(gpu.uuid, gi_id)


def test_a_gpu_without_mig_says_so() -> None:
    """L4 and the like are only ever whole."""
    backend = SimulatedBackend.from_spec("1xl4-24gb", "n")
    gpu = backend.snapshot().gpus[0]
    assert (gpu.mig_profiles, gpu.mig_resetless, gpu.memory_slices) == ((), None, 0)
    for call in (
        lambda: backend.mig_mode(gpu.uuid),
        lambda: backend.set_mig_mode(gpu.uuid, True),
        lambda: backend.create_gpu_instance(gpu.uuid, 19, 0),
    ):
        with pytest.raises(MigUnsupportedError, match="does not support MIG"):
            call()
    assert backend.mig_instances(gpu.uuid) == ()


def test_compute_mode_is_kept_until_mig_mode_resets_it() -> None:
    """MPS wants EXCLUSIVE_PROCESS; with MIG on it cannot be set (nvml.h, nvmlDeviceSetComputeMode)."""
    backend, gpu = board("h100-sxm5-80gb", mig=False)
    assert backend.compute_mode(gpu.uuid) is ComputeMode.DEFAULT
    backend.set_compute_mode(gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    assert backend.compute_mode(gpu.uuid) is ComputeMode.EXCLUSIVE_PROCESS
    backend.set_mig_mode(gpu.uuid, True)
    assert backend.compute_mode(gpu.uuid) is ComputeMode.DEFAULT
    with pytest.raises(MigUnsupportedError, match="compute mode"):
        backend.set_compute_mode(gpu.uuid, ComputeMode.PROHIBITED)


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
