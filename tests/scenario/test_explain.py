"""``kubectl dra explain`` in the embedded cluster agrees with the scheduler there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.cluster import Cluster
from tests.scenario.conftest import TIMEOUT_S, Pods, make_template

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


def test_a_pod_that_waits_for_a_gpu_in_use_is_explained_and_starts_when_it_is_free(
    cluster: Cluster, namespace: str, pods: Pods
) -> None:
    template = make_template(cluster, namespace, selectors=[A100])
    pods.create("one", template=template)
    pods.create("two", template=template)
    pods.wait_ready("one", "two")
    pods.create("three", template=template)
    wait_rejected(cluster, pods, "three")
    found = explained(cluster, "pod/three", "-n", namespace)
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
    file = str(tmp_path / name)
    done = dra(cluster, "snapshot", file)
    assert done.returncode == 0, done.stderr
    assert explained(cluster, "pod/lost", "-n", namespace, "--cluster-state", file)["causes"] == live["causes"]
