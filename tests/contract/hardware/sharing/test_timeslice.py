"""Time slices through the simulated driver's ``nvidia-smi``, which keeps what it was told as a GPU does."""

import pytest

from dra_driver.core.model.terms import Interval
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.sharing.timeslice import Smi, TimeSlicer
from tests.contract.hardware.sharing.conftest import Node


def slice_of(node: Node) -> str:
    path = node.root / simulated_root.TIMESLICE / node.gpus[0]
    return path.read_text().strip() if path.exists() else "0"


@pytest.fixture
def slicer(node: Node) -> TimeSlicer:
    return TimeSlicer(Smi(str(node.root)), node.backend, node.notes)


def test_an_interval_arrives_at_the_gpu_and_is_taken_back(node: Node, slicer: TimeSlicer) -> None:
    node.backend.set_compute_mode(node.gpus[0], ComputeMode.EXCLUSIVE_PROCESS)
    slicer.set(node.gpus[0], Interval.MEDIUM, within_s=10.0)
    assert (slice_of(node), node.backend.compute_mode(node.gpus[0])) == ("2", ComputeMode.DEFAULT)
    slicer.reset(node.gpus[0], within_s=10.0)
    assert (slice_of(node), node.backend.compute_mode(node.gpus[0])) == ("0", ComputeMode.EXCLUSIVE_PROCESS)
    assert not node.notes.values
