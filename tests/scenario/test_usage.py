"""Three shares of one GPU, seen by a real exporter: from annotation to /usage, and from a sample to an eviction."""

import json
from functools import partial

import pytest

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import GPU_NODES, PODS
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.node.node_process import ControllerSubprocess, ExporterSubprocess
from dra_driver.sim.objects import is_ready
from tests.scenario.conftest import ROOT, TIMEOUT_S, untold

EXAMPLE = ROOT / "examples" / "usage" / "three-shares.yaml"
POLICY = ROOT / "examples" / "usage" / "shares-that-hold.yaml"
NODE = "gpu-a"
CLUSTER = {"nodes": {NODE: "1xa100-sxm4-40gb"}, "policies": [POLICY], "usage": True}
GIB = 2**30


def claims(exporter: ExporterSubprocess) -> dict[str, Obj]:
    try:
        found = exporter.usage().get("claims", [])
    except RetryableError:
        return {}
    return {pod: claim["devices"][0] for claim in found for pod in claim["pods"]}


@pytest.mark.slow
def test_each_share_shows_its_own_use_and_the_gpu_adds_up(cluster: Cluster, namespace: str) -> None:
    cluster.apply(EXAMPLE, namespace)
    node = cluster.nodes["gpu-a"]
    assert node.exporter is not None
    exporter = node.exporter

    def seen(wanted: dict[str, int]) -> str | None:
        used = {pod: device["usedBytes"] for pod, device in claims(exporter).items()}  # None while it is unknown
        return None if used == {pod: gib * GIB for pod, gib in wanted.items()} else f"{used}; {exporter.log_tail(3)}"

    wanted = {"modest": 8, "greedy": 20, "sleepy": 0}
    cluster.wait(lambda: seen(wanted), TIMEOUT_S, "the exporter to see all shares")
    (gpu,) = exporter.usage()["gpus"]
    assert (gpu["memoryClaimsBytes"], gpu["memoryUnattributedBytes"]) == (28 * GIB, 0)
    assert gpu["memoryUsedBytes"] == gpu["memoryClaimsBytes"] + gpu["memoryReservedBytes"]

    def told() -> str | None:
        usage = ((cluster.store.find(GPU_NODES, "gpu-a") or {}).get("status") or {}).get("usage") or {}
        return None if [each["used"] for each in usage.get("overGrant", ())] == ["20Gi"] else str(usage)

    cluster.wait(told, TIMEOUT_S, "the GpuNode to tell the share over its grant")
    node.restart_kubelet()
    cluster.wait_published()
    cluster.wait(lambda: seen(wanted), TIMEOUT_S, "the exporter to see all shares again")
    cluster.store.delete(PODS, "greedy", namespace)
    cluster.wait(lambda: seen({"modest": 8, "sleepy": 0}), TIMEOUT_S, "the ended claim to be gone")


CONTROLLER_FLAGS = ["--evict-over-grant", "true"]
EVICTED_S = 120.0


def found_by_exporter(cluster: Cluster) -> list[str]:
    path = cluster.nodes[NODE].folders.plugins / DRIVER / "usage" / "findings" / "findings.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    return [pod["name"] for each in document.get("overGrant", ()) for pod in each["pods"]]


def told_by_node(cluster: Cluster) -> list[str]:
    status = (cluster.store.find(GPU_NODES, NODE) or {}).get("status") or {}
    return [pod["name"] for each in (status.get("usage") or {}).get("overGrant", ()) for pod in each["pods"]]


def pods_of(cluster: Cluster, namespace: str) -> dict[str, Obj]:
    return {each["metadata"]["name"]: each for each in cluster.store.list(PODS, namespace).items}


def differs(seen: object, wanted: object) -> str | None:
    return None if seen == wanted else str(seen)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_what_the_exporter_sees_evicts_one_pod_and_no_other(
    cluster: Cluster, namespace: str, controller: ControllerSubprocess
) -> None:
    """Each link is seen on the way: file, GpuNode, events of the node, announcement, eviction."""
    cluster.apply(EXAMPLE, namespace)

    def running() -> str | None:
        ready = sorted(name for name, pod in pods_of(cluster, namespace).items() if is_ready(pod))
        return differs(ready, ["greedy", "modest", "sleepy"])

    cluster.wait(running, TIMEOUT_S, "the pods to run")
    before = pods_of(cluster, namespace)
    cluster.wait(lambda: differs(found_by_exporter(cluster), ["greedy"]), TIMEOUT_S, "findings.json")
    cluster.wait(lambda: differs(told_by_node(cluster), ["greedy"]), TIMEOUT_S, "the GpuNode")
    for about, reason in (
        (NODE, "GpuMemoryOverGrant"),
        ("greedy", "GpuMemoryOverGrant"),
        ("greedy", "GpuEvictionAnnounced"),
    ):
        cluster.wait(partial(untold, cluster, about, reason), TIMEOUT_S, f"the event {reason} of {about}")
    cluster.wait(partial(untold, cluster, "greedy", "GpuEviction"), EVICTED_S, "the eviction")
    cluster.wait(
        lambda: differs(sorted(pods_of(cluster, namespace)), ["modest", "sleepy"]), TIMEOUT_S, "the pod to leave"
    )
    cluster.wait(lambda: differs(found_by_exporter(cluster), []), TIMEOUT_S, "the finding to end")
    for name, pod in pods_of(cluster, namespace).items():
        assert pod["metadata"]["uid"] == before[name]["metadata"]["uid"]
        assert is_ready(pod)
        assert "GpuEviction" not in str(untold(cluster, name, "any"))
    assert controller.is_running
