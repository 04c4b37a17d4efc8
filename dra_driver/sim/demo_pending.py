"""A chapter of the demonstration: a pod that waits, what ``kubectl dra explain`` says, and that it was right.

Owns the story: GPUs of one model are taken but for one on each node, a pod wants two on one node, and starts once the
others have ended.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dra_driver.errors import DraError
from dra_driver.explain import explain, pod_subject
from dra_driver.explain.text import render
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import read_cluster
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.objects import is_ready

NAMESPACE: Final = "demo-pending"
_WAIT_S: Final = 30.0
_CLASS: Final = "gpu.nvidia.com"

Say = Callable[[str], None]


def run(cluster: Cluster, say: Say) -> bool:
    """The chapter; whether the explanation was right. Leaves nothing behind."""
    say("--- why is my pod Pending?")
    problem = ""
    try:
        _play(cluster, say)
    except DraError as error:
        problem = str(error)
    try:
        cluster.store.delete(NAMESPACES, NAMESPACE)
        cluster.wait(lambda: _left(cluster), _WAIT_S, "the nodes to be clean after the chapter")
    except DraError as error:
        problem = problem or str(error)
    if problem:
        say(f"    problem  {problem}")
    return not problem


def _play(cluster: Cluster, say: Say) -> None:
    model, counts = _most_common_model(cluster)
    cluster.store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    holders = []
    for node, count in counts.items():
        holders.append(f"holder-{node}")
        _make_pod(cluster, holders[-1], model, max(count - 1, 1), node=node)
    cluster.wait(lambda: _unready(cluster, holders), _WAIT_S, "the pods that take the GPUs")
    _make_pod(cluster, "train", model, 2)
    cluster.wait(lambda: _unsaid(cluster), _WAIT_S, "the scheduler to turn the pod down")
    say(f"    All {model} of each node but one are taken by {', '.join(holders)}; train wants two on one node.\n")
    state = read_cluster(RestClient(Connection.load(str(cluster.kubeconfig))), NAMESPACE)
    say(f"$ kubectl dra explain pod/train -n {NAMESPACE}")
    say(render(explain(state, pod_subject(state, NAMESPACE, "train"))))
    for name in holders:
        cluster.store.delete(PODS, name, NAMESPACE)
    cluster.wait(lambda: _unready(cluster, ["train"]), _WAIT_S, "the pod to start once the others have ended")
    node = dig(cluster.store.get(PODS, "train", NAMESPACE), "spec", "nodeName")
    say(f"    They ended, and train runs on {node}.\n")


def _most_common_model(cluster: Cluster) -> tuple[str, Counter[str]]:
    """The model of which there are most whole GPUs, and how many each node has."""
    found: dict[str, Counter[str]] = {}
    for item in cluster.slices():
        for device in item["spec"].get("devices") or ():
            if dig(device, "attributes", "type", "string") != "gpu":
                continue
            model = str(dig(device, "attributes", "productName", "string", default=""))
            found.setdefault(model, Counter())[str(item["spec"].get("nodeName"))] += 1
    return max(found.items(), key=lambda entry: entry[1].total())


def _make_pod(cluster: Cluster, name: str, model: str, count: int, *, node: str = "") -> None:
    expression = f'device.attributes["{DRIVER}"].productName == "{model}"'
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": _CLASS, "count": count, "selectors": [{"cel": {"expression": expression}}]},
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
    spec: dict[str, Any] = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    cluster.client.create(template, NAMESPACE)
    cluster.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, NAMESPACE)


def _unready(cluster: Cluster, names: list[str]) -> str | None:
    pods = {name: cluster.store.find(PODS, name, NAMESPACE) for name in names}
    return ", ".join(name for name, pod in pods.items() if pod is None or not is_ready(pod)) or None


def _unsaid(cluster: Cluster) -> str | None:
    conditions: list[Obj] = entries(cluster.store.get(PODS, "train", NAMESPACE), "status", "conditions")
    return None if any(item.get("reason") == "Unschedulable" for item in conditions) else "it says nothing yet"


def _left(cluster: Cluster) -> str | None:
    left = cluster.leftovers()
    if cluster.store.find(NAMESPACES, NAMESPACE) is not None:
        left.append(f"namespace {NAMESPACE}")
    return ", ".join(left) or None
