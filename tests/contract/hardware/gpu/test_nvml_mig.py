"""MIG through NVML when calls fail, answer late or are missing, and in a guest of a vGPU."""

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    MigUnsupportedError,
    NoRoomError,
    NotPermittedError,
    ResetRequiredError,
)
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode, MigModes, ModeAnswer
from dra_driver.hardware.gpu.catalog import models
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_document
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State

pynvml: Any = import_module("pynvml")  # typings/ has only the functions that the package calls

ALL_OF_KNOWN_MEMORY = "gpus:\n" + "".join(f"- model: {key}\n" for key, one in models().items() if one.memory_mib)


def first(nvml: NvmlBackend) -> Gpu:
    return next(gpu for gpu in nvml.snapshot().gpus if gpu.minor == 0)


@pytest.mark.parametrize("missing", [codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED])
def test_profiles_have_the_same_names_where_the_driver_tells_none(
    nvml: NvmlBackend, state: State, missing: int
) -> None:
    """Old drivers lack version 2 of the call, and it may want MIG mode on; published names must not change with it."""
    state.set_node(parse_document(ALL_OF_KNOWN_MEMORY, "catalogue"))
    told = nvml.snapshot()
    nvml.close()
    state.inject("nvmlDeviceGetGpuInstanceProfileInfoV", missing)
    assert nvml.snapshot() == told
    assert sum(len(gpu.mig_profiles) for gpu in told.gpus) > 80


def test_reserved_memory_is_that_of_the_gpu_without_instances(nvml: NvmlBackend, state: State, node: NodeSpec) -> None:
    """Instances change it: it would change the published memory of a shared GPU with every partition."""
    before = first(nvml).reserved_bytes
    assert before == 551 * 2**20
    item = node.gpus[0]
    changed = replace(item.gpu, mig_enabled=True, reserved_bytes=900 * 2**20)
    state.set_node(replace(node, gpus=(replace(item, gpu=changed), *node.gpus[1:])))
    assert (first(nvml).mig_enabled, first(nvml).reserved_bytes) == (True, before)
    state.set_node(replace(node, gpus=(replace(item, gpu=replace(changed, mig_enabled=False)), *node.gpus[1:])))
    assert first(nvml).reserved_bytes == 900 * 2**20


def test_a_profile_that_cannot_be_read_is_left_out_and_read_again_at_the_next_look(
    nvml: NvmlBackend, state: State
) -> None:
    state.inject("nvmlDeviceGetGpuInstancePossiblePlacements_v2", codes.UNKNOWN, device=0, times=1)
    state.inject("nvmlDeviceGetGpuInstanceProfileInfoV", codes.UNKNOWN, device=0, times=1, skip=1)
    poor = first(nvml)
    rich = first(nvml)
    assert len(poor.mig_profiles) == len(rich.mig_profiles) - 2
    assert set(poor.mig_profiles) < set(rich.mig_profiles)


