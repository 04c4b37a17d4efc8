"""GPUs fall ill under running pods: what Kubernetes evicts, what the controller evicts, and what the pod shows."""

from functools import partial

import pytest

from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import NODES, POD_DISRUPTION_BUDGETS, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import health
from dra_driver.sim.node.node_process import ControllerSubprocess
from tests.e2e.forms import budget
from tests.scenario.conftest import ROOT, TIMEOUT_S, Pods, devices, make_template, untold

CLUSTER = {"nodes": {"gpu-a": "4xa100-sxm4-40gb", "gpu-b": "8xh100-sxm5-80gb"}, "policies": [ROOT / health.POLICY]}
"""One broken GPU is a small part of the fleet."""
OPT_OUT = {"gpu.dra-driver.io/no-eviction": "true"}


def run_pod(cluster: Cluster, namespace: str, pods: Pods, name: str, **metadata: object) -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": "gpu-a"}}
    cluster.store.create(PODS, {"metadata": {"name": name, **metadata}, "spec": spec}, namespace=namespace)
    pods.wait_ready(name)


def inject(cluster: Cluster, faults: str) -> None:
    """What ``dra-driver sim inject`` does; "" is the repair of all."""
    node = cluster.store.get(NODES, "gpu-a")
    node["metadata"].setdefault("annotations", {})[ANNOTATION] = faults
    cluster.store.update(NODES, node)


def taints(cluster: Cluster) -> list[Obj]:
    return [taint for device in devices(cluster, "gpu-a") for taint in entries(device, "taints")]


def test_a_budget_and_an_opt_out_keep_pods_and_the_controller_says_so(
    cluster: Cluster, namespace: str, pods: Pods, controller: ControllerSubprocess
) -> None:
    for name, metadata in (("kept", {"annotations": OPT_OUT}), ("guarded", {"labels": {"app": "g"}})):
        run_pod(cluster, namespace, pods, name, **metadata)
    cluster.store.create(POD_DISRUPTION_BUDGETS, budget("b", "g"), namespace=namespace)
    inject(cluster, "gpu-0 xid=79, gpu-1 xid=79")
    try:
        for name, reason in (("kept", "GpuEvictionOptedOut"), ("guarded", "GpuEvictionRefused")):
            cluster.wait(partial(untold, cluster, name, reason), TIMEOUT_S, f"the event {reason}")
        assert {pod["metadata"]["name"] for pod in cluster.store.list(PODS, namespace).items} == {"kept", "guarded"}
        assert controller.is_running
    finally:
        inject(cluster, "")
        cluster.wait(lambda: str(taints(cluster)) if taints(cluster) else None, TIMEOUT_S, "the taints to go")


@pytest.mark.slow
def test_the_pod_shows_that_its_gpu_is_ill(cluster: Cluster, namespace: str, pods: Pods) -> None:
    tolerations = [{"operator": "Exists", "effect": "NoExecute"}]
    pods.run("p", template=make_template(cluster, namespace, tolerations=tolerations), on="gpu-a")
    cluster.wait(lambda: unlike(cluster, namespace, "Healthy"), TIMEOUT_S, "its health to be shown")
    inject(cluster, "gpu-0 xid=79, gpu-1 xid=79, gpu-2 xid=79, gpu-3 xid=79")
    try:
        cluster.wait(lambda: unlike(cluster, namespace, "Unhealthy"), TIMEOUT_S, "its GPU to be shown as ill")
        assert dig(cluster.store.get(PODS, "p", namespace), "metadata", "deletionTimestamp") is None
    finally:
        inject(cluster, "")
        cluster.wait(lambda: str(taints(cluster)) if taints(cluster) else None, TIMEOUT_S, "the taints to go")
    cluster.wait(lambda: unlike(cluster, namespace, "Healthy"), TIMEOUT_S, "its GPU to be healthy again")


def unlike(cluster: Cluster, namespace: str, wanted: str) -> str | None:
    status = cluster.store.get(PODS, "p", namespace)["status"]["containerStatuses"][0]
    shown = [
        resource for item in entries(status, "allocatedResourcesStatus") for resource in entries(item, "resources")
    ]
    return None if shown and all(item["health"] == wanted for item in shown) else str(shown)
