"""Which devices of claims the kubelet is told of."""

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.node.process.claimed_devices import CLAIMED_S, ClaimedDevices
from dra_driver.node.process.health_report import ReportedDevice


def device(number: int) -> ReportedDevice:
    return ReportedDevice(
        pool=PoolName("node-a/gpu.nvidia.com"), device=DeviceName(f"gpu-{number}"), gpu_uuid=GpuUuid(f"GPU-{number}")
    )


class Node:
    """A journal, which may fail, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.devices = [device(0)]
        self.fails = False
        self.reads = 0
        self.claimed = ClaimedDevices(self.read, lambda: self.now)

    def read(self) -> list[ReportedDevice]:
        self.reads += 1
        if self.fails:
            raise StorageError("the journal is locked")
        return self.devices

    def names(self) -> list[str]:
        return [each.device for each in self.claimed.current()]


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_journal_is_read_after_changes_and_once_a_minute(node: Node) -> None:
    """It has every claim of the node."""
    assert node.names() == ["gpu-0"]
    node.devices = [*node.devices, device(1)]
    assert node.names() == ["gpu-0"]
    node.claimed.changed()
    assert node.names() == node.names() == ["gpu-0", "gpu-1"]
    assert node.reads == 2
    node.now += CLAIMED_S
    node.names()
    assert node.reads == 3


def test_a_change_is_not_lost_when_the_journal_cannot_be_read(node: Node) -> None:
    """The kubelet would show the new device as Unknown for a minute."""
    node.names()
    node.devices = [*node.devices, device(1)]
    node.fails = True
    node.claimed.changed()
    assert node.names() == ["gpu-0"]
    node.fails = False
    assert node.names() == ["gpu-0", "gpu-1"]


def test_a_change_during_the_read_is_read_afterwards(node: Node) -> None:
    """It may have come too late for it."""
    read = node.read

    def interrupted() -> list[ReportedDevice]:
        found = read()
        if node.reads == 1:
            node.devices = [*found, device(1)]
            node.claimed.changed()
        return list(found)

    node.claimed = ClaimedDevices(interrupted, lambda: node.now)
    assert node.names() == ["gpu-0"]
    assert node.names() == ["gpu-0", "gpu-1"]