def test_missing_right_is_not_a_gpu_without_mig(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    """Taken for one, a partition that has to be removed would count as gone, and stay for ever."""
    state.inject("nvmlDeviceGetMigMode", codes.NO_PERMISSION, device=0)
    for ask in (nvml.mig_mode, nvml.mig_instances):
        with pytest.raises(DeviceLostError, match="run it as root"):
            ask(uuid)


def test_instances_of_a_profile_that_cannot_be_read_are_found_all_the_same(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    """Their placements would be published as free otherwise."""
    state.foreign_mode(0, True)
    state.foreign_create(0, 14, 2)
    state.inject("nvmlDeviceGetGpuInstanceProfileInfoV", codes.UNKNOWN, device=0, times=1, skip=1)
    (found,) = first(nvml).mig_instances
    assert (found.profile_id, found.profile_name, found.start, found.size) == (14, "profile 14", 2, 2)
    assert found.device is not None


def test_without_any_profile_the_gpu_is_whole_or_nothing(nvml: NvmlBackend, state: State) -> None:
    """A driver may list profiles only with MIG mode on; then they appear after an administrator switched it on."""
    state.configure(0, profiles_need_mode=1)
    gpu = first(nvml)
    assert (gpu.mig_capable, gpu.mig_profiles) == (True, ())
    state.foreign_mode(0, True)
    assert len(first(nvml).mig_profiles) == 7


def test_the_need_of_a_reset_follows_from_the_architecture_when_nvml_does_not_report_it(
    nvml: NvmlBackend, state: State, node: NodeSpec
) -> None:
    """Hopper and newer do without; for an unknown architecture it stays unknown."""
    state.configure(0, resetless=codes.ABSENT)
    state.inject("nvmlDeviceGetFieldValues", codes.FUNCTION_NOT_FOUND, device=1)
    state.inject("nvmlDeviceGetFieldValues", codes.INVALID_ARGUMENT, device=4)
    state.inject("nvmlDeviceGetArchitecture", codes.NOT_SUPPORTED, device=4)
    assert [gpu.mig_resetless for gpu in nvml.snapshot().gpus] == [True, True, None, None, None, True, True]
    nvml.close()
    state.set_node(parse_document("gpus: [{model: a100-sxm4-40gb}]", "a"))
    state.configure(0, resetless=codes.ABSENT)
    assert first(nvml).mig_resetless is False


def test_an_instance_that_goes_away_during_the_look_is_left_out_alone(nvml: NvmlBackend, state: State) -> None:
    state.foreign_mode(0, True)
    for start in range(3):
        state.foreign_create(0, 19, start)
    state.inject("nvmlGpuInstanceGetInfo", codes.INVALID_ARGUMENT, times=1)
    state.inject("nvmlComputeInstanceGetInfo_v2", codes.NOT_FOUND, times=1)
    assert [len(one.compute) for one in first(nvml).mig_instances] == [0, 1]


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", codes.UNKNOWN),
        ("nvmlGpuInstanceGetInfo", codes.UNKNOWN),
        ("nvmlGpuInstanceGetInfo", codes.GPU_IS_LOST),
    ],
)
def test_a_gpu_instance_whose_creation_fails_is_not_left_behind(
    nvml: NvmlBackend, state: State, uuid: GpuUuid, function: str, code: int
) -> None:
    """Its id would be unknown, so it could never be destroyed."""
    nvml.set_mig_mode(uuid, True)
    state.inject(function, code, times=1)
    with pytest.raises(DeviceLostError, match=function):
        nvml.create_gpu_instance(uuid, 9, 0)
    assert state.count(0) == (0, 0)
    assert nvml.create_gpu_instance(uuid, 9, 0) == 1


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlGpuInstanceCreateComputeInstance", codes.UNKNOWN),
        ("nvmlGpuInstanceCreateComputeInstance", codes.NOT_SUPPORTED),
        ("nvmlComputeInstanceGetInfo_v2", codes.UNKNOWN),
        ("nvmlComputeInstanceGetInfo_v2", codes.NOT_FOUND),
        ("nvmlDeviceGetUUID", codes.UNKNOWN),
        ("nvmlDeviceGetUUID", codes.NOT_SUPPORTED),
    ],
)
def test_a_compute_instance_whose_creation_fails_leaves_the_gpu_instance_as_it_was(
    nvml: NvmlBackend, state: State, uuid: GpuUuid, function: str, code: int
) -> None:
    nvml.set_mig_mode(uuid, True)
    gi_id = nvml.create_gpu_instance(uuid, 9, 0)
    # The first UUID that is read is the GPU's own.
    state.inject(function, code, device=0, times=1, skip=int(function == "nvmlDeviceGetUUID"))
    with pytest.raises((DeviceLostError, MigUnsupportedError)):
        nvml.create_compute_instance(uuid, gi_id)
    assert state.count(0) == (1, 0)
    state.clear_faults()
    assert nvml.create_compute_instance(uuid, gi_id).uuid
    assert state.count(0) == (1, 1)


