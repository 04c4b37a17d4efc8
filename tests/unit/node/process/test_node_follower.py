"""What the node process follows of its Node and of other publishers."""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_follower import NodeFollower
from dra_driver.node.slices.neighbours import Neighbour
from tests.fakes.stand_in import stand_in

NODE = OwnNode(name="node-a")


class Surroundings:
    """An inventory with one GPU, and a publisher that notes the GPUs it was asked about."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(gpus=(Gpu(uuid=GpuUuid("GPU-1"), minor=0),))
        self.asked: list[set[str]] = []
        self.noticed = 0
        self.others: tuple[Neighbour, ...] = ()

    def current(self) -> Snapshot:
        return self.snapshot

    def neighbours(self, gpus: Collection[str]) -> tuple[Neighbour, ...]:
        self.asked.append(set(gpus))
        return self.others

    def wait_listed(self, timeout_s: float) -> bool:
        return True


class Own:
    """The Node of this process, once it is known."""

    def __init__(self, node: OwnNode | None) -> None:
        self.node = node
        self.problem = None if node is not None else "the Node has not been read"

    def current(self) -> OwnNode | None:
        return self.node

    def wait_first(self, timeout_s: float) -> bool:
        return self.node is not None


class Follower:
    """A follower that looks every second, on a clock."""

    def __init__(self, node: OwnNode | None = NODE) -> None:
        self.now = 0.0
        self.around, self.node = Surroundings(), Own(node)
        around = stand_in(self.around)
        self.follower = NodeFollower(
            stand_in(self.node),
            stand_in(None),
            around,
            around,
            "gpu.nvidia.com",
            folder=Path("/nonexistent"),
            allow_second=False,
            clock=self.clock,
        )
        self.looks()

    def clock(self) -> float:
        return self.now

    def looks(self, seconds: int = 1) -> int:
        """The number of looks at other publishers in that time."""
        before = len(self.around.asked)
        for _ in range(seconds):
            self.now += 1.0
            self.follower.look()
        return len(self.around.asked) - before


def test_a_second_publisher_is_remembered_while_no_gpu_can_be_read() -> None:
    """Otherwise both would offer the GPUs for a while after a detach, or after a driver came back."""
    at = Follower(None)
    at.around.snapshot = Snapshot()
    at.looks()
    assert at.around.asked[-2:] == [{"GPU-1"}, {"GPU-1"}]


def test_nothing_is_looked_at_while_nothing_changes() -> None:
    """A node at rest should not use a processor."""
    assert Follower().looks(100) == 0


def annotate(at: Follower) -> None:
    at.node.node = OwnNode(name="node-a", annotations={DRAIN_ANNOTATION: "all"})


def replace_gpu(at: Follower) -> None:
    at.around.snapshot = Snapshot(gpus=(Gpu(uuid=GpuUuid("GPU-2"), minor=0),))


def publish(at: Follower) -> None:
    at.around.noticed += 1


@pytest.mark.parametrize("change", [annotate, replace_gpu, publish])
def test_each_change_is_looked_at_once(change: Callable[[Follower], None]) -> None:
    at = Follower()
    change(at)
    assert (at.looks(), at.looks(100)) == (1, 0)


def test_a_second_publisher_is_followed_until_its_time_is_over() -> None:
    """Nothing but time passes between its arrival and the end of the patience with it."""
    at = Follower()
    at.looks(20)
    publish(at)
    at.around.others = (Neighbour(driver="other", pool="node-a", gpus=frozenset({"GPU-1"})),)
    at.looks(9)
    assert at.follower.conflict is None
    assert at.looks(3) > 0
    assert at.follower.conflict is not None
    assert at.looks(100) == 0


def test_what_an_annotation_names_wrongly_is_told_when_the_gpus_were_compared() -> None:
    """They are compared when something is published, which comes after the look."""
    at = Follower()
    at.node.node = OwnNode(name="node-a", annotations={DRAIN_ANNOTATION: "GPU-9"})
    at.looks()
    at.follower.amend(at.around.snapshot, {})
    assert (at.looks(), at.looks()) == (1, 0)
