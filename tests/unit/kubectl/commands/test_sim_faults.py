"""Commands that inject faults into simulated GPUs and end them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError, ConflictError, DraError, ForbiddenError
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.kubectl.commands.sim import FaultCommand
from tests.harness.raising import fails
from tests.unit.kubectl.drain.cluster import NODE, FakeApi

PART = "gpu-1-mig-1g10gb-19-0"


class Cluster(FakeApi):
    """A Node, its slices and its events; ``react`` runs whenever the command looks again."""

    def __init__(self) -> None:
        super().__init__()
        self.taints: dict[str, list[dict[str, str]]] = {"gpu-0": [], "gpu-1": [], PART: []}
        self.odd: list[object] = []
        self.events_forbidden = False
        self.now = 0.0
        self.said: list[str] = []
        self.react: Callable[[], None] = lambda: None

    def command(self, node: str = NODE) -> FaultCommand:
        return FaultCommand(self, node, say=self.said.append, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.react()

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path.endswith("/events"):
            if self.events_forbidden:
                raise ForbiddenError("events is forbidden")
            return {"items": [dict(event) for event in self.events]}
        devices = [{"name": name, "taints": list(taints)} for name, taints in self.taints.items()]
        return {"items": [{"spec": {"devices": [*self.odd, *devices]}}, {"spec": {}}] if devices or self.odd else []}

    def record(self, reason: str, message: str = "", count: int = 1) -> None:
        about = {"kind": "Node", "name": NODE}
        name = f"{reason}-{message}"
        self.events = [event for event in self.events if event["metadata"]["name"] != name]
        self.events.append(
            {"metadata": {"name": name}, "reason": reason, "message": message, "count": count, "involvedObject": about}
        )

    def taint(self, device: str) -> None:
        self.taints[device] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_inject_extends_annotation_and_reports_taint(cluster: Cluster) -> None:
    cluster.annotations[ANNOTATION] = "gpu-1 ecc"
    cluster.react = lambda: cluster.taint("gpu-0")
    cluster.command().inject("gpu-0", "xid=79", 15)
    assert cluster.annotations[ANNOTATION] == "gpu-1 ecc, gpu-0 xid=79"
    assert cluster.said[-1] == "gpu-0 is tainted: gpu.nvidia.com/xid=79:NoSchedule"
    cluster.command().inject("gpu-0", "xid=79", 0)
    assert cluster.annotations[ANNOTATION] == "gpu-1 ecc, gpu-0 xid=79*2"


def test_inject_fails_without_reaction(cluster: Cluster) -> None:
    cluster.record("SimulatedFault")
    cluster.taint("gpu-0")
    with fails(DraError, "NoReaction"):
        cluster.command().inject("gpu-0", "xid=79", 15)
    assert cluster.now >= 15
    assert ANNOTATION in cluster.annotations


def test_a_repeated_event_with_a_higher_count_is_a_reaction(cluster: Cluster) -> None:
    cluster.record("SimulatedFault", "simulated faults: none", count=1)
    cluster.annotations[ANNOTATION] = "gpu-0 lost"
    cluster.react = lambda: cluster.record("SimulatedFault", "simulated faults: none", count=2)
    cluster.command().recover("gpu-0", 15)
    assert cluster.now < 1


def test_inject_fails_with_refusal_of_node_process(cluster: Cluster) -> None:
    cluster.annotations[ANNOTATION] = "gpu-0 xid=95"
    cluster.react = lambda: cluster.record("SimulatedFaultRefused", f"{PART} ecc: this partition does not exist now")
    with pytest.raises(DraError, match="this partition does not exist now"):
        cluster.command().inject(PART, "ecc", 15)
    assert cluster.annotations[ANNOTATION] == "gpu-0 xid=95"


def test_a_refusal_of_another_fault_is_not_taken_for_this_one(cluster: Cluster) -> None:
    cluster.react = lambda: cluster.record("SimulatedFaultRefused", f"{PART} ecc: this partition does not exist now")
    cluster.command().inject("gpu-0", "xid=13", 600)
    assert "only counted" in cluster.said[-1]
    assert cluster.now < 10


def test_without_the_right_to_read_events_taints_are_waited_for(cluster: Cluster) -> None:
    cluster.events_forbidden = True
    cluster.react = lambda: cluster.taint("gpu-0")
    cluster.command().inject("gpu-0", "xid=79", 15)
    assert "is tainted" in cluster.said[-1]


def test_concurrent_change_is_kept(cluster: Cluster) -> None:
    cluster.conflicts = 2
    cluster.command().inject("gpu-0", "lost", 0)
    assert cluster.annotations[ANNOTATION] == "gpu-0 lost"
    cluster.conflicts = 10
    with pytest.raises(ConflictError):
        cluster.command().inject("gpu-0", "ecc", 0)


@pytest.mark.parametrize(
    ("node", "device", "fault", "expected"),
    [
        (NODE, "gpu-0", "fire", "a fault such as xid=79"),
        (NODE, PART, "lost", "gpu-1 expected"),
        (NODE, "gpu-9", "ecc", "node gpu-a has no device 'gpu-9'; did you mean gpu-"),
        (NODE, "gpu-1-mig-1g10gb-19-1", "ecc", f"did you mean {PART}?"),
        ("other", "gpu-9", "ecc", "node 'other' does not exist"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_changed(
    cluster: Cluster, node: str, device: str, fault: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected.replace("?", r"\?")):
        cluster.command(node).inject(device, fault, 0)
    assert cluster.annotations == {}


def test_node_without_devices_has_a_separate_error(cluster: Cluster) -> None:
    cluster.taints.clear()
    with pytest.raises(ConfigurationError, match="publishes no devices"):
        cluster.command().inject("gpu-0", "ecc", 0)


def test_recover_includes_partitions_or_all_gpus(cluster: Cluster) -> None:
    cluster.annotations[ANNOTATION] = f"gpu-1 lost, {PART} ecc, gpu-0 ecc"
    cluster.command().recover("gpu-1", 0)
    assert cluster.annotations[ANNOTATION] == "gpu-0 ecc"
    cluster.command().recover(None, 0)
    assert cluster.annotations == {}
    cluster.command().recover("gpu-1", 15)
    assert cluster.said[-1] == "gpu-1 of gpu-a: no fault was injected"


def test_an_annotation_that_cannot_be_read_is_not_overwritten(cluster: Cluster) -> None:
    cluster.annotations[ANNOTATION] = "garbage"
    with pytest.raises(ConfigurationError, match=f"kubectl annotate node {NODE} {ANNOTATION}-"):
        cluster.command().inject("gpu-0", "ecc", 0)


def test_unreadable_device_is_reported_once(cluster: Cluster) -> None:
    cluster.odd = [{"name": "gpu-7", "taints": 5}, {"name": "gpu-8", "capacity": {"memory": 5}}]
    cluster.command().inject("gpu-8", "ecc", 0)
    with pytest.raises(ConfigurationError, match="gpu-7"):
        cluster.command().inject("gpu-7", "ecc", 0)
    note = "note: of gpu-a: gpu-7 cannot be read: taints: expected a list, got a number: '5'"
    assert cluster.said == [note, "gpu-8 of gpu-a: ecc injected", note]
