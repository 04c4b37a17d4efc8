"""The fake library is as unkind as NVML: what it does by name, through the real pynvml and without our backend."""

import ctypes
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu.nvml.session import use_library
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State

pynvml: Any = import_module("pynvml")  # typings/ has only the functions that the package calls


@pytest.fixture
def session(nvml_library: Path, state: State) -> Iterator[State]:
    use_library(str(nvml_library))
    pynvml.nvmlInit()
    yield state
    pynvml.nvmlShutdown()
    use_library(None)


def create(profile_id: int = 19, start: int = 0, index: int = 0) -> Any:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, 1)
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, ctypes.byref(placement))


def fabric(version: int, index: int = 0) -> tuple[int, int]:
    """State and status."""
    kinds = {1: pynvml.c_nvmlGpuFabricInfo_t, 2: pynvml.c_nvmlGpuFabricInfo_v2_t, 3: pynvml.c_nvmlGpuFabricInfo_v3_t}
    call = pynvml.nvmlDeviceGetGpuFabricInfo if version == 1 else pynvml.nvmlDeviceGetGpuFabricInfoV
    info = kinds[version]()
    call(pynvml.nvmlDeviceGetHandleByIndex(index), ctypes.byref(info))
    return info.state & 0xFF, info.status


def test_only_the_first_gpu_instance_of_a_gpu_is_refused_while_it_is_in_use(session: State) -> None:
    """The first one changes the GPU's state (kernel_mig_manager.c, kmigmgrSetMIGState), which a client prevents."""
    session.foreign_mode(0, True)
    session.configure(0, first_refusals=2)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_InUse):
            create()
    made = create()
    session.configure(0, first_refusals=codes.FOR_EVER)
    create(start=1)
    assert session.count(0) == (2, 0)
    pynvml.nvmlGpuInstanceDestroy(made)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_fabric_is_probed_again_after_the_last_gpu_instance(session: State, version: int) -> None:
    """Until the probe is COMPLETED, CUDA fails with 802 on NVSwitch boards."""
    with pytest.raises(pynvml.NVMLError_NotSupported):
        fabric(version)
    session.configure(0, fabric_state=codes.FABRIC_COMPLETED, fabric_reprobe=2)
    assert fabric(version) == (codes.FABRIC_COMPLETED, 0)
    session.foreign_mode(0, True)
    first, second = create(start=0), create(start=1)
    pynvml.nvmlGpuInstanceDestroy(first)
    assert fabric(version) == (codes.FABRIC_COMPLETED, 0)
    pynvml.nvmlGpuInstanceDestroy(second)
    states = [fabric(version)[0] for _ in range(3)]
    assert states == [codes.FABRIC_IN_PROGRESS, codes.FABRIC_IN_PROGRESS, codes.FABRIC_COMPLETED]


def test_the_fabric_may_never_be_ready_or_end_with_an_error(session: State) -> None:
    """Fabric Manager is not running, or the probe failed."""
    session.configure(0, fabric_state=codes.FABRIC_NOT_STARTED)
    assert fabric(3) == (codes.FABRIC_NOT_STARTED, 0)
    session.configure(0, fabric_state=codes.FABRIC_COMPLETED, fabric_status=codes.UNKNOWN)
    assert fabric(3) == (codes.FABRIC_COMPLETED, codes.UNKNOWN)
    session.configure(0, fabric_probing=codes.FOR_EVER)
    assert [fabric(3)[0] for _ in range(4)] == [codes.FABRIC_IN_PROGRESS] * 4
