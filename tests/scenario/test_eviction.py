"""GPUs fall ill under running pods: what Kubernetes evicts, what the controller evicts, and what the pod shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS, NODES, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIM_TEMPLATES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo, health
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import is_ready
from tests.scenario.conftest import ROOT, TIMEOUT_S

OPT_OUT = {"gpu.dra-driver.io/no-eviction": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes, so that one broken GPU is a small part of the fleet, with the policy that asks for eviction."""
    nodes = {"gpu-a": "4xa100-sxm4-40gb", "gpu-b": "8xh100-sxm5-80gb"}
    with Cluster(nodes, policies=[ROOT / health.POLICY]) as running:
        running.apply(ROOT / demo.CLASSES)
        yield running


@pytest.fixture
def controller(cluster: Cluster, tmp_path: Path) -> Iterator[ControllerSubprocess]:
    process = ControllerSubprocess(cluster.kubeconfig, tmp_path / "log")
    process.start()
    yield process
    assert process.stop() == 0


def run_pod(cluster: Cluster, namespace: str, name: str, **metadata: object) -> Obj:
    """A running pod with ``nvidia.com/gpu: 1`` on node gpu-a."""
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": "gpu-a"}}
    cluster.store.create(PODS, {"metadata": {"name": name, **metadata}, "spec": spec}, namespace=namespace)
    cluster.wait(lambda: unready(cluster, namespace, name), TIMEOUT_S, f"{name} to run")
    return cluster.store.get(PODS, name, namespace)


def unready(cluster: Cluster, namespace: str, name: str) -> str | None:
    pod = cluster.store.get(PODS, name, namespace)
    return None if is_ready(pod) else str(pod.get("status"))


def inject(cluster: Cluster, faults: str) -> None:
    """What ``dra-driver sim inject`` does; "" is the repair of all."""
    node = cluster.store.get(NODES, "gpu-a")
    node["metadata"].setdefault("annotations", {})[ANNOTATION] = faults
    cluster.store.update(NODES, node)


def reasons(cluster: Cluster, namespace: str, name: str) -> set[str]:
    found = cluster.store.list(EVENTS, namespace).items
    return {item["reason"] for item in found if item["involvedObject"]["name"] == name}


def taints(cluster: Cluster) -> list[Obj]:
    return [
        taint
        for item in cluster.slices("gpu-a")
        for device in entries(item, "spec", "devices")
        for taint in entries(device, "taints")
    ]


def test_the_chapter_of_the_demonstration(cluster: Cluster) -> None:
    """Both kinds of pods move, and the GPUs are used again."""
    said: list[str] = []
    assert health.run(cluster, ROOT / health.POLICY, said.append), "\n".join(said)
    cluster.set_policies([ROOT / health.POLICY])


def test_a_budget_and_an_opt_out_keep_pods_and_the_controller_says_so(
    cluster: Cluster, namespace: str, controller: ControllerSubprocess
) -> None:
    for name, metadata in (("kept", {"annotations": OPT_OUT}), ("guarded", {"labels": {"app": "g"}})):
        run_pod(cluster, namespace, name, **metadata)
    selector = {"matchLabels": {"app": "g"}}
    budget = {"metadata": {"name": "b"}, "spec": {"selector": selector, "minAvailable": 1}}
    cluster.store.create(POD_DISRUPTION_BUDGETS, budget, namespace=namespace)
    inject(cluster, "gpu-0 xid=79, gpu-1 xid=79")
    try:
        cluster.wait(
            lambda: missing(reasons(cluster, namespace, "kept"), "GpuEvictionOptedOut"), TIMEOUT_S, "the opt-out"
        )
        cluster.wait(
            lambda: missing(reasons(cluster, namespace, "guarded"), "GpuEvictionRefused"), TIMEOUT_S, "the refusal"
        )
        assert {pod["metadata"]["name"] for pod in cluster.store.list(PODS, namespace).items} == {"kept", "guarded"}
        assert controller.is_running
    finally:
        inject(cluster, "")
        cluster.wait(lambda: str(taints(cluster)) if taints(cluster) else None, TIMEOUT_S, "the taints to go")


def missing(found: set[str], wanted: str) -> str | None:
    return None if wanted in found else f"only {sorted(found)}"


@pytest.mark.slow
def test_the_pod_shows_that_its_gpu_is_ill(cluster: Cluster, namespace: str) -> None:
    """allocatedResourcesStatus, while the pod tolerates the taint."""
    tolerations = [{"operator": "Exists", "effect": "NoExecute"}]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "tolerations": tolerations}}
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=namespace)
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    spec = {
        "containers": [container],
        "resourceClaims": claims,
        "nodeSelector": {"kubernetes.io/hostname": "gpu-a"},
    }
    cluster.store.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace=namespace)
    cluster.wait(lambda: unready(cluster, namespace, "p"), TIMEOUT_S, "the pod to run")
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
    """What the pod's status shows of its devices, None if all are ``wanted``."""
    status = cluster.store.get(PODS, "p", namespace)["status"]["containerStatuses"][0]
    shown = [
        resource for item in entries(status, "allocatedResourcesStatus") for resource in entries(item, "resources")
    ]
    return None if shown and all(item["health"] == wanted for item in shown) else str(shown)