@pytest.mark.parametrize(("profile_id", "multiprocessors"), [(15, 26), (19, 16), (9, 60), (0, 132)])
def test_the_compute_instance_gets_all_multiprocessors_of_the_partition_at_the_first_try(
    nvml: NvmlBackend, state: State, uuid: GpuUuid, profile_id: int, multiprocessors: int
) -> None:
    """The obvious compute profile of a double-memory slice wastes ten of them. Boards list 7_SLICE_NVL next to 7_SLICE
    and refuse it, which leaves lines in the kernel log."""
    nvml.set_mig_mode(uuid, True)
    nvml.create_compute_instance(uuid, nvml.create_gpu_instance(uuid, profile_id, 0))
    handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    assert pynvml.nvmlDeviceGetAttributes(handle).multiprocessorCount == multiprocessors
    assert state.calls("nvmlGpuInstanceCreateComputeInstance") == 1


def test_a_double_memory_slice_with_the_wrong_compute_instance_is_no_whole_partition(
    nvml: NvmlBackend, state: State
) -> None:
    """It has all of the slices and not all of the multiprocessors, so it is not what its name says."""
    state.foreign_mode(0, True)
    state.foreign_create(0, 15, 0, "partial")
    (found,) = first(nvml).mig_instances
    assert found.compute
    assert found.device is None


@pytest.mark.parametrize(
    ("enabled", "status", "error"),
    [
        (True, codes.IN_USE, GpuBusyError),
        (False, codes.IN_USE, GpuBusyError),
        (True, codes.RESET_REQUIRED, ResetRequiredError),
        (False, codes.RESET_REQUIRED, ResetRequiredError),
        (True, codes.PRETEND, ResetRequiredError),
        (True, codes.NOT_SUPPORTED, MigUnsupportedError),
        (True, codes.UNKNOWN, DeviceLostError),
    ],
)
def test_a_mode_that_does_not_come_into_force_is_refused_and_nothing_stays_pending(
    nvml: NvmlBackend, state: State, enabled: bool, status: int, error: type[Exception]
) -> None:
    """A later reset of the GPU would apply a pending mode. NVML gives the outcome as a value, not as an
    error, and may say that all is well."""
    uuid = first(nvml).uuid
    state.foreign_mode(0, not enabled)
    state.configure(0, mode_status=status)
    with pytest.raises(error, match=uuid):
        nvml.set_mig_mode(uuid, enabled)
    assert state.modes(0) == (int(not enabled), int(not enabled))
    state.configure(0, mode_status=0)
    nvml.set_mig_mode(uuid, enabled)
    assert state.modes(0) == (int(enabled), int(enabled))


def test_the_mode_is_not_even_asked_to_go_off_while_instances_exist(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    """nvml.h does not promise that idle instances stand in the way; they may simply be destroyed."""
    nvml.set_mig_mode(uuid, True)
    state.foreign_create(0, 19, 0)
    with pytest.raises(GpuBusyError, match=r"1g\.10gb at memory slices 0-0"):
        nvml.set_mig_mode(uuid, False)
    assert state.calls("nvmlDeviceSetMigMode") == 1


def test_a_change_that_an_administrator_left_pending_is_not_reverted(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    state.configure(0, mig_pending=1)
    nvml.set_mig_mode(uuid, False)
    assert state.modes(0) == (0, 1)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (codes.IN_USE, ModeAnswer.IN_USE),
        (codes.RESET_REQUIRED, ModeAnswer.NEEDS_RESET),
        (codes.NOT_SUPPORTED, ModeAnswer.NEEDS_REBOOT),
        (codes.PRETEND, ModeAnswer.NEEDS_RESET),
    ],
)
def test_each_activation_status_of_a_requested_mode(
    nvml: NvmlBackend, state: State, uuid: GpuUuid, status: int, answer: ModeAnswer
) -> None:
    """nvmlDeviceSetMigMode returns success for each of them (nvml.h)."""
    state.configure(0, mode_status=status)
    assert nvml.request_mig_mode(uuid, True) is answer
    assert nvml.mig_modes(uuid) == MigModes(current=False, pending=True)


