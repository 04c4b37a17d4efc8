"""Three boards as NVIDIA's own DRA driver describes them (kubernetes-sigs/dra-driver-nvidia-gpu, August 2026).

What is expected is spelled out here and not written by the code under test. The H100 is what that driver published over
NVIDIA's mock of NVML; the A100 and its partitions are of its reference of attributes and of its partitions.go. This
driver may publish more, never less or with another type.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.diff import PoolIdentity, compute_writes
from dra_driver.node.slices.layout import split
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import A100, ALL, gpu, mig_gpu

UUID = GpuUuid("GPU-01000100-0000-0000-0000-000000000000")
H100 = gpu(
    uuid=UUID, pci_bus_id="0000:1a:00.0", pcie_root=None, numa_node=None, addressing_mode=None, memory_bytes=80 * 2**30,
    mig_capable=False,
)  # fmt: skip
GB10 = gpu(product_name="NVIDIA GB10", architecture="Blackwell", cuda_compute_capability=(12, 1), memory_bytes=None)
WHOLE: dict[str, Any] = {
    "architecture": {"string": "Hopper"},
    "brand": {"string": "Nvidia"},
    "cudaComputeCapability": {"version": "9.0.0"},
    "cudaDriverVersion": {"version": "12.4.0"},
    "driverVersion": {"version": "550.163.1"},
    "productName": {"string": "NVIDIA H100 80GB HBM3"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:1a:00.0"},
    "type": {"string": "gpu"},
    "uuid": {"string": UUID},
}
CAPACITY = {  # of the smallest partition of an A100, and of all its GPU
    "copyEngines": ("1", "7"),
    "decoders": ("0", "5"),
    "encoders": ("0", "0"),
    "jpegEngines": ("0", "1"),
    "memory": ("4864Mi", "40Gi"),  # NVIDIA's driver publishes 40448Mi, the largest partition's, for the GPU
    "multiprocessors": ("14", "98"),
    "ofaEngines": ("0", "1"),
}
COUNTERS = {
    "copyEngines": "copy-engines", "decoders": "decoders", "encoders": "encoders", "jpegEngines": "jpeg-engines",
    "memory": "memory", "multiprocessors": "multiprocessors", "ofaEngines": "ofa-engines",
}  # fmt: skip
PLACEMENTS = {"1g.5gb": 7, "1g.5gb+me": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
CUT = "gpu-0-mig-1g5gb-19-4"


IDENTITY = PoolIdentity(driver="gpu.nvidia.com", node="node-a", node_uid="u", pool="p")


def published(board: Gpu) -> tuple[dict[str, Any], list[Any]]:
    """Its devices by name, and the counter sets."""
    shot = Snapshot(gpus=(board,), driver_version="550.163.01", cuda_driver_version=(12, 4))
    slices = split(build_devices(shot, {board.uuid: GpuTerms()}, ALL))
    specs = [wire(body)["spec"] for body in compute_writes(slices, [], IDENTITY).creates]
    devices = {device["name"]: device for spec in specs for device in spec.get("devices") or ()}
    return devices, [each for spec in specs for each in spec.get("sharedCounters") or ()]


def values(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: amount["value"] for name, amount in amounts.items()}


def test_a_whole_h100() -> None:
    ((name, device),) = published(H100)[0].items()
    assert (name, values(device["capacity"])) == ("gpu-0", {"memory": "80Gi"})
    assert {key: device["attributes"].get(key) for key in WHOLE} == WHOLE


def test_a_whole_gpu_whose_memory_the_driver_does_not_know_has_no_capacity() -> None:
    device = published(GB10)[0]["gpu-0"]
    assert "memory" not in device.get("capacity", {})
    assert device["attributes"]["cudaComputeCapability"] == {"version": "12.1.0"}


def test_the_partitions_of_an_a100() -> None:
    board = mig_gpu(A100, mig_enabled=True)
    devices, (counters,) = published(board)
    profiles = Counter(each["attributes"].get("profile", {}).get("string") for each in devices.values())
    assert profiles == PLACEMENTS  # and no whole GPU: Ampere in MIG mode
    assert set(published(mig_gpu(A100))[0]) == {"gpu-0"}, "MIG mode off"
    cut = devices[CUT]
    texts = {"type": "mig", "parentUUID": board.uuid, "profile": "1g.5gb", "productName": "NVIDIA A100-SXM4-40GB"}
    assert {key: cut["attributes"][key]["string"] for key in texts} == texts
    assert "uuid" not in cut["attributes"]
    assert values(cut["capacity"]) == {name: amounts[0] for name, amounts in CAPACITY.items()}
    slices = {f"memory-slice-{number}": "1" for number in range(8)}
    all_of_it = {COUNTERS[name]: amounts[1] for name, amounts in CAPACITY.items()} | slices
    assert (counters["name"], values(counters["counters"])) == ("gpu-0-counter-set", all_of_it)
    taken = {name: device["consumesCounters"][0] for name, device in devices.items()}
    assert {each["counterSet"] for each in taken.values()} == {"gpu-0-counter-set"}
    of_cut = {COUNTERS[name]: amounts[0] for name, amounts in CAPACITY.items()} | {"memory-slice-4": "1"}
    assert values(taken[CUT]["counters"]) == of_cut
    assert devices["gpu-0-mig-3g20gb-9-4"]["consumesCounters"][0]["counters"].keys() >= {
        f"memory-slice-{number}" for number in range(4, 8)
    }
