"""Node process, kubelet and slices are removed and return: running pods are not disturbed, and new pods start then.

The node process is started by the test on this host (see conftest); its kubelet and container runtime are real.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.paths import resource_slices
from dra_driver.sim.apiserver.jsonvalue import dig
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.loop import load
from tests.e2e.cluster import GONE_S, REACH_S, ROOT, RealCluster, containers, wait
from tests.e2e.forms import Forms
from tests.e2e.host import Folders, restart
from tests.fakes.node_process import NodeProcess

KUBELET_RESTART = os.environ.get("E2E_KUBELET_RESTART")
REPUBLISH_S = 5.0
# The kubelet's retries of a failed prepare or unprepare are this far apart at most.
RETRY_S = 180.0


class Pods(Forms):
    def __init__(self, cluster: RealCluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        template, self._pod = load(ROOT / "examples" / "one-gpu.yaml")
        cluster.apply([template], namespace)

    def make(self, *names: str) -> None:
        self.cluster.apply([{**self._pod, "metadata": {"name": name}} for name in names], self.namespace)

    def gpu(self, name: str) -> str:
        return str(*self.sees(name).listed)

    def wait_gone(self, name: str) -> None:
        def present() -> str | None:
            names = {pod["metadata"]["name"] for pod in self.cluster.pods(self.namespace)}
            return f"pod {name} still exists" if name in names else None

        wait(present, RETRY_S)

    def wait_warning(self, reason: str) -> str:
        wait(lambda: None if self.cluster.warnings(self.namespace, reason) else f"no event {reason}", REACH_S)
        return self.cluster.warnings(self.namespace, reason)[0]


@pytest.fixture
def pods(cluster: RealCluster, driver: NodeProcess | None, namespace: str) -> Iterator[Pods]:
    """After the test the pods are deleted while the driver runs, and no pod or claim may be left."""
    yield Pods(cluster, namespace)
    if driver is not None and (driver.process is None or driver.process.poll() is not None):
        restart(driver)
    for pod in cluster.pods(namespace):
        cluster.client.delete(PODS, pod["metadata"]["name"], namespace)
    cluster.remove([], namespace)


@pytest.fixture
def steady(driver: NodeProcess | None, pods: Pods) -> Iterator[str]:
    """A running pod that must be undisturbed: same containers, same log, at the end of the test."""
    pods.make("steady")
    pods.wait_ready("steady")
    gpu = pods.gpu("steady")
    before, log = containers(pods.get("steady")), pods.log("steady")
    yield gpu
    assert containers(pods.get("steady")) == before
    assert dig(pods.get("steady"), "status", "phase") == "Running"
    assert pods.log("steady") == log


def test_kill_and_restart_change_nothing_for_running_pods(
    own_driver: NodeProcess, steady: str, pods: Pods, node_folders: Folders
) -> None:
    before = node_folders.claims_in_journal(), node_folders.claims_with_files()
    own_driver.end(signal.SIGKILL)
    time.sleep(1.0)
    restart(own_driver)
    assert (node_folders.claims_in_journal(), node_folders.claims_with_files()) == before
    pods.make("next")
    pods.wait_ready("next")
    assert pods.gpu("next") != steady


def test_killed_while_pods_start(own_driver: NodeProcess, steady: str, pods: Pods, node_folders: Folders) -> None:
    before = len(node_folders.claims_in_journal())
    names = ["a", "b", "c"]
    pods.make(*names)
    wait(lambda: None if len(node_folders.claims_in_journal()) > before else "nothing in work", 30.0)
    own_driver.end(signal.SIGKILL)
    restart(own_driver)
    pods.wait_ready(*names, timeout_s=RETRY_S)
    assert len({steady, *(pods.gpu(name) for name in names)}) == 4


def test_pod_deleted_while_the_driver_is_down_is_removed_afterwards(
    own_driver: NodeProcess, pods: Pods, node_folders: Folders
) -> None:
    pods.make("leaving")
    pods.wait_ready("leaving")
    held = node_folders.claims_in_journal()
    own_driver.end(signal.SIGKILL)
    pods.cluster.client.delete(PODS, "leaving", pods.namespace)
    time.sleep(3.0)
    assert node_folders.claims_in_journal() == held
    restart(own_driver)
    pods.wait_gone("leaving")
    wait(lambda: "it is still held" if held & node_folders.claims_in_journal() else None, GONE_S)


def test_orderly_stop_leaves_slices_and_pods_alone(own_driver: NodeProcess, steady: str, cluster: RealCluster) -> None:
    """After SIGTERM it exits with status 0 within 5 s; the next process finds its slices and writes none."""
    before = [item["metadata"]["resourceVersion"] for item in cluster.slices()]
    status, seconds = own_driver.end()
    assert (status, seconds < 5.0) == (0, True)
    assert [item["metadata"]["resourceVersion"] for item in cluster.slices()] == before
    restart(own_driver)
    assert [item["metadata"]["resourceVersion"] for item in cluster.slices()] == before


def test_deleted_slices_come_back(cluster: RealCluster, steady: str) -> None:
    def delete_all() -> None:
        for item in cluster.slices():
            cluster.rest.delete(resource_slices(item["metadata"]["name"]))

    assert _seconds_away(cluster, delete_all) < REPUBLISH_S


def _seconds_away(cluster: RealCluster, disturb: Callable[[], None]) -> float:
    """How long slices were missing after the disturbance."""
    before = _sizes(cluster)
    gone = float("inf")
    with ThreadPoolExecutor(1) as other:
        disturbance = other.submit(disturb)
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            try:
                now = _sizes(cluster)
            except NotFoundError:
                continue
            if before.keys() & now.keys():
                continue
            gone = min(gone, time.monotonic())
            if sum(now.values()) == sum(before.values()):
                break
        disturbance.result(60)
    assert gone < float("inf"), "the slices were not deleted"
    return time.monotonic() - gone


def _sizes(cluster: RealCluster) -> dict[str, int]:
    return {
        item["metadata"]["uid"]: sum(len(item["spec"].get(part) or ()) for part in ("devices", "sharedCounters"))
        for item in cluster.slices()
    }
