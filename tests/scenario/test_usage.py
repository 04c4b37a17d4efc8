"""Three pods with shares of one GPU on the embedded cluster, seen by a real exporter, from annotation to /usage."""

import pytest

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import GPU_NODES, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.node.node_process import ExporterSubprocess
from tests.scenario.conftest import ROOT, TIMEOUT_S

EXAMPLE = ROOT / "examples" / "usage" / "three-shares.yaml"
POLICY = ROOT / "examples" / "usage" / "shares-that-hold.yaml"
CLUSTER = {"nodes": {"gpu-a": "1xa100-sxm4-40gb"}, "policies": [POLICY], "usage": True}
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
        used = {pod: device["usedBytes"] / GIB for pod, device in claims(exporter).items()}
        return None if used == wanted else f"{used}; {exporter.log_tail(3)}"

    wanted = {"modest": 8, "greedy": 20, "sleepy": 0}
    cluster.wait(lambda: seen(wanted), TIMEOUT_S, "the exporter to see all shares")
    (gpu,) = exporter.usage()["gpus"]
    assert (gpu["memoryClaimsBytes"], gpu["memoryUnattributedBytes"]) == (28 * GIB, 0)
    assert gpu["memoryUsedBytes"] == gpu["memoryClaimsBytes"] + gpu["memoryReservedBytes"]

    def told() -> str | None:
        usage = cluster.store.get(GPU_NODES, "gpu-a")["status"].get("usage") or {}
        return None if [each["used"] for each in usage.get("overGrant", ())] == ["20Gi"] else str(usage)

    cluster.wait(told, TIMEOUT_S, "the GpuNode to tell the share over its grant")
    node.restart_kubelet()
    cluster.wait_published()
    cluster.wait(lambda: seen(wanted), TIMEOUT_S, "the exporter to see all shares again")
    cluster.store.delete(PODS, "greedy", namespace)
    cluster.wait(lambda: seen({"modest": 8, "sleepy": 0}), TIMEOUT_S, "the ended claim to be gone")
