"""A claim's device nodes are on the host before the kubelet is answered."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DeviceNodeError
from dra_driver.hardware.device_nodes.reconciler import WantedNode
from dra_driver.node.claims.workflow.service import ClaimService
from tests.fakes.claims import claim, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run


class Nodes:
    """Remembers what was asked for, and whether the claim's file existed by then."""

    def __init__(self, node: ClaimsNode) -> None:
        self.node = node
        self.asked: list[list[str]] = []
        self.failure: DeviceNodeError | None = None

    def ensure(self, nodes: Iterable[WantedNode]) -> None:
        self.asked.append([node.path for node in nodes])
        assert not self.node.writer.files
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def nodes(run: Run) -> Nodes:
    """The run's service keeps them."""
    found = Nodes(run.node)
    run.service = ClaimService(replace(run.deps, device_nodes=found))
    return found


def test_the_claims_own_nodes_are_there_before_its_file(run: Run, nodes: Nodes) -> None:
    run.prepare(claim(1, result("gpu-2")))
    assert nodes.asked == [["/dev/nvidia2"]]


def test_a_repeat_looks_again(run: Run, nodes: Nodes) -> None:
    """The node may have been deleted while the pod restarts."""
    run.prepare(claim(1))
    run.node.writer.files.clear()
    run.prepare(ref(1))
    assert len(nodes.asked) == 2


def test_a_node_that_is_something_else_refuses_the_claim_and_leaves_nothing(run: Run, nodes: Nodes) -> None:
    nodes.failure = DeviceNodeError("the host's /dev/nvidia0 is a symbolic link")
    assert run.refusal(claim(1)) is nodes.failure
    assert run.journal.entry(uid(1)) is None
    assert run.node.writer.files == {}
    nodes.failure = None
    assert run.prepare(claim(1))
