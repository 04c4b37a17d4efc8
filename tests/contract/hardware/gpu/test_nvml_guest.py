"""MIG through NVML in a virtual machine with a part of a GPU (vGPU), whose partitions only the host can change."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import MigUnsupportedError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State


def first(nvml: NvmlBackend) -> Gpu:
    return next(gpu for gpu in nvml.snapshot().gpus if gpu.minor == 0)


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
    """The partition is listed anyway, and a later answer is used."""
    state.foreign_mode(0, True)
    state.foreign_create(0, 9, 0)
    state.configure(0, virtualization=codes.VGPU_GUEST)
    state.inject(function, code, times=1)
    (poor,), (rich,) = first(nvml).mig_instances, first(nvml).mig_instances
    assert poor.profile is None
    assert rich.profile is not None
    assert replace(rich, profile=None) == poor
