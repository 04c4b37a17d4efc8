"""The NVLink fabric of boards with NVSwitches, as both backends report it."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu, parse_groups
from tests.contract.hardware.gpu.conftest import Opened
from tests.fakes.nvml import state as codes
from tests.fakes.simulated_gpus import SimulatedBackend

NOT_STARTED, IN_PROGRESS, COMPLETED = (Fabric(state=state) for state in FabricState)
FAILED = Fabric(state=FabricState.COMPLETED, status=codes.NOT_SUPPORTED)


def board(fabric: Fabric | None) -> NodeSpec:
    node = parse_groups("1xh100-sxm5-80gb", "node-a")
    return replace(node, gpus=tuple(SimulatedGpu(gpu=replace(item.gpu, fabric=fabric)) for item in node.gpus))


def reported(backend: GpuBackend) -> Fabric | None:
    (gpu,) = backend.snapshot().gpus
    assert backend.fabric(gpu.uuid) == gpu.fabric
    return gpu.fabric


@pytest.mark.parametrize("fabric", [None, NOT_STARTED, IN_PROGRESS, COMPLETED, FAILED])
def test_both_backends_report_the_same(open_nvml: Opened, fabric: Fabric | None) -> None:
    """The state is one byte, beside which NVML may leave anything."""
    backend, _ = open_nvml(board(fabric))
    assert reported(backend) == fabric
    assert reported(SimulatedBackend(board(fabric))) == fabric
    assert backend.snapshot() == SimulatedBackend(board(fabric)).snapshot()


def test_the_status_counts_after_the_probe_only(open_nvml: Opened) -> None:
    """nvml.h: it has to be checked only if the state is completed."""
    backend, state = open_nvml(board(COMPLETED))
    state.configure(0, fabric_status=codes.UNKNOWN, fabric_probing=3)  # the first look asks for the clique, too
    assert reported(backend) == IN_PROGRESS
    assert reported(backend) == Fabric(state=FabricState.COMPLETED, status=codes.UNKNOWN)


def test_a_driver_without_the_newest_structure_is_asked_for_the_older_one(open_nvml: Opened) -> None:
    """Version 3 comes with driver 580, version 2 with 550."""
    backend, state = open_nvml(board(IN_PROGRESS))
    (gpu,) = backend.snapshot().gpus
    state.inject("nvmlDeviceGetGpuFabricInfoV", 25, times=1)
    assert backend.fabric(gpu.uuid) == IN_PROGRESS
    assert state.calls("nvmlDeviceGetGpuFabricInfoV") == 4  # two in the snapshot: state and clique


@pytest.mark.parametrize("code", [codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.NO_PERMISSION, 25])
def test_a_driver_without_the_call_reports_no_fabric(open_nvml: Opened, code: int) -> None:
    """Nothing is known then, and nothing is waited for."""
    backend, state = open_nvml(board(IN_PROGRESS))
    state.inject("nvmlDeviceGetGpuFabricInfoV", code)
    assert reported(backend) is None


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.TIMEOUT, codes.INVALID_ARGUMENT])
def test_trouble_with_it_withdraws_no_gpu(open_nvml: Opened, code: int) -> None:
    """The last known state stays, and without one there is none."""
    backend, state = open_nvml(board(COMPLETED))
    assert reported(backend) == COMPLETED
    state.configure(0, fabric_state=codes.FABRIC_IN_PROGRESS)
    state.inject("nvmlDeviceGetGpuFabricInfoV", code)
    (gpu,) = backend.snapshot().gpus
    assert gpu.fabric == COMPLETED
    state.clear_faults()
    assert reported(backend) == IN_PROGRESS


def test_the_probe_begins_again_after_the_last_instance(open_nvml: Opened) -> None:
    """CUDA on the whole GPU fails until it is completed."""
    real, state = open_nvml(board(COMPLETED))
    state.configure(0, fabric_reprobe=codes.FOR_EVER)
    simulated = SimulatedBackend(board(COMPLETED))
    (gpu,) = simulated.snapshot().gpus
    simulated.set_fabric(gpu.uuid, COMPLETED, after_mig=IN_PROGRESS)
    for backend in (real, simulated):
        backend.set_mig_mode(gpu.uuid, True)
        first, second = (backend.create_gpu_instance(gpu.uuid, 19, start) for start in (0, 1))
        backend.destroy_gpu_instance(gpu.uuid, first)
        assert backend.fabric(gpu.uuid) == COMPLETED
        backend.destroy_gpu_instance(gpu.uuid, second)
        assert backend.fabric(gpu.uuid) == IN_PROGRESS
