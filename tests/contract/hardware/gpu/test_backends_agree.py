"""One suite for both backends: NVML over the C library and the simulation must say the same about the same node."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.gpu import NO_LINKS, Snapshot
from dra_driver.hardware.gpu.backend import Backend, ComputeMode, GpuBackend
from dra_driver.hardware.gpu.catalog import models
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.faults import FailureMode
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_document
from tests.fakes.nvml.state import State
from tests.fakes.nvml.sysfs import bind_in_sysfs, unbind_in_sysfs, write_sysfs
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.raising import fails


class Hardware:
    """Changes the simulated node and the state file together, so that a test is written once."""

    def __init__(self, node: NodeSpec, state: State, sysfs: Path) -> None:
        self.node, self.state, self.sysfs = node, state, sysfs
        self.simulated = SimulatedBackend(node)

    def become(self, node: NodeSpec) -> None:
        write_sysfs(self.sysfs, node)
        self.state.set_node(node)
        self.simulated.replace_node(node)

    def unbind(self, index: int) -> None:
        """Another PCI driver gets the GPU, such as vfio's."""
        gpu = self.node.gpus[index].gpu
        assert gpu.pci_bus_id is not None
        unbind_in_sysfs(self.sysfs, gpu.pci_bus_id)
        self.state.unbind(index)
        self.simulated.set_troubles(gpu.uuid, FailureMode.UNBOUND)

    def bind(self, index: int) -> None:
        gpu = self.node.gpus[index].gpu
        assert gpu.pci_bus_id is not None
        bind_in_sysfs(self.sysfs, gpu.pci_bus_id)
        self.state.bind(index)
        self.simulated.set_troubles(gpu.uuid)

    def lose(self, index: int) -> None:
        self.state.lose(index)
        self.simulated.mark_lost(self.node.gpus[index].gpu.minor, "lost on purpose")


@pytest.fixture
def hardware(node: NodeSpec, state: State, tmp_path: Path) -> Hardware:
    return Hardware(node, state, tmp_path / "sys")


@pytest.fixture
def backend(kind: str, hardware: Hardware, nvml: NvmlBackend) -> GpuBackend:
    return nvml if kind == "nvml" else hardware.simulated


def only(node: NodeSpec, *minors: int) -> NodeSpec:
    return replace(node, gpus=tuple(item for item in node.gpus if item.gpu.minor in minors))


def test_every_board_of_the_catalogue_survives_the_way_through_nvml(hardware: Hardware, nvml: NvmlBackend) -> None:
    document = "gpus:\n" + "".join(f"- model: {key}\n" for key in models())
    hardware.become(parse_document(document, "catalogue"))
    assert nvml.snapshot() == hardware.simulated.snapshot()
    assert len(nvml.snapshot().gpus) == len(models())


def test_properties_that_are_taken_away_are_none_on_both_sides(hardware: Hardware, nvml: NvmlBackend) -> None:
    document = """
driverVersion: 610.43.02
cudaDriverVersion: "13.2"
gpus:
- {model: h200-sxm-141gb, memoryMiB: null, addressingMode: null, numaNode: null, pcieRoot: null, productName: null}
- {model: a100-sxm4-40gb, minor: 9, migEnabled: true, pciBusId: "00ab:ff:1f.0", pcieRoot: "pci00ab:f0"}
"""
    hardware.become(parse_document(document, "odd"))
    snapshot = nvml.snapshot()
    described = hardware.simulated.snapshot()
    # The driver names no link with MIG on; the simulation publishes the described ones.
    divided = replace(described.gpus[1], nvlinks=NO_LINKS)
    assert snapshot == replace(described, gpus=(described.gpus[0], divided))
    hardware.state.foreign_mode(1, False)
    assert any(nvml.snapshot().gpus[1].nvlinks == described.gpus[1].nvlinks for _ in range(4))
    assert (snapshot.driver_version, snapshot.cuda_driver_version) == ("610.43.02", (13, 2))
    first, second = snapshot.gpus
    assert (first.memory_bytes, first.numa_node, first.pcie_root, first.product_name) == (None, None, None, None)
    assert (second.minor, second.mig_enabled, second.pci_bus_id) == (9, True, "00ab:ff:1f.0")


def test_a_lost_gpu_is_left_out_by_uuid_with_a_reason_and_the_others_stay(backend: Backend, hardware: Hardware) -> None:
    before = backend.snapshot()
    hardware.lose(2)
    after = backend.snapshot()
    assert [gpu.minor for gpu in after.gpus] == [0, 1, 3, 4, 5, 6]
    assert after.gpus == tuple(gpu for gpu in before.gpus if gpu.minor != 2)
    (left_out,) = after.left_out
    assert left_out.label == before.gpus[2].uuid
    assert "lost" in left_out.reason


def test_removed_and_added_gpus_show_at_the_next_snapshot(backend: Backend, hardware: Hardware, node: NodeSpec) -> None:
    whole = backend.snapshot()
    hardware.become(only(node, 1, 4))
    assert [gpu.minor for gpu in backend.snapshot().gpus] == [1, 4]
    hardware.become(node)
    assert backend.snapshot() == whole


def test_gpus_that_are_unbound_and_bound_again_are_followed_down_to_none_and_back(
    backend: GpuBackend, hardware: Hardware
) -> None:
    whole = backend.snapshot()
    for index in range(7):
        hardware.unbind(index)
        found = backend.snapshot()
        assert (found.gpus, found.left_out) == (whole.gpus[index + 1 :], ())
    with fails(DeviceLostError, "GpuNotFound"):
        backend.compute_mode(whole.gpus[0].uuid)
    for index in range(7):
        hardware.bind(index)
    assert backend.snapshot() == whole
    assert backend.compute_mode(whole.gpus[0].uuid) is ComputeMode.DEFAULT


def test_a_node_without_gpus_has_an_empty_inventory_with_a_driver_version(backend: Backend, hardware: Hardware) -> None:
    hardware.become(NodeSpec())
    assert backend.snapshot() == Snapshot(
        driver_version="580.65.06", nvml_version="13.580.65.06", cuda_driver_version=(13, 0)
    )


def test_a_closed_backend_opens_again_and_closing_twice_is_harmless(backend: Backend) -> None:
    before = backend.snapshot()
    backend.close()
    backend.close()
    backend.open()
    backend.open()
    assert backend.snapshot() == before
