"""Whole slices, compared with files that a person can read."""

from pathlib import Path

import pytest
import yaml

from dra_driver.model.gpu import Snapshot
from dra_driver.slices.build import build_devices, pool_name
from dra_driver.slices.diff import PoolIdentity, plan
from dra_driver.slices.layout import split
from tests.unit.slices.gpus import gpu, node_of, snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "slices"
CASES = {
    "two-h100.yaml": node_of(2),
    "one-gb10-unified-memory.yaml": snapshot(
        gpu(product_name="NVIDIA GB10", architecture="Blackwell", cuda_compute_capability=(12, 1), memory_bytes=None,
            pci_bus_id="000f:01:00.0", pcie_root="pci000f:00", addressing_mode="ATS", mig_capable=False)
    ),
    "no-gpu.yaml": snapshot(),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_slices_are_as_in_the_file(name: str) -> None:
    """Names, types and values are what selectors and dashboards in the field rely on."""
    assert slices_of(CASES[name]) == list(yaml.safe_load_all((GOLDEN / name).read_text()))


def slices_of(shot: Snapshot) -> list[object]:
    identity = PoolIdentity(
        driver="gpu.nvidia.com", node="node-a", node_uid="0f1e2d3c", pool=pool_name("node-a", "gpu.nvidia.com")
    )
    return list(plan(split(build_devices(shot)), [], identity).creates)
