"""`kubectl dra smoke` on the embedded cluster: every form, what is busy, a broken node, and a run that is killed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import JOBS, PODS, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.kinds import NODES as NODES_KIND
from dra_driver.sim.cluster import Cluster
from tests.harness.shown import holds
from tests.scenario.conftest import TIMEOUT_S, Pods, cluster_of, make_template

NODES = {"gpu-a": "1xa30-24gb+mig,1xl4-24gb", "gpu-b": "2xl4-24gb"}
POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: shared}
spec: {select: {productNames: ["NVIDIA L4*"], minors: [1]}, sharing: {strategy: TimeSlicing}}
"""
LABEL = "gpu.dra-driver.io/smoke-run"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    policy = tmp_path_factory.mktemp("policy") / "shared.yaml"
    policy.write_text(POLICY)
    with cluster_of(NODES, policies=[policy]) as running:
        yield running


class Smoke:
    def __init__(self, cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.flags = ["smoke", "--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "--image", "example.com/x:1"]
        self._capsys = capsys

    def run(self, *flags: str) -> tuple[int, Any]:
        self._capsys.readouterr()
        status = kubectl.main([*self.flags, "-o", "json", *flags])
        return status, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def smoke(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> Smoke:
    return Smoke(cluster, namespace, capsys)


def of_runs(cluster: Cluster, namespace: str) -> list[str]:
    found: list[Obj] = [
        item for kind in (JOBS, PODS, RESOURCE_CLAIMS) for item in cluster.store.list(kind, namespace).items
    ]
    return [item["metadata"]["name"] for item in found if LABEL in (item["metadata"].get("labels") or {})]


def outcomes(report: Any) -> dict[tuple[str, str, str], str]:
    return {(item["node"], item["form"], item["profile"]): item["status"] for item in report["items"]}


def test_every_form_of_every_node_is_tried(cluster: Cluster, namespace: str, smoke: Smoke) -> None:
    status, report = smoke.run("--all-nodes")
    assert outcomes(report) == {
        ("gpu-a", "mig", "1g.6gb"): "ok",
        ("gpu-a", "mig", "1g.6gb+me"): "ok",
        ("gpu-a", "mig", "2g.12gb"): "ok",
        ("gpu-a", "mig", "2g.12gb+me"): "ok",
        ("gpu-a", "mig", "4g.24gb"): "ok",
        ("gpu-a", "shared", "TimeSlicing"): "ok",
        ("gpu-b", "gpu", ""): "ok",
        ("gpu-b", "shared", "TimeSlicing"): "ok",
    }
    assert (status, report["exitStatus"], report["left"]) == (0, 0, [])
    assert all(item["seen"] for item in report["items"])
    assert of_runs(cluster, namespace) == []


def test_what_is_in_use_is_not_tried(
    cluster: Cluster, namespace: str, smoke: Smoke, pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    selector = {"cel": {"expression": '!("sharingStrategy" in device.attributes["gpu.nvidia.com"])'}}
    template = make_template(cluster, namespace, selectors=[selector])
    pods.run("holder", template=template, on="gpu-b")
    status, report = smoke.run("--node", "gpu-b", "--kind", "gpu")
    assert status == 0
    assert [(item["status"], item["message"]) for item in report["items"]] == [
        ("not tried", "its only GPU is allocated")
    ]
    label = {"nvidia.com/gpu.present": "true"}
    cluster.store.create(NODES_KIND, {"metadata": {"name": "gpu-c", "labels": label}})
    assert kubectl.main([*smoke.flags, "--all-nodes"]) == 1
    holds("docs/smoke.md", "kubectl dra smoke --all-nodes", capsys.readouterr().out)
    cluster.store.delete(NODES_KIND, "gpu-c")
    pods.end("holder")


@contextmanager
def waiting(cluster: Cluster, namespace: str, smoke: Smoke, timeout_s: int) -> "Iterator[subprocess.Popen[str]]":
    more = ["--node", "gpu-b", "--kind", "gpu", "--timeout", str(timeout_s), "-o", "json"]
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *smoke.flags, *more]
    cluster.nodes["gpu-b"].process.stop()
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            cluster.wait(lambda: None if of_runs(cluster, namespace) else "no object yet", TIMEOUT_S, "the first try")
            yield running
            running.kill()
    finally:
        cluster.nodes["gpu-b"].process.start()
        cluster.wait_published()


def test_a_run_that_is_interrupted_deletes_its_objects(cluster: Cluster, namespace: str, smoke: Smoke) -> None:
    with waiting(cluster, namespace, smoke, 300) as running:
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 130
        assert json.loads(out)["interrupted"] is True
        cluster.wait(lambda: ", ".join(of_runs(cluster, namespace)) or None, TIMEOUT_S, "its objects to go")


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_nothing(cluster: Cluster, namespace: str, smoke: Smoke) -> None:
    """After SIGKILL the Job's deadline (40 s) ends the pod, and the Job is deleted 10 s later with all that it owns."""
    with waiting(cluster, namespace, smoke, 10) as running:
        running.kill()
        cluster.wait(lambda: ", ".join(of_runs(cluster, namespace)) or None, 50.0 + TIMEOUT_S, "its objects to go")


def test_leftovers_are_deleted_on_request(cluster: Cluster, namespace: str, smoke: Smoke) -> None:
    labels = {LABEL: "killed"}
    container = {"name": "nvidia-smi", "image": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    body = {"metadata": {"name": "dra-smoke-killed-1", "labels": labels}, "spec": {"template": template}}
    cluster.store.create(JOBS, body, namespace=namespace)
    status = kubectl.main([*smoke.flags, "--cleanup"])
    assert status == 0
    cluster.wait(lambda: ", ".join(of_runs(cluster, namespace)) or None, TIMEOUT_S, "its objects to go")


def test_an_unknown_node_is_wrong_usage(smoke: Smoke, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main([*smoke.flags, "--node", "gpu-z"]) == 2
    assert "node 'gpu-z' does not exist" in capsys.readouterr().err
    without_image = [flag for flag in smoke.flags if flag not in ("--image", "example.com/x:1")]
    assert kubectl.main(without_image) == 2
    assert "no DaemonSet dra-driver-node in namespace dra-driver" in capsys.readouterr().err
