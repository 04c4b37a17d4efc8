"""What a real exporter answers under /usage is what `kubectl dra usage` reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kubectl.usage.device_use import decode
from tests.contract.node.exporter.test_process import GIB, Node, used


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.kubelet.stop()
    if found.process is not None:
        found.process.kill()


def has_looked_twice(node: Node) -> bool:
    answer = node.usage()
    return set(used(answer)) == {"claim-a", "claim-b"} and all(use.energy_joules for use in decode(answer).uses)


def test_each_value_of_a_claim_arrives(node: Node) -> None:
    node.exporter().wait_for(lambda: has_looked_twice(node))
    told = decode(node.usage())
    first, second = told.uses
    assert (first.namespace, first.claim, first.node, first.device) == ("team", "claim-a", "node-a", "gpu-0")
    assert (first.request, first.share, first.pods) == ("gpu", "sa", ("pod-a",))
    assert (first.used_bytes, first.granted_bytes, first.processes) == (4 * GIB, 20 * GIB, 1)
    assert (second.used_bytes, second.peak_bytes, second.sm_ratio) == (30 * GIB, 30 * GIB, 0.2)
    assert second.idle_s == 0.0
    assert second.energy_estimated
    assert told.window_s >= 0
    assert told.gaps == []
