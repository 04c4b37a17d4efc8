"""What the node process follows of its Node and of other publishers."""

from collections.abc import Collection
from typing import Any, cast

from dra_driver.kubelet.node_follower import NodeFollower
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import GpuUuid


class Surroundings:
    """An own Node that is not known yet, an inventory, and a publisher that notes the GPUs it was asked about."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.asked: list[set[str]] = []

    def current(self) -> Snapshot:
        return self.snapshot

    def neighbours(self, gpus: Collection[str]) -> tuple[()]:
        self.asked.append(set(gpus))
        return ()


class UnknownNode:
    problem = "the Node has not been read"

    def current(self) -> None:
        return None

    def wait_first(self, timeout_s: float) -> bool:
        return False


def test_a_second_publisher_is_remembered_while_no_gpu_can_be_read() -> None:
    """Otherwise both would offer the GPUs for a while after a detach, or after a driver came back."""
    around = Surroundings()
    follower = NodeFollower(
        cast("Any", UnknownNode()), cast("Any", None), cast("Any", around), cast("Any", around), allow_second=False
    )
    around.snapshot = Snapshot(gpus=(Gpu(uuid=GpuUuid("GPU-1"), minor=0),))
    follower.look()
    around.snapshot = Snapshot()
    follower.look()
    assert around.asked[-2:] == [{"GPU-1"}, {"GPU-1"}]
