"""What the node process follows of its Node and of other publishers, and GPUs that an annotation of the Node drains."""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_follower import TAINT, DrainTaint, NodeFollower
from dra_driver.node.slices.untrusted_slice import Neighbour
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


FIRST, SECOND = GpuUuid("GPU-0"), GpuUuid("GPU-1")
SNAPSHOT = Snapshot(
    gpus=(Gpu(uuid=FIRST, minor=0), Gpu(uuid=SECOND, minor=1)), left_out=(LeftOutGpu(label="GPU-2", reason="lost"),)
)
RESERVED = Taint(key="gpu.dra-driver.io/reserved", value="p", effect="NoSchedule")
TERMS: Terms = {FIRST: GpuTerms(policy="p", taints=(RESERVED,))}


class Node:
    """The own Node, whose annotation a test sets."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.is_known = True
        self.told: list[tuple[str, str, str]] = []
        self.given_back: list[list[GpuUuid]] = []
        self.drain = DrainTaint(
            stand_in(lambda: self if self.is_known else None),
            lambda *event: self.told.append((event[0], event[1], event[2])),
            lambda gpus: self.given_back.append(sorted(gpus)),
        )

    def asks(self, value: str | None) -> bool:
        self.annotations = {} if value is None else {DRAIN_ANNOTATION: value}
        return self.drain.look()

    def tainted(self) -> dict[GpuUuid, tuple[Taint, ...]]:
        return {gpu: terms.taints for gpu, terms in self.drain.amend(SNAPSHOT, TERMS).items()}


@pytest.fixture
def node() -> Node:
    return Node()


def test_drained_gpus_are_tainted_and_others_are_not(node: Node) -> None:
    """The taint is one of the whole GPU: partitions and shares have it, too. Taints of policies stay."""
    assert not node.drain.look()
    assert node.tainted() == {}
    assert node.asks(FIRST)
    assert not node.drain.look(), "said once"
    assert node.tainted() == {FIRST: (RESERVED, TAINT)}
    assert node.asks("all")
    assert node.tainted() == {FIRST: (RESERVED, TAINT), SECOND: (TAINT,)}
    assert node.asks(None)
    assert node.tainted() == {}
    assert [reason for _, reason, _ in node.told] == ["GpusDrained", "GpusDrained", "GpusUndrained"]


def test_gpus_whose_drain_has_ended_are_given_back_and_no_others(node: Node) -> None:
    """Errors of them that need a reset are over then; of one that is still drained they are not."""
    node.asks("all")
    node.tainted()
    node.asks(SECOND)
    assert node.given_back == [[FIRST]]
    node.tainted()
    node.asks(None)
    assert node.given_back == [[FIRST], [SECOND]]
    node.tainted()
    node.asks(FIRST)
    assert len(node.given_back) == 2


def test_a_node_that_is_not_known_ends_no_drain(node: Node) -> None:
    """The API server is away; nothing says that the annotation no longer exists."""
    node.asks("all")
    node.is_known = False
    assert not node.drain.look()
    assert set(node.tainted()) == {FIRST, SECOND}


def test_what_is_no_gpu_of_the_node_is_said_once(node: Node) -> None:
    """A GPU of another node, or a device's name. A GPU that does not answer is one of this node."""
    node.asks(f"gpu-1,{SECOND},GPU-of-another-node,GPU-2")
    assert set(node.tainted()) == {SECOND}
    node.drain.look()
    node.drain.look()
    (warning,) = [message for kind, _, message in node.told if kind == "Warning"]
    assert "gpu-1, GPU-of-another-node" in warning
    assert "GPU-2" not in warning
    assert len(node.drain.remarks) == 2
    node.asks(None)
    node.tainted()
    assert node.drain.remarks == []
