"""A chapter of the demonstration: ``kubectl dra explain`` for a pending pod, and the proof that it was right.

Holder pods leave one GPU of a model free on each node. A pod that needs two on one node waits, and starts once the
holders are deleted.
"""

from collections import Counter
from typing import Final

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import read_cluster
from dra_driver.kubectl.explain import explain, pod_subject, render
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.demo.chapter import WAIT_S, Say, make_pod, run_chapter
from dra_driver.sim.objects import is_ready

NAMESPACE: Final = "demo-pending"
_CLASS: Final = "gpu.nvidia.com"


def run(cluster: Cluster, say: Say) -> bool:
    """Run the chapter; returns whether the explanation was right."""
    say("--- why is my pod Pending?")
    return not run_chapter(cluster, say, NAMESPACE, lambda: _play(cluster, say))


def _play(cluster: Cluster, say: Say) -> None:
    model, counts = _most_common_model(cluster)
    holders = []
    for node, count in counts.items():
        holders.append(f"holder-{node}")
        _make_pod(cluster, holders[-1], model, max(count - 1, 1), node=node)
    cluster.wait(lambda: _unready(cluster, holders), WAIT_S, "the holder pods to run")
    _make_pod(cluster, "train", model, 2)
    cluster.wait(lambda: _not_reported(cluster), WAIT_S, "the scheduler to reject the pod")
    say(f"    All but one {model} of each node are used by {', '.join(holders)}; train needs two on one node.\n")
    state = read_cluster(RestClient(Connection.load(str(cluster.kubeconfig))), NAMESPACE)
    say(f"$ kubectl dra explain pod/train -n {NAMESPACE}")
    say(render(explain(state, pod_subject(state, NAMESPACE, "train"))))
    for name in holders:
        cluster.store.delete(PODS, name, NAMESPACE)
    cluster.wait(lambda: _unready(cluster, ["train"]), WAIT_S, "the pod to start once the holders are deleted")
    node = dig(cluster.store.get(PODS, "train", NAMESPACE), "spec", "nodeName")
    say(f"    The holders are deleted, and train runs on {node}.\n")


def _most_common_model(cluster: Cluster) -> tuple[str, Counter[str]]:
    """The model with the most whole GPUs, and its number on each node."""
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
    exactly = {"deviceClassName": _CLASS, "count": count, "selectors": [{"cel": {"expression": expression}}]}
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    make_pod(cluster, NAMESPACE, name, exactly, **spec)


def _unready(cluster: Cluster, names: list[str]) -> str | None:
    pods = {name: cluster.store.find(PODS, name, NAMESPACE) for name in names}
    return ", ".join(name for name, pod in pods.items() if pod is None or not is_ready(pod)) or None


def _not_reported(cluster: Cluster) -> str | None:
    conditions: list[Obj] = entries(cluster.store.get(PODS, "train", NAMESPACE), "status", "conditions")
    return (
        None
        if any(item.get("reason") == "Unschedulable" for item in conditions)
        else "the pod has no condition Unschedulable yet"
    )
