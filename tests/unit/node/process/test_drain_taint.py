"""GPUs that an annotation of the Node asks to drain."""

import pytest

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms
from dra_driver.node.process.node_follower import TAINT, DrainTaint
from tests.fakes.stand_in import stand_in

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
    """The API server is away; nothing says that the annotation has gone."""
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
