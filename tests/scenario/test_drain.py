"""GPUs are drained for maintenance and given back by the commands that people use; second publishers come and go."""

import json
from typing import Any

import pytest

from dra_driver.kubectl.commands import kubectl
from dra_driver.node.process.node_follower import NAME
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.objects import is_ready
from tests.e2e.forms import deployment, pod_spec
from tests.scenario.conftest import ROOT, TIMEOUT_S, Pods, devices, make_template

NODE = "gpu-a"
POLICY = ROOT / "tests" / "e2e" / "policies" / "time-sliced-l4.yaml"
CLUSTER = {"nodes": {NODE: "3xh100-sxm5-80gb,1xl4-24gb"}, "policies": [POLICY]}
SHAREABLE = [{"cel": {"expression": "device.allowMultipleAllocations"}}]
EXCLUSIVE = [{"cel": {"expression": "!device.allowMultipleAllocations"}}]


class Commands:
    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._flags = ["--kubeconfig", str(cluster.kubeconfig), "-o", "json", "--timeout", "30s"]
        self._capsys = capsys

    def run(self, command: str, *flags: str) -> tuple[int, Any, str]:
        self._capsys.readouterr()
        status = kubectl.main([command, NODE, *self._flags, *flags])
        printed = self._capsys.readouterr()
        return status, json.loads(printed.out), printed.err


