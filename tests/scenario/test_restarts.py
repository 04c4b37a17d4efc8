"""Node processes, kubelets and API servers stop and start: running pods go on, new pods start afterwards."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.node.node_process import ClusterNode
from dra_driver.sim.objects import is_ready
from tests.scenario.conftest import TIMEOUT_S, Pods, container_statuses, make_template

# How long deleted slices may be missing.
REPUBLISH_S = 5.0


def _unchanged(pods: Pods, before: Obj) -> None:
    after = pods.get(before["metadata"]["name"])
    assert container_statuses(after) == container_statuses(before)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_killing_the_node_process_changes_nothing_for_running_pods(cluster: Cluster, pods: Pods, template: str) -> None:
    pods.run("before", template=template, on="gpu-a")
    node, running = cluster.nodes["gpu-a"], pods.get("before")
    documents = {path: path.read_bytes() for path in node.claim_files()}
    node.process.kill()

    pods.create("during", template=template, on="gpu-a")
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
    pods.run("leaving", template=template, on="gpu-b")
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
    pods.run("steady", template=template, on="gpu-a")
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

    pods.run("next", template=template, on="gpu-a")
    assert pods.log("next") != pods.log("steady")


def test_slices_deleted_by_another_client_come_back(cluster: Cluster) -> None:
    from dra_driver.sim.apiserver.kinds import RESOURCE_SLICES

    for item in cluster.slices("gpu-b"):
        cluster.store.delete(RESOURCE_SLICES, item["metadata"]["name"])
    cluster.wait_published(REPUBLISH_S)


def test_an_api_server_that_is_away_delays_and_breaks_nothing(cluster: Cluster, pods: Pods, template: str) -> None:
    pods.run("before", template=template, on="gpu-b")
    running = pods.get("before")
    cluster.stop_api_server()
    try:
        pods.create("during", template=template, on="gpu-b")
        time.sleep(1.0)  # a failure that must not happen needs time to happen
        _unchanged(pods, running)
        assert not is_ready(pods.get("during"))
        assert cluster.nodes["gpu-b"].process.is_running
        assert DRIVER in cluster.nodes["gpu-b"].kubelet.dra.drivers()
    finally:
        cluster.start_api_server()
    pods.wait_ready("during")
    _unchanged(pods, running)


@pytest.mark.slow
def test_a_pod_says_that_the_api_server_is_away(cluster: Cluster, pods: Pods, template: str) -> None:
    """The driver tries for as long as the kubelet listens, 45 s, and then answers with the reason."""
    cluster.stop_api_server()
    try:
        pods.create("during", template=template, on="gpu-b")
        pods.wait_event("during", "FailedPrepareDynamicResources", "from the API server", timeout_s=60.0)
    finally:
        cluster.start_api_server()
    pods.wait_ready("during", timeout_s=2 * TIMEOUT_S)


def test_a_deleted_pod_frees_its_gpu_for_the_next(cluster: Cluster, pods: Pods, template: str) -> None:
    for name in ("one", "two"):
        pods.create(name, template=template, on="gpu-a")
    # Only now: of three waiting pods the first is the one whose claim was created first.
    pods.wait_ready("one", "two")
    pods.create("three", template=template, on="gpu-a")
    pods.wait_event("three", "FailedScheduling", "1 cannot allocate all claims")
    freed = pods.log("one")
    pods.delete("one")
    pods.wait_ready("three")
    assert pods.log("three") == freed


@contextmanager
def journal_held(node: ClusterNode, before: str) -> Iterator[None]:
    """Holds the node process inside that write to its journal: others still see the state before it."""
    sql = f"SELECT count(*) FROM {', '.join(f'sqlite_master t{n}' for n in range(12))};"  # noqa: S608
    change_journal(node, f"CREATE TRIGGER held BEFORE {before} BEGIN {sql} END")
    yield
    change_journal(node, "DROP TRIGGER held")


def change_journal(node: ClusterNode, sql: str) -> None:
    path = node.folders.plugins / DRIVER / "state.db"
    with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as connection:
        connection.execute(sql)


def claims_in_journal(node: ClusterNode) -> dict[str, str]:
    path = node.folders.plugins / DRIVER / "state.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
        return dict(connection.execute("SELECT uid, state FROM claim").fetchall())


@pytest.mark.parametrize(
    ("held", "states"),
    [
        pytest.param("INSERT ON claim", [], id="before-the-intent"),
        pytest.param("UPDATE ON claim WHEN new.state = 'prepared'", ["preparing"], id="after-the-hardware"),
    ],
)
def test_killing_the_node_process_in_the_middle_of_a_prepare_loses_nothing(
    cluster: Cluster, pods: Pods, namespace: str, held: str, states: list[str]
) -> None:
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}  # without it there is one write
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": slicing}
    template = make_template(cluster, namespace, parameters=parameters)
    node = cluster.nodes["gpu-a"]
    with journal_held(node, held):
        pods.create("left", template=template, on="gpu-a")
        cluster.wait(lambda: None if is_held(node, states) else "not held yet", TIMEOUT_S, "a prepare to be held")
        assert sorted(claims_in_journal(node).values()) == states
        assert len(node.claim_files()) == len(states), "the CDI document is written between the two"
        node.process.kill()
    node.process.start()
    pods.create("right", template=template, on="gpu-a")
    pods.wait_ready("left", "right")
    assert pods.log("left") != pods.log("right")
    assert node.journal_rows() == len(node.claim_files()) == 2


def is_held(node: ClusterNode, states: list[str]) -> bool:
    """Whether the journal has those states, and another connection is inside a write."""
    path = node.folders.plugins / DRIVER / "state.db"
    if sorted(claims_in_journal(node).values()) != states:
        return False
    with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
