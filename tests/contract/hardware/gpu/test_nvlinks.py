"""NVLinks, the fabric of boards with NVSwitches, and confidential computing, as both backends report them."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import ConfidentialCompute
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.nvml import properties
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu, parse_document, parse_groups
from dra_driver.kube.published import islands_of
from tests.contract.hardware.gpu.conftest import Opened
from tests.fakes.nvml import state as codes
from tests.fakes.simulated_gpus import SimulatedBackend

STATE, TYPE, END = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
)
PAIRS = parse_groups("4xa100-pcie-80gb+pairs", "node-a")


def members(backend: NvmlBackend) -> list[tuple[str, ...]]:
    return sorted({island.members for island in islands_of(backend.snapshot().gpus).values()})


@pytest.mark.parametrize("node", ["4xa100-pcie-80gb+pairs", "8xh100-sxm5-80gb", "2xa30-24gb,2xa30-24gb+pairs"])
def test_both_backends_report_the_same_links(open_nvml: Opened, node: str) -> None:
    """Bridges between two GPUs each, NVSwitches, and GPUs that could have a bridge and have none."""
    spec = parse_groups(node, "node-a")
    backend, _ = open_nvml(spec)
    assert backend.snapshot() == SimulatedBackend(spec).snapshot()


@pytest.mark.parametrize("code", [codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.NO_PERMISSION])
@pytest.mark.parametrize(("function", "left"), [(STATE, 0), (TYPE, 2), (END, 0)])
def test_a_driver_without_one_of_the_calls_reports_less(open_nvml: Opened, function: str, left: int, code: int) -> None:
    backend, state = open_nvml(PAIRS)
    state.inject(function, code)
    assert len(backend.snapshot().gpus) == 4
    assert len(members(backend)) == left


@pytest.mark.parametrize("function", [STATE, TYPE, END])
def test_trouble_with_a_link_withdraws_no_gpu_and_is_asked_again(open_nvml: Opened, function: str) -> None:
    backend, state = open_nvml(PAIRS)
    state.inject(function, codes.UNKNOWN)
    assert len(backend.snapshot().gpus) == 4
    assert members(backend) == []
    state.clear_faults()
    assert len(members(backend)) == 2


def test_links_that_go_down_or_cannot_be_read_any_more_stay(open_nvml: Opened) -> None:
    """A link that is down is told as bad health; the pair does not come and go with it, not over sessions either."""
    backend, state = open_nvml(PAIRS)
    before = backend.snapshot()
    for index in range(4):
        state.configure(index, links_down=0xFFF)
    assert all(backend.snapshot() == before for _ in range(4))
    backend.close()
    backend.open()
    assert all(backend.snapshot() == before for _ in range(4))
    state.inject(STATE, codes.NOT_SUPPORTED)
    assert all(backend.snapshot() == before for _ in range(8))


def test_links_that_come_up_later_are_found(open_nvml: Opened) -> None:
    """Fabric Manager trains the links to NVSwitches after the driver was loaded."""
    backend, state = open_nvml(parse_groups("2xh100-sxm5-80gb", "node-a"))
    for index in range(2):
        state.configure(index, links_down=0x3FFFF)
    assert members(backend) == []
    for index in range(2):
        state.configure(index, links_down=0)
    assert len([backend.snapshot() for _ in range(3)]) == 3
    assert len(members(backend)) == 1


def test_links_are_asked_for_less_and_less_often(open_nvml: Opened) -> None:
    """Looks 1, 4 and 16 of 20: some fifty calls per GPU are not made at each look."""
    backend, state = open_nvml(parse_groups("1xh100-sxm5-80gb", "node-a"))
    for _ in range(20):
        backend.snapshot()
    assert state.calls(STATE) == 3 * (18 + 1)  # and the one that says that there are no more


def test_a_gpu_says_its_clique_once_it_is_registered(open_nvml: Opened) -> None:
    """A cluster without a UUID is one board; a probe that failed or goes on says nothing."""
    document = "gpus:\n- {model: gb200-186gb, count: 4, fabric: completed}\n"
    backend, state = open_nvml(parse_document(document, "node-a"))
    cluster = bytes.fromhex("0011223344556677" * 2)
    for index in range(3):
        state.register(index, cluster, 7)
    state.configure(1, fabric_status=codes.UNKNOWN)
    state.configure(2, fabric_state=codes.FABRIC_IN_PROGRESS)
    assert [gpu.nvlinks.clique for gpu in backend.snapshot().gpus] == [
        "00112233-4455-6677-0011-223344556677.7", None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", [None, *ConfidentialCompute])
def test_both_backends_report_confidential_computing(open_nvml: Opened, mode: ConfidentialCompute | None) -> None:
    word = "" if mode is None else f"confidentialCompute: {mode}\n"
    spec = parse_document(f"{word}gpus: [{{model: h100-sxm5-80gb}}]\n", "node-a")
    backend, _ = open_nvml(spec)
    assert backend.snapshot() == SimulatedBackend(spec).snapshot()
    assert backend.snapshot().confidential_compute is mode


@pytest.mark.parametrize("code", [codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.UNKNOWN, codes.NO_PERMISSION])
def test_trouble_with_confidential_computing_withdraws_nothing(open_nvml: Opened, code: int) -> None:
    """A driver before R535 does not know it."""
    backend, state = open_nvml(PAIRS)
    state.inject("nvmlSystemGetConfComputeState", code)
    assert backend.snapshot().confidential_compute is None
    assert len(backend.snapshot().gpus) == 4


def test_a_driver_with_more_links_than_this_binding_knows_is_bounded(open_nvml: Opened) -> None:
    """The number of a link that does not exist ends the search; without such an answer, a constant does."""
    backend, state = open_nvml(parse_groups("1xh100-sxm5-80gb", "node-a"))
    state.inject(STATE, codes.NO_PERMISSION, skip=1)
    backend.snapshot()
    assert state.calls(STATE) == properties.MAX_LINKS


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
def test_both_backends_report_the_same_fabric(open_nvml: Opened, fabric: Fabric | None) -> None:
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
    backend, state = open_nvml(board(IN_PROGRESS))
    state.inject("nvmlDeviceGetGpuFabricInfoV", code)
    assert reported(backend) is None


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.TIMEOUT, codes.INVALID_ARGUMENT])
def test_trouble_with_the_fabric_withdraws_no_gpu(open_nvml: Opened, code: int) -> None:
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