@pytest.fixture
def commands(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(cluster, capsys)


def tainted(cluster: Cluster) -> set[str]:
    found: dict[str, set[bool]] = {}
    for device in devices(cluster, NODE):
        keys = [taint["key"] for taint in device.get("taints") or ()]
        found.setdefault(device["name"].partition("-mig-")[0], set()).add("gpu.dra-driver.io/drained" in keys)
    assert all(len(answers) == 1 for answers in found.values()), found
    return {gpu for gpu, answers in found.items() if True in answers}


def test_a_node_is_drained_of_every_form_and_given_back(
    cluster: Cluster, commands: Commands, pods: Pods, namespace: str
) -> None:
    whole = make_template(cluster, namespace, selectors=EXCLUSIVE)
    pods.create("whole", template=whole)
    partition = make_template(cluster, namespace, deviceClassName="mig.nvidia.com")
    cluster.store.create(DEPLOYMENTS, deployment("partition", pod_spec(partition)), namespace=namespace)
    share = make_template(cluster, namespace, selectors=SHAREABLE, capacity={"requests": {"memory": "4Gi"}})
    pods.create("share", template=share)
    pods.wait_ready("whole", "share")  # before a pod that may get the shared GPU as a whole
    asks = {"name": "main", "image": "example.com/app:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.store.create(PODS, {"metadata": {"name": "extended"}, "spec": {"containers": [asks]}}, namespace=namespace)
    pods.wait_ready("extended")
    cluster.wait(lambda: None if len(running(cluster, namespace)) == 4 else "not all run", TIMEOUT_S, "four pods")

    status, report, steps = commands.run("drain", "--evict", "--timeout", "0")
    assert (status, report["result"], report["free"]) == (1, "failed", False)
    assert tainted(cluster) == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
    forms = {(holder["form"], holder["extendedResource"]) for holder in report["items"]}
    assert {form for form, _ in forms} <= {"whole", "share", "partition"}
    assert "extended resource): claim" in steps
    assert len(report["evicted"]) == 1, "the deployment's pod; the others have no controller"
    assert {item["pod"].rpartition("/")[2] for item in report["notEvicted"]} == {"whole", "share", "extended"}
    assert "--force" in report["notEvicted"][0]["reason"]
    assert "kubectl dra undrain gpu-a" in " ".join(report["nextSteps"])

    status, report, steps = commands.run("drain", "--evict", "--force")
    assert (status, report["result"]) == (0, "done"), report
    assert (report["free"], report["detached"], report["annotation"]) == (True, True, "all")
    assert "(unchanged)" in steps
    (successor,) = cluster.store.list(PODS, namespace).items
    assert not dig(successor, "spec", "nodeName"), "the deployment's next pod waits for the taint to go"
    assert commands.run("drain")[:1] == (0,), "it may be repeated"

    status, report, _ = commands.run("undrain")
    assert (status, report["result"], report["annotation"]) == (0, "done", None), report
    assert tainted(cluster) == set()
    pods.wait_ready(successor["metadata"]["name"])
    assert commands.run("undrain")[:1] == (0,), "it may be repeated"


def running(cluster: Cluster, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.store.list(PODS, namespace).items if is_ready(pod)]


@pytest.mark.slow
def test_one_gpu_is_drained_while_the_others_serve(
    cluster: Cluster, commands: Commands, pods: Pods, namespace: str
) -> None:
    template = make_template(cluster, namespace, selectors=EXCLUSIVE)
    pods.run("first", template=template)
    held = next(device for device in ("gpu-0", "gpu-1", "gpu-2") if device in str(cluster_claims(cluster, namespace)))
    free = "gpu-1" if held == "gpu-0" else "gpu-0"
    status, report, _ = commands.run("drain", "--gpu", free)
    assert (status, report["items"], report["detached"]) == (0, [], None), report
    assert tainted(cluster) == {free}
    assert commands.run("drain", "--gpu", held, "--timeout", "0")[0] == 1
    assert tainted(cluster) == {held, free}
    assert is_ready(pods.get("first"))
    status, report, _ = commands.run("undrain", "--gpu", held)
    assert (status, report["annotation"].startswith("GPU-")) == (0, True)
    assert tainted(cluster) == {free}
    uuid = report["annotation"]
    assert kubectl.main(["undrain", NODE, "--gpu", "gpu-9", "--kubeconfig", str(cluster.kubeconfig)]) == 2
    status, report, _ = commands.run("undrain", "--gpu", uuid)
    assert (status, report["annotation"], tainted(cluster)) == (0, None, set())


def cluster_claims(cluster: Cluster, namespace: str) -> list[Obj]:
    return [dig(claim, "status", "allocation") for claim in cluster.store.list(RESOURCE_CLAIMS, namespace).items]


def set_allocatable(cluster: Cluster, resources: dict[str, str]) -> None:
    node = cluster.store.get(NODES, NODE)
    plain = {name: amount for name, amount in node["status"]["allocatable"].items() if "nvidia.com" not in name}
    node["status"]["allocatable"] = plain | resources
    cluster.store.update_status(NODES, node)


@pytest.mark.slow
def test_devices_are_withdrawn_while_a_device_plugin_offers_the_same_gpus(
    cluster: Cluster, pods: Pods, namespace: str
) -> None:
    """After ten seconds; the GPU of a running pod stays, for what reads slices. A restart does not offer them again."""
    pods.run("holder", template=make_template(cluster, namespace, selectors=EXCLUSIVE))
    set_allocatable(cluster, {"nvidia.com/gpu": "4"})
    wait_withdrawn(cluster)
    assert is_ready(pods.get("holder"))
    process = cluster.nodes[NODE].process
    process.kill()
    process.start()
    cluster.wait_published()
    wait_withdrawn(cluster)
    set_allocatable(cluster, {"nvidia.com/gpu": "0"})
    pods.end("holder")
    start_without_the_note(cluster)
    cluster.wait(lambda: None if len(gpus(cluster)) == 4 else f"{gpus(cluster)}", TIMEOUT_S, "all devices")


def gpus(cluster: Cluster) -> set[str]:
    return {device["name"].partition("-mig-")[0] for device in devices(cluster, NODE)}


def start_without_the_note(cluster: Cluster) -> None:
    """Start the node process anew without its note of a second publisher, instead of waiting for a minute."""
    node = cluster.nodes[NODE]
    node.process.kill()
    (node.folders.plugins / DRIVER / NAME).unlink()
    node.process.start()


def wait_withdrawn(cluster: Cluster) -> None:
    def complaint() -> str | None:
        if len(gpus(cluster)) != 1:
            return f"published: {gpus(cluster)}"
        values = {taint.get("value") for device in devices(cluster, NODE) for taint in device.get("taints") or ()}
        if values != {"second-publisher"}:
            return f"taints: {values}"
        events = [
            event["message"] for event in cluster.store.list(EVENTS).items if event["reason"] == "SecondPublisher"
        ]
        return None if any("nvidia.com/gpu: 4" in message for message in events) else f"events: {events}"

    cluster.wait(complaint, TIMEOUT_S, "devices to be withdrawn")


def test_another_driver_that_publishes_the_same_gpu_is_a_second_publisher(cluster: Cluster) -> None:
    uuid = next(
        dig(device, "attributes", "uuid", "string") for device in devices(cluster, NODE) if device["name"] == "gpu-0"
    )
    pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "x", "attributes": {"uuid": {"string": uuid}}}
    spec = {"driver": "other.example", "nodeName": NODE, "pool": pool, "devices": [device]}
    made = cluster.store.create(RESOURCE_SLICES, {"metadata": {"name": "other"}, "spec": spec})

    def complaint() -> str | None:
        found = {device["name"] for device in devices(cluster, NODE)}
        return None if found == {"x"} else f"published: {sorted(found)[:4]}"

    cluster.wait(complaint, TIMEOUT_S, "this driver's devices to be withdrawn")
    cluster.store.delete(RESOURCE_SLICES, made["metadata"]["name"])
    start_without_the_note(cluster)
    cluster.wait(lambda: None if len(gpus(cluster)) == 4 else f"{gpus(cluster)}", TIMEOUT_S, "all devices")
