"""Nodes and API servers come and go; running pods do not notice, and new ones start as soon as things are back."""

import time

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.cluster import DRIVER, Cluster
from tests.scenario.conftest import TIMEOUT_S, Pods

# How long slices that somebody deleted may stay away.
REPUBLISH_S = 5.0


def _unchanged(pods: Pods, before: Obj) -> None:
    after = pods.get(before["metadata"]["name"])
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_killing_the_node_process_changes_nothing_for_running_pods(cluster: Cluster, pods: Pods, template: str) -> None:
    """After kill -9 pods run on, their CDI documents stay, and a restarted process prepares, and gives back, claims."""
    pods.create("before", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    pods.wait_ready("before")
    node, running = cluster.nodes["gpu-a"], pods.get("before")
    documents = {path: path.read_bytes() for path in node.claim_files()}
    node.process.kill()

    pods.create("during", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    pods.wait_event("during", "FailedPrepareDynamicResources", "NodePrepareResources failed: rpc error: code =")
    _unchanged(pods, running)
    node.process.start()

    pods.wait_ready("during")
    _unchanged(pods, running)
    assert {path: path.read_bytes() for path in documents} == documents
    assert pods.log("before") != pods.log("during")
    assert node.journal_rows() == 2


def test_a_pod_deleted_while_the_node_process_is_away_goes_once_it_is_back(
    cluster: Cluster, pods: Pods, template: str
) -> None:
    """Unprepare is repeated until the driver answers; until then the pod stays, and its GPU is nobody else's."""
    pods.create("leaving", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-b"})
    pods.wait_ready("leaving")
    node = cluster.nodes["gpu-b"]
    node.process.kill()
    pods.delete("leaving")
    pods.wait_event("leaving", "FailedUnprepareDynamicResources", "NodeUnprepareResources failed")
    assert pods.get("leaving")["metadata"]["deletionTimestamp"]
    assert node.journal_rows() == 1
    node.process.start()
    pods.wait_gone("leaving")
    cluster.wait(lambda: ", ".join(cluster.leftovers()) or None, TIMEOUT_S, "nothing to be left")


def test_restarting_the_kubelet_brings_slices_back_and_leaves_pods_alone(
    cluster: Cluster, pods: Pods, template: str
) -> None:
    """A kubelet deletes the node's slices when it starts; the driver publishes them again within 5 s."""
    pods.create("steady", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    pods.wait_ready("steady")
    running = pods.get("steady")
    before = {item["metadata"]["uid"] for item in cluster.slices("gpu-a")}
    began = time.monotonic()
    cluster.nodes["gpu-a"].restart_kubelet()
    cluster.wait_published(REPUBLISH_S)
    assert time.monotonic() - began < REPUBLISH_S
    after = {item["metadata"]["uid"] for item in cluster.slices("gpu-a")}
    assert after
    assert not after & before
    _unchanged(pods, running)

    pods.create("next", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    pods.wait_ready("next")
    assert pods.log("next") != pods.log("steady")


def test_slices_that_somebody_deletes_come_back(cluster: Cluster) -> None:
    """A foreign delete is repaired without a restart of anything."""
    from dra_driver.sim.apiserver.kinds import RESOURCE_SLICES

    for item in cluster.slices("gpu-b"):
        cluster.store.delete(RESOURCE_SLICES, item["metadata"]["name"])
    cluster.wait_published(REPUBLISH_S)


def test_an_api_server_that_is_away_delays_and_breaks_nothing(cluster: Cluster, pods: Pods, template: str) -> None:
    """Running pods stay; a new pod says what is missing, and runs once the API server is back."""
    pods.create("before", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-b"})
    pods.wait_ready("before")
    running = pods.get("before")
    cluster.stop_api_server()
    try:
        pods.create("during", template=template, nodeSelector={"kubernetes.io/hostname": "gpu-b"})
        time.sleep(1.0)  # the only way to give a failure that must not happen the time to happen
        _unchanged(pods, running)
        assert cluster.nodes["gpu-b"].process.is_running
        assert DRIVER in cluster.nodes["gpu-b"].kubelet.dra.drivers()
    finally:
        cluster.start_api_server()
    pods.wait_ready("during")
    _unchanged(pods, running)


def test_a_deleted_pod_frees_its_gpu_for_the_next(cluster: Cluster, pods: Pods, template: str) -> None:
    """A pod that waits for a GPU gets the one that another gives back, without anybody's help."""
    where = {"kubernetes.io/hostname": "gpu-a"}
    for name in ("one", "two"):
        pods.create(name, template=template, nodeSelector=where)
    # Only now: which of three waiting pods is first depends on whose claim is made first.
    pods.wait_ready("one", "two")
    pods.create("three", template=template, nodeSelector=where)
    pods.wait_event("three", "FailedScheduling", "1 cannot allocate all claims")
    freed = pods.log("one")
    pods.delete("one")
    pods.wait_ready("three")
    assert pods.log("three") == freed


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.02, 0.04])
def test_killing_the_node_process_in_the_middle_of_prepares_loses_nothing(
    cluster: Cluster, pods: Pods, template: str, delay_s: float
) -> None:
    """Wherever a prepare was cut off, the next process finishes it: both pods run, with a GPU each, and both can go."""
    node = cluster.nodes["gpu-a"]
    for name in ("left", "right"):
        pods.create(name, template=template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    time.sleep(delay_s)  # not a wait for something: it moves the cut through the prepare
    node.process.kill()
    node.process.start()
    pods.wait_ready("left", "right")
    assert pods.log("left") != pods.log("right")
    assert node.journal_rows() == len(node.claim_files()) == 2
