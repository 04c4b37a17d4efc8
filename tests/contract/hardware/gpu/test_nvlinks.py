"""NVLinks and confidential computing, as both backends report them."""

import pytest

from dra_driver.core.model.gpu import ConfidentialCompute
from dra_driver.core.model.nvlink import NvLinkPeer, NvLinks
from dra_driver.hardware.gpu.nvml import properties
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import parse_document, parse_groups
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


def test_a_pair_is_told_from_the_addresses_of_both_ends(open_nvml: Opened) -> None:
    """Four GPUs in two pairs."""
    backend, _ = open_nvml(PAIRS)
    first, second, *_ = backend.snapshot().gpus
    assert first.nvlinks == NvLinks(peers=(NvLinkPeer(pci_bus_id=second.pci_bus_id or "", links=12),))
    assert [len(pair) for pair in members(backend)] == [2, 2]


@pytest.mark.parametrize("code", [codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.NO_PERMISSION])
@pytest.mark.parametrize(("function", "left"), [(STATE, 0), (TYPE, 2), (END, 0)])
def test_a_driver_without_one_of_the_calls_reports_less(open_nvml: Opened, function: str, left: int, code: int) -> None:
    """Without the type of an end, its address is enough."""
    backend, state = open_nvml(PAIRS)
    state.inject(function, code)
    assert len(backend.snapshot().gpus) == 4
    assert len(members(backend)) == left


@pytest.mark.parametrize("function", [STATE, TYPE, END])
def test_trouble_with_a_link_withdraws_no_gpu_and_is_asked_again(open_nvml: Opened, function: str) -> None:
    """Nothing is known then, until an answer comes."""
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
    """None is a machine that does not have it."""
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
