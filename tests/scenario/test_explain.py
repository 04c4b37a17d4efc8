"""``kubectl dra explain`` agrees with the scheduler, and docs/explain.md shows what it prints."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import ClusterState, read_cluster, with_objects
from dra_driver.kubectl.explain import explain, explain_pods, pod_subject
from dra_driver.kubectl.explain.report import render
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import GPU_NODES, NODES, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo
from dra_driver.sim.demo import forms as demo_forms
from tests.scenario.conftest import ROOT, TIMEOUT_S, Pods, cluster_of, make_template

A100 = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].productName.contains("A100")'}}


def dra(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments]
    if "--cluster-state" not in arguments:
        command += ["--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def explained(cluster: Cluster, *arguments: str) -> Obj:
    done = dra(cluster, "explain", *arguments, "-o", "json")
    assert done.returncode in (0, 1), done.stderr
    found: Obj = json.loads(done.stdout)
    return found


def wait_rejected(cluster: Cluster, pods: Pods, name: str) -> None:
    def waiting() -> str | None:
        conditions = dig(pods.get(name), "status", "conditions", default=[])
        return None if any(item.get("reason") == "Unschedulable" for item in conditions) else "not yet"

    cluster.wait(waiting, TIMEOUT_S, f"the scheduler to reject {name}")


def post_autoscaler_event(cluster: Cluster, namespace: str, pod: str) -> None:
    """A Normal event, as cluster-autoscaler 1.36 writes it (tests/e2e/test_autoscaler.py)."""
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{pod}.1"}, "type": "Normal",
        "reason": "NotTriggerScaleUp", "message": "pod didn't trigger scale-up",
        "reportingComponent": "cluster-autoscaler",
        "involvedObject": {"kind": "Pod", "name": pod, "namespace": namespace},
    }  # fmt: skip
    rest = RestClient(Connection.load(str(cluster.kubeconfig)))
    rest.create(f"/api/v1/namespaces/{namespace}/events", event)


def test_a_pod_that_waits_for_a_gpu_in_use_is_explained_and_starts_when_it_is_free(
    cluster: Cluster, namespace: str, pods: Pods
) -> None:
    template = make_template(cluster, namespace, selectors=[A100])
    pods.create("one", template=template)
    pods.create("two", template=template)
    pods.wait_ready("one", "two")
    pods.create("three", template=template)
    wait_rejected(cluster, pods, "three")
    post_autoscaler_event(cluster, namespace, "three")
    found = explained(cluster, "pod/three", "-n", namespace)
    assert any(note.endswith("pod didn't trigger scale-up (docs/autoscalers.md)") for note in found["notes"])
    assert found["verdict"]["answer"] == "cannotFit"
    assert "2 devices match request gpu: 2 in use" in found["verdict"]["sentence"]
    assert found["scheduler"].startswith("0/2 nodes are available")
    (in_use,) = [reason for reason in found["requests"][0]["reasons"] if reason["code"] == "inUse"]
    assert sorted(seen.rpartition("(")[2] for seen in in_use["seen"]) == ["pod one)", "pod two)"]
    pods.delete("one")
    pods.wait_ready("three")
    assert explained(cluster, "pod/three", "-n", namespace)["verdict"]["answer"] == "running"


def test_a_manifest_explained_as_fitting_is_placed_when_applied(
    cluster: Cluster, namespace: str, pods: Pods, tmp_path: Path
) -> None:
    template = make_template(cluster, namespace, selectors=[A100], count=2)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "both"},
        "spec": {
            "containers": [{"name": "main", "image": "example.com/app:1", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        },
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(body))
    found = explained(cluster, "-f", str(file), "-n", namespace)
    assert (found["verdict"]["answer"], found["fittingNodes"]) == ("fits", ["gpu-a"])
    cluster.store.create(PODS, body, namespace=namespace)
    pods.wait_ready("both")
    assert dig(pods.get("both"), "spec", "nodeName") == "gpu-a"


@pytest.mark.parametrize("name", ["state.yaml", "state.json"])
def test_a_snapshot_gives_the_same_explanation_without_the_cluster(
    cluster: Cluster, namespace: str, pods: Pods, tmp_path: Path, name: str
) -> None:
    pods.create("lost", template="missing")
    live = explained(cluster, "pod/lost", "-n", namespace)
    assert [cause["code"] for cause in live["causes"]] == ["templateMissing"]
    cluster.wait(
        lambda: None if len(cluster.store.list(GPU_NODES).items) == 2 else "no GpuNodes", TIMEOUT_S, "GpuNodes"
    )
    file = str(tmp_path / name)
    done = dra(cluster, "snapshot", file)
    assert done.returncode == 0, done.stderr
    assert "2 gpunodes" in done.stdout
    assert explained(cluster, "pod/lost", "-n", namespace, "--cluster-state", file)["causes"] == live["causes"]


A, C = 'device.attributes["gpu.nvidia.com"]', 'device.capacity["gpu.nvidia.com"]'
HOPPER, AMPERE = f'{A}.architecture == "Hopper"', f'{A}.architecture == "Ampere"'
BLOCKS = re.findall(
    r"```console\n\$ kubectl dra explain (.*)\n((?s:.*?))```", (ROOT / "docs" / "explain.md").read_text()
)


def template(
    name: str, count: int = 1, *expressions: str, device_class: str = "gpu.nvidia.com", **capacity: str
) -> Obj:
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod(name: str, of_template: str, **spec: Any) -> Obj:
    container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": of_template}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": claims, **spec},
    }


@pytest.fixture(scope="module")
def printed() -> Iterator[dict[str, str]]:
    with cluster_of(dict(demo.NODES_OF_DEMO) | {"gpu-a": "4xa100-sxm4-40gb"}) as cluster:
        found = _printed(cluster)
    with cluster_of(demo_forms.NODES, policies=[ROOT / demo_forms.POLICY]) as cluster:
        yield found | _printed_of_forms(cluster)


class Outputs(dict[str, str]):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster

    def __call__(self, name: str, *objects: Obj, waits_for: str = "Unschedulable SchedulerError") -> None:
        for item in objects:
            self.cluster.client.create(item, "default")
        self.cluster.wait(lambda: _unsaid(self.cluster, name, waits_for), TIMEOUT_S, f"the scheduler to look at {name}")
        state = _state(self.cluster)
        self[f"pod/{name}"] = render(explain(state, pod_subject(state, "default", name)))


def _printed_of_forms(cluster: Cluster) -> dict[str, str]:
    outputs = Outputs(cluster)
    profile = f'{A}.profile == "1g.10gb"'
    outputs(
        "heidi", template("slices", 7, profile, device_class="mig.nvidia.com"), pod("heidi", "slices"),
        waits_for="Running",
    )  # fmt: skip
    outputs("ivan", template("whole", 1), pod("ivan", "whole"))
    outputs("judy", template("slice", 1, profile, device_class="mig.nvidia.com"), pod("judy", "slice"))
    for name in ("ivan", "judy", "heidi"):
        cluster.store.delete(PODS, name, "default")
    cluster.wait(lambda: ", ".join(cluster.leftovers()) or None, TIMEOUT_S, "the GPU to be free")
    outputs("kim", template("large", memory="50Gi", computePercent="70"), pod("kim", "large"), waits_for="Running")
    outputs("leo", template("small", memory="10Gi"), pod("leo", "small"))
    return outputs


def _printed(cluster: Cluster) -> dict[str, str]:
    outputs = Outputs(cluster)
    outputs("big", template("big", 1, f'{HOPPER} && {C}.memory.compareTo(quantity("80Gi")) >= 0'), pod("big", "big"))
    outputs("alice", template("seven", 7, HOPPER), pod("alice", "seven"), waits_for="Running")
    outputs("bob", template("pair", 2, HOPPER), pod("bob", "pair"))
    question = "pod/bob --with-node 2xh100-sxm5-80gb"
    outputs[question] = dra(cluster, "explain", *question.split(), "-n", "default").stdout
    outputs("carol", pod("carol", "gpus"), waits_for="")
    outputs("dora", template("dora", device_class="nvidia-gpu"), pod("dora", "dora"))
    outputs("eve", template("eve", 1, f"{A}.memoryBandwidth >= 3000"), pod("eve", "eve"))
    node = cluster.store.get(NODES, "gpu-a")
    node["spec"]["taints"] = [{"key": "team", "value": "research", "effect": "NoSchedule"}]
    cluster.store.update(NODES, node)
    outputs("frank", template("frank", 2), pod("frank", "frank"))
    with_grace = with_objects(_state(cluster), [template("grace", 1, AMPERE)])
    grace = pod("grace", "grace", tolerations=[{"key": "team", "operator": "Exists"}])
    outputs["-f grace.yaml"] = render(explain_pods(with_grace, [grace])[0])
    return outputs


def _state(cluster: Cluster) -> ClusterState:
    return read_cluster(RestClient(Connection.load(str(cluster.kubeconfig))), "default")


def _unsaid(cluster: Cluster, name: str, wanted: str) -> str | None:
    found = cluster.store.get(PODS, name, "default")
    reasons = [item.get("reason") for item in dig(found, "status", "conditions", default=[])]
    seen = {dig(found, "status", "phase"), *reasons}
    return None if not wanted or seen & set(wanted.split()) else f"{seen}"


def plain(text: str) -> str:
    return re.sub(r"-gpu-[a-z0-9]{5}\b", "-gpu-xxxxx", " ".join(text.split()))


def test_the_page_has_nine_causes_a_what_if_and_an_added_node() -> None:
    assert len(BLOCKS) == 11


@pytest.mark.parametrize(("arguments", "shown"), BLOCKS, ids=[arguments for arguments, _ in BLOCKS])
def test_the_page_shows_real_output(printed: dict[str, str], arguments: str, shown: str) -> None:
    assert plain(shown) == plain(printed[arguments])