def test_an_unknown_activation_status_leaves_nothing_pending(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    state.configure(0, mode_status=codes.UNKNOWN)
    with pytest.raises(DeviceLostError, match="activation status 999"):
        nvml.request_mig_mode(uuid, True)
    state.configure(0, mode_status=0)
    assert nvml.mig_modes(uuid).is_settled


CHANGES: dict[str, Callable[[NvmlBackend, GpuUuid], object]] = {
    "nvmlDeviceSetMigMode": lambda nvml, uuid: nvml.set_mig_mode(uuid, False),
    "nvmlDeviceCreateGpuInstanceWithPlacement": lambda nvml, uuid: nvml.create_gpu_instance(uuid, 19, 3),
    "nvmlGpuInstanceCreateComputeInstance": lambda nvml, uuid: nvml.create_compute_instance(uuid, 8),
    "nvmlComputeInstanceDestroy": lambda nvml, uuid: nvml.destroy_compute_instance(uuid, 7, 0),
    "nvmlGpuInstanceDestroy": lambda nvml, uuid: nvml.destroy_gpu_instance(uuid, 8),
    "nvmlDeviceSetComputeMode": lambda nvml, uuid: nvml.set_compute_mode(uuid, ComputeMode.DEFAULT),
}


@pytest.mark.parametrize("function", CHANGES)
@pytest.mark.parametrize(
    ("code", "error"),
    [(codes.NO_PERMISSION, NotPermittedError), (codes.LIB_RM_VERSION_MISMATCH, DriverUnavailableError)],
)
def test_a_change_that_we_may_not_make_says_so(
    nvml: NvmlBackend, state: State, function: str, code: int, error: type[Exception]
) -> None:
    """A container without privileges, or a driver in the middle of an upgrade: neither is the GPU's fault."""
    uuid = first(nvml).uuid
    state.foreign_mode(0, True)
    if function != "nvmlDeviceSetMigMode":
        state.foreign_create(0, 19, 0)
        state.foreign_create(0, 19, 1, "none")
    before, count = state.modes(0), state.count(0)
    state.inject(function, code)
    with pytest.raises(error, match=function):
        CHANGES[function](nvml, uuid)
    assert (state.modes(0), state.count(0)) == (before, count)


def test_existing_instances_are_named_when_there_is_no_room(nvml: NvmlBackend, uuid: GpuUuid) -> None:
    """NVML has one code for everything that does not fit."""
    nvml.set_mig_mode(uuid, True)
    nvml.create_gpu_instance(uuid, 9, 4)
    with pytest.raises(NoRoomError, match=r"3g\.40gb at memory slices 4-7 \(id 2\)"):
        nvml.create_gpu_instance(uuid, 19, 5)


def test_gpus_with_new_indexes_are_found_by_their_uuid(
    nvml: NvmlBackend, state: State, node: NodeSpec, uuid: GpuUuid
) -> None:
    """An index is a hint; a partition on the wrong GPU would take memory of another claim."""
    nvml.snapshot()
    state.set_node(replace(node, gpus=tuple(reversed(node.gpus))))
    nvml.set_mig_mode(uuid, True)
    last = len(node.gpus) - 1
    assert [state.modes(index)[0] for index in (0, last - 1, last)] == [0, 0, 1]


def test_no_lookup_by_uuid_is_made(nvml: NvmlBackend, state: State, node: NodeSpec) -> None:
    """It wakes other GPUs and takes seconds on a busy node. With a hint, a change looks at one GPU alone."""
    nvml.snapshot()
    before = state.calls("nvmlDeviceGetHandleByIndex_v2")
    nvml.mig_mode(node.gpus[-1].gpu.uuid)
    assert state.calls("nvmlDeviceGetHandleByIndex_v2") == before + 1
    assert state.calls("nvmlDeviceGetHandleByUUID") == 0


def test_a_slow_change_holds_up_neither_other_gpus_nor_hides_its_own(
    nvml: NvmlBackend, state: State, node: NodeSpec, uuid: GpuUuid
) -> None:
    """Destroying takes a second on hardware, and eight GPUs are drained at once; a look meanwhile waits for the GPU
    instead of leaving it out, which would withdraw its devices."""
    other = node.gpus[1].gpu.uuid
    for gpu in (uuid, other):
        nvml.set_mig_mode(gpu, True)
        nvml.create_gpu_instance(gpu, 19, 0)
    nvml.snapshot()
    state.inject("nvmlGpuInstanceDestroy", 0, device=0, latency_ms=300, times=1)
    slow = threading.Thread(target=nvml.destroy_gpu_instance, args=(uuid, 7))
    slow.start()
    while state.calls("nvmlGpuInstanceDestroy") == 0:
        pass
    nvml.destroy_gpu_instance(other, 7)
    assert slow.is_alive()
    snapshot = nvml.snapshot()
    slow.join(5.0)
    assert not slow.is_alive()
    assert snapshot.left_out == ()
    assert [gpu.mig_instances for gpu in snapshot.gpus if gpu.uuid == uuid] == [()]


def test_threads_that_cut_all_gpus_at_once_do_not_disturb_each_other(
    nvml: NvmlBackend, state: State, node: NodeSpec
) -> None:
    capable = [item.gpu.uuid for item in node.gpus if item.gpu.mig_capable]
    problems: list[object] = []

    def work(uuid: GpuUuid) -> None:
        try:
            for _ in range(5):
                nvml.set_mig_mode(uuid, True)
                profile = min(
                    (p for p in nvml.snapshot().gpu_by_uuid(uuid).mig_profiles),  # type: ignore[union-attr]
                    key=lambda p: p.memory_slices,
                )
                gi_id = nvml.create_gpu_instance(uuid, profile.profile_id, profile.starts[-1])
                made = nvml.create_compute_instance(uuid, gi_id)
                nvml.destroy_compute_instance(uuid, gi_id, made.ci_id)
                nvml.destroy_gpu_instance(uuid, gi_id)
                nvml.set_mig_mode(uuid, False)
        except Exception as error:  # noqa: BLE001 - told to the main thread, which fails on it
            problems.append(error)

    threads = [threading.Thread(target=work, args=(uuid,)) for uuid in capable]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        problems += nvml.snapshot().left_out
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert [state.count(item.gpu.minor) for item in node.gpus] == [(0, 0)] * 7


def test_a_virtual_gpu_cannot_be_partitioned_but_shows_how_its_host_has_divided_it(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    """In a vGPU guest the geometry is the host's."""
    state.foreign_mode(0, True)
    state.foreign_create(0, 9, 0)
    state.configure(0, virtualization=codes.VGPU_GUEST)
    gpu = first(nvml)
    assert (gpu.mig_profiles, gpu.mig_resetless) == ((), False)
    assert [one.profile_name for one in gpu.mig_instances] == ["3g.40gb"]
    with pytest.raises(MigUnsupportedError):
        nvml.create_gpu_instance(uuid, 9, 4)


@pytest.mark.parametrize("profile_id", [0, 9, 14, 15, 19, 20])
def test_the_size_of_a_partition_with_an_unlisted_profile_is_read_from_its_device(
    nvml: NvmlBackend, state: State, profile_id: int
) -> None:
    """In a vGPU guest: published without its memory, one selector on it would end the allocation of claims."""
    listed = first(nvml).profile(profile_id)
    assert listed is not None
    state.foreign_mode(0, True)
    state.foreign_create(0, profile_id, 0)
    assert [one.profile for one in first(nvml).mig_instances] == [None]
    nvml.close()
    state.configure(0, virtualization=codes.VGPU_GUEST)
    for _ in range(2):
        (found,) = first(nvml).mig_instances
        assert found.profile == replace(listed, starts=(), max_instances=1)
    assert state.calls("nvmlDeviceGetAttributes_v2") == 1


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlDeviceGetAttributes_v2", codes.NOT_SUPPORTED),
        ("nvmlDeviceGetAttributes_v2", codes.FUNCTION_NOT_FOUND),
        ("nvmlDeviceGetAttributes_v2", codes.NOT_FOUND),
        ("nvmlGpuInstanceGetComputeInstanceById", codes.NOT_FOUND),
    ],
)
def test_a_partition_without_a_reported_size_is_listed_without_it(
    nvml: NvmlBackend, state: State, function: str, code: int
) -> None:
    state.foreign_mode(0, True)
    state.foreign_create(0, 9, 0)
    state.configure(0, virtualization=codes.VGPU_GUEST)
    state.inject(function, code, times=1)
    (poor,), (rich,) = first(nvml).mig_instances, first(nvml).mig_instances
    assert poor.profile is None
    assert rich.profile is not None
    assert replace(rich, profile=None) == poor
