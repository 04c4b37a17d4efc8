"""The NVIDIA driver is upgraded under running pods: detach, another driver, reattach."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import EVENTS, NAMESPACES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.objects import is_ready
from tests.scenario.conftest import TIMEOUT_S, Pods, cluster_of, container_statuses, devices, make_template

NODE = "gpu-a"
SPEC = "driverVersion: {version}\ngpus:\n- {{model: h100-sxm5-80gb, count: 12}}\n"
DETACH = "gpu.dra-driver.io/detach"
CLIENT_LABEL = "nvidia.com/gpu.deploy.client"
PAUSED = "paused-for-driver-upgrade"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "gpus.yaml"
    path.write_text(SPEC.format(version="570.172.08"))
    return path


@pytest.fixture(scope="module")
def cluster(spec: Path) -> Iterator[Cluster]:
    with cluster_of({NODE: str(spec)}) as running:
        yield running


class DetachedNode:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rest = RestClient(Connection.load(str(cluster.kubeconfig)))

    def annotate(self, reason: str | None) -> None:
        self._patch({"annotations": {DETACH: reason}})

    def label(self, value: str) -> None:
        self._patch({"labels": {CLIENT_LABEL: value}})

    def _patch(self, metadata: dict[str, Any]) -> None:
        self._rest.merge_patch(f"/api/v1/nodes/{NODE}", {"metadata": metadata})

    def wait_taint(self, value: str | None) -> None:
        """Wait until every published device has the taint with that value, or none has it."""

        def complaint() -> str | None:
            found = {_taint(device) for device in devices(self._cluster, NODE)}
            return None if found == {value} else f"taints {found}"

        self._cluster.wait(complaint, TIMEOUT_S, f"taint {value} on all devices")

    def wait_event(self, reason: str, text: str, *, times: int = 1) -> None:
        def complaint() -> str | None:
            events = [event for event in self._cluster.store.list(EVENTS).items if event["reason"] == reason]
            messages = [event["message"] for event in events if event["involvedObject"]["name"] == NODE]
            found = sum(event["count"] for event in events if text in event["message"])
            return None if found >= times else f"messages {messages}"

        self._cluster.wait(complaint, TIMEOUT_S, f"an event {reason} with {text!r}")


def _taint(device: Obj) -> str | None:
    found = [taint for taint in device.get("taints") or () if taint["key"] == "gpu.dra-driver.io/detached"]
    assert all(taint["effect"] == "NoSchedule" for taint in found)
    return found[0]["value"] if found else None


@pytest.fixture
def node(cluster: Cluster) -> Iterator[DetachedNode]:
    made = DetachedNode(cluster)
    yield made
    made.annotate(None)
    made.label("true")
    made.wait_taint(None)


def containers(pods: Pods, names: list[str]) -> list[Any]:
    return [container_statuses(pods.get(name)) for name in names]


def test_a_driver_is_upgraded_under_ten_running_pods(
    cluster: Cluster, node: DetachedNode, pods: Pods, namespace: str, spec: Path
) -> None:
    template = make_template(cluster, namespace)
    names = [f"running-{number}" for number in range(10)]
    for name in names:
        pods.create(name, template=template)
    pods.wait_ready(*names)
    before, documents = containers(pods, names), cluster.nodes[NODE].claim_files()
    cut = make_template(cluster, namespace, deviceClassName="mig.nvidia.com")
    pods.run("partition", template=cut)

    node.annotate("driver 580.105.08")
    node.wait_taint("requested")
    node.wait_event("DriverDetached", f"annotation {DETACH} of node {NODE}: driver 580.105.08")
    tolerant = make_template(cluster, namespace, tolerations=[{"operator": "Exists"}])
    pods.create("waits-in-the-scheduler", template=template)
    pods.create("waits-in-the-kubelet", template=tolerant)
    pods.end("partition")
    spec.write_text(SPEC.format(version="580.105.08"))
    allocated = "waits-in-the-kubelet"
    cluster.wait(lambda: None if dig(pods.get(allocated), "spec", "nodeName") else "not yet", TIMEOUT_S, "scheduling")
    assert not is_ready(pods.get(allocated))
    assert not dig(pods.get("waits-in-the-scheduler"), "spec", "nodeName")
    assert len(cluster.nodes[NODE].changed_gpus()) == 1, "the partition waits for the driver"

    node.annotate(None)
    node.wait_event("DriverReattached", "reattached")
    node.wait_taint(None)
    pods.wait_ready("waits-in-the-scheduler", "waits-in-the-kubelet")
    versions = {device["attributes"]["driverVersion"]["version"] for device in devices(cluster, NODE)}
    assert versions == {"580.105.8"}
    assert containers(pods, names) == before
    assert set(documents) <= set(cluster.nodes[NODE].claim_files())
    cluster.store.delete(NAMESPACES, namespace)
    cluster.wait(lambda: ", ".join(cluster.leftovers()) or None, 2 * TIMEOUT_S, "nothing to be left")
    cluster.store.create(NAMESPACES, {"metadata": {"name": namespace}})


def test_a_driver_manager_is_given_the_driver_when_the_last_claim_has_ended(
    node: DetachedNode, pods: Pods, template: str
) -> None:
    pods.run("holder", template=template)
    node.label(PAUSED)
    node.wait_taint("driver-upgrade")
    node.wait_event("DriverDetaching", f"label {CLIENT_LABEL} of node {NODE}")
    assert is_ready(pods.get("holder"))
    pods.end("holder")
    node.wait_event("DriverDetached", f"label {CLIENT_LABEL} of node {NODE}")
    node.label("true")
    node.wait_taint(None)


@pytest.mark.slow
def test_a_process_that_restarts_stays_detached(
    cluster: Cluster, node: DetachedNode, pods: Pods, template: str
) -> None:
    """It must not open the driver that is being replaced; the slices of the run before it stay, tainted."""
    pods.run("holder", template=template)
    node.annotate("reset of gpu-0")
    node.wait_event("DriverDetached", "reset of gpu-0")
    node.wait_taint("requested")
    process = cluster.nodes[NODE].process
    process.kill()
    process.start()
    node.wait_event("DriverDetached", "reset of gpu-0", times=2)
    pods.end("holder")
    assert "GPU inventory changed" not in process.log_tail(200).rpartition("starting")[2]
    node.wait_taint("requested")
    pods.create("new", template=template)
    node.annotate(None)
    pods.wait_ready("new")
