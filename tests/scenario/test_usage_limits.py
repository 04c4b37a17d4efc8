"""A claim over its grant on the embedded cluster: told by its node, evicted by the controller, and no other pod.

The exporter's file is written here; all else is real: node process, GpuNode, events, controller, Deployment.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import pytest

from dra_driver.config.usage_findings import encode
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_findings import IdleClaim, OverGrant, Unattributed, UsageFindings, UsingPod
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, GPU_NODES, PODS, RESOURCE_CLAIMS
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import is_ready
from tests.e2e.forms import deployment, pod_spec
from tests.scenario.conftest import ROOT, TIMEOUT_S, cluster_of, make_template, untold
from tests.unit.node.usage.claims import named

POLICY = ROOT / "examples" / "usage" / "shares-that-hold.yaml"
CONTROLLER_FLAGS = ["--evict-over-grant", "true", "--reclaim-idle", "true"]
EVICTED_S = 120.0
GIB = 2**30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of({"gpu-a": "1xa100-sxm4-40gb", "gpu-b": "4xa100-sxm4-40gb"}, policies=[POLICY]) as running:
        process = running.nodes["gpu-a"].process
        process.stop()
        process.command += ["--usage", "true"]
        process.start()
        running.wait_published()
        running.wait(lambda: None if gpus(running) else "no GPU in it", TIMEOUT_S, "the GpuNode")
        yield running


def deploy(cluster: Cluster, namespace: str, name: str) -> Obj:
    template = make_template(cluster, namespace, capacity={"requests": {"memory": "12Gi"}})
    spec = pod_spec(template, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    cluster.store.create(DEPLOYMENTS, deployment(name, spec), namespace=namespace)
    cluster.wait(lambda: None if ready(cluster, namespace, name) else "no pod", TIMEOUT_S, f"{name} to run")
    (found,) = ready(cluster, namespace, name)
    return found


def ready(cluster: Cluster, namespace: str, name: str) -> list[Obj]:
    pods = [
        each for each in cluster.store.list(PODS, namespace).items if dig(each, "metadata", "labels", "app") == name
    ]
    return [each for each in pods if is_ready(each) and dig(each, "metadata", "deletionTimestamp") is None]


def claim_of(cluster: Cluster, pod: Obj) -> ClaimRef:
    name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    namespace = pod["metadata"]["namespace"]
    uid = cluster.store.get(RESOURCE_CLAIMS, name, namespace)["metadata"]["uid"]
    return ClaimRef(namespace=namespace, name=name, uid=ClaimUid(uid))


def find(cluster: Cluster, *over: tuple[ClaimRef, Obj], idle: ClaimRef | None = None) -> None:
    """What the exporter of gpu-a writes: claims whose pods have 20 GiB, an idle claim, and a process of no claim."""
    now = datetime.now(UTC)
    found = [
        OverGrant(
            **named(claim),
            device="gpu-0",
            pods=(UsingPod(namespace=claim.namespace, name=pod["metadata"]["name"], uid=pod["metadata"]["uid"]),),
            used_bytes=20 * GIB,
            grant_bytes=12 * GIB,
            processes=1,
            since=now,
            action=OverGrantAction.EVICT,
        )
        for claim, pod in over
    ]
    other = Unattributed(
        gpu_uuid=gpus(cluster)[0]["uuid"], device="x", processes=1, bytes=GIB, since=now, commands=("miner",)
    )
    unused = () if idle is None else (IdleClaim(**named(idle), since=now),)
    findings = UsageFindings(written=now, over_grant=tuple(found), unattributed=(other,), idle=unused)
    folder = cluster.nodes["gpu-a"].folders.plugins / DRIVER / "usage" / "findings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_bytes(encode(findings))
    (folder / "new").rename(folder / "findings.json")


def gpus(cluster: Cluster) -> list[Obj]:
    found = cluster.store.find(GPU_NODES, "gpu-a")
    return entries(found, "status", "gpus") if found is not None else []


def usage(cluster: Cluster) -> Obj:
    found: Obj = cluster.store.get(GPU_NODES, "gpu-a")["status"].get("usage") or {}
    return found


def await_replacement(cluster: Cluster, namespace: str, name: str, former: Obj) -> None:
    """Wait until the pod was evicted, its Deployment has another, and the former pod's events say why."""

    def complaint() -> str | None:
        running = ready(cluster, namespace, name)
        same = [each for each in running if each["metadata"]["uid"] == former["metadata"]["uid"]]
        return "it still runs" if same or not running else None

    cluster.wait(complaint, EVICTED_S, f"{name} to be evicted and made again")
    told_it = partial(untold, cluster, former["metadata"]["name"], "GpuEvictionAnnounced", "GpuEviction")
    cluster.wait(told_it, TIMEOUT_S, "the pod's events")


def test_a_claim_over_its_grant_is_evicted_and_no_other(
    cluster: Cluster, namespace: str, controller: ControllerSubprocess
) -> None:
    greedy, fine = (deploy(cluster, namespace, name) for name in ("greedy", "fine"))
    foreign = ClaimRef(namespace=namespace, name="of-gpu-b", uid=ClaimUid("0"))
    find(cluster, (claim_of(cluster, greedy), greedy), (foreign, fine))
    cluster.wait(lambda: None if usage(cluster) else "no findings", TIMEOUT_S, "the GpuNode to tell")
    (told,) = usage(cluster)["overGrant"]
    assert (told["claim"], told["used"], told["granted"]) == (claim_of(cluster, greedy).name, "20Gi", "12Gi")
    assert usage(cluster)["unattributed"][0]["commands"] == ["miner"]
    told_node = partial(untold, cluster, "gpu-a", "GpuMemoryOverGrant", "GpuUsedByOthers")
    cluster.wait(told_node, TIMEOUT_S, "the Node's events")
    await_replacement(cluster, namespace, "greedy", greedy)
    assert [each["metadata"]["uid"] for each in ready(cluster, namespace, "fine")] == [fine["metadata"]["uid"]]
    # The file still names the claim that has ended: the node no longer passes it on.
    cluster.wait(lambda: str(usage(cluster)) if usage(cluster).get("overGrant") else None, TIMEOUT_S, "the entry to go")
    assert controller.is_running


@pytest.mark.slow  # a minute is the shortest time after which a policy calls a claim idle
def test_an_idle_claim_is_reclaimed_and_no_other(
    cluster: Cluster, namespace: str, controller: ControllerSubprocess
) -> None:
    sleepy, fine = (deploy(cluster, namespace, name) for name in ("sleepy", "fine"))
    find(cluster, idle=claim_of(cluster, sleepy))
    await_replacement(cluster, namespace, "sleepy", sleepy)
    assert [each["metadata"]["uid"] for each in ready(cluster, namespace, "fine")] == [fine["metadata"]["uid"]]
    assert controller.is_running
