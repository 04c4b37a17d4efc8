"""Policy files that change under a running node process, in the embedded cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import convert

from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import EVENTS, GPU_NODES, GPU_POLICIES, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.objects import is_ready
from tests.e2e.forms import policy
from tests.scenario.conftest import ROOT, TIMEOUT_S, cluster_of
from tests.scenario.conftest import devices as all_devices

POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: pool}
spec: %s
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "policies"
    made.mkdir()
    return made


@pytest.fixture
def cluster(folder: Path) -> Iterator[Cluster]:
    with cluster_of({"gpu-a": "1xh100-sxm5-80gb"}, policy_dir=folder) as running:
        yield running


def devices(cluster: Cluster) -> dict[str, Obj]:
    return {device["name"]: device for device in all_devices(cluster)}


def published(cluster: Cluster, wanted: set[str]) -> None:
    def complaint() -> str | None:
        found = set(devices(cluster))
        return None if found == wanted else f"{sorted(found)} are published"

    cluster.wait(complaint, TIMEOUT_S, f"{sorted(wanted)} alone to be published")


def shared(cluster: Cluster, strategy: str | None) -> None:
    def complaint() -> str | None:
        attributes = devices(cluster).get("gpu-0", {}).get("attributes", {})
        found = attributes.get("sharingStrategy", {}).get("string")
        return None if found == strategy else f"it is {found}"

    cluster.wait(complaint, TIMEOUT_S, f"gpu-0 to be published as {strategy or 'exclusive'}")


def test_policy_in_use_stays_until_the_gpu_is_free(cluster: Cluster, folder: Path) -> None:
    file = folder / "pool.yaml"
    file.write_text(POLICY % "{forms: {migProfiles: []}, sharing: {strategy: MPS}}")
    shared(cluster, "MPS")
    example = ROOT / "examples" / "shared-mps-three-pods.yaml"
    cluster.apply(example)
    names = ("share-small", "share-medium", "share-large")

    def unready() -> str | None:
        pods = [cluster.store.find(PODS, name, "default") for name in names]
        return None if all(pod and is_ready(pod) for pod in pods) else "not all run"

    cluster.wait(unready, TIMEOUT_S, "three shares")
    file.write_text(POLICY % "{availability: Hidden}")

    def undrained() -> str | None:
        taints = [taint["key"] for taint in devices(cluster).get("gpu-0", {}).get("taints") or ()]
        return None if taints == ["gpu.dra-driver.io/draining"] else f"its taints are {taints}"

    cluster.wait(undrained, TIMEOUT_S, "the GPU to be drained")
    shared(cluster, "MPS")
    assert unready() is None
    cluster.delete(example)
    published(cluster, set())


def test_an_invalid_policy_is_a_node_event_and_changes_nothing(cluster: Cluster, folder: Path) -> None:
    file = folder / "pool.yaml"
    file.write_text(POLICY % "{forms: {migProfiles: ['7g.*']}}")
    published(cluster, {"gpu-0", "gpu-0-mig-7g80gb-0-0"})
    file.write_text(POLICY % "{forms: {migProfile: ['1g.*']}}")

    def unmessages() -> str | None:
        messages = [e["message"] for e in cluster.store.list(EVENTS).items if e.get("reason") == "GpuPolicyProblem"]
        said = any("spec.forms.migProfile: unknown field" in text for text in messages)
        return None if said else f"messages: {messages}"

    cluster.wait(unmessages, TIMEOUT_S, "an event at the node")
    node = cluster.nodes["gpu-a"]
    node.process.kill()
    node.process.start()
    cluster.wait_published()
    published(cluster, {"gpu-0", "gpu-0-mig-7g80gb-0-0"})


@pytest.mark.slow
def test_policies_as_objects_change_what_is_published_and_gpu_nodes_say_so(cluster: Cluster) -> None:
    shared(cluster, None)
    cluster.client.create(policy("mps", sharing={"strategy": "MPS"}, forms={"migProfiles": []}), "")
    shared(cluster, "MPS")
    gpu_node(cluster, policies="mps", usedAs="1 Free", health="Healthy", gpus=1, problems=0)
    assert devices(cluster).keys() == {"gpu-0"}
    cluster.client.create(policy("time", sharing={"strategy": "TimeSlicing"}), "")
    gpu_node(cluster, policies="mps (Conflicting), time (Conflicting)")
    shared(cluster, "MPS")
    cluster.client.delete(GPU_POLICIES, "time", "")
    cluster.client.delete(GPU_POLICIES, "mps", "")
    shared(cluster, None)
    gpu_node(cluster, policies=None, problems=0)
    (stored,) = cluster.store.list(GPU_NODES).items
    (owner,) = stored["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", "gpu-a")
    convert(stored["status"], GpuNodeStatus)


def gpu_node(cluster: Cluster, **wanted: object) -> None:
    def complaint() -> str | None:
        items = cluster.store.list(GPU_NODES).items
        found = items[0].get("status", {}).get("summary", {}) if items else {}
        wrong = {name: found.get(name) for name, value in wanted.items() if found.get(name) != value}
        return f"it has {wrong}" if wrong or not items else None

    cluster.wait(complaint, TIMEOUT_S, f"the GpuNode to say {wanted}")
