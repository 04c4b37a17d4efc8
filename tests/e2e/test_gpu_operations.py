"""Guarded operations on a real kubelet: MIG mode of an A100 for unmodified pods, beside a pod on another GPU.

The reset of a simulated GPU is the driver's stand-in; everything else, such as the detach, the slices, the scheduler
and the containers, is real.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu_operation import OPERATION_ANNOTATION
from dra_driver.kube import paths
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import ROOT, RealCluster, containers, mark, wait
from tests.e2e.forms import Forms, whole
from tests.e2e.gates import EXTENDED, PARTITIONS, TAINTS
from tests.e2e.host import Host

REQUIREMENTS = Requirements(nodes=(("gpu-a", "2xa100-sxm4-40gb"),))
POLICY = (
    (ROOT / "examples/policies/a100-sevenths.yaml")
    .read_text()
    .replace('productNames: ["NVIDIA A100-*-40GB"]', "minors: [0]")
)
RESOURCE = "nvidia.com/mig-1g.5gb"
PARTS = 7
SOON_S = 60.0


@pytest.fixture
def switched_back(own_host: Host, forms: Forms, cluster: RealCluster, node_name: str) -> Iterator[None]:
    """The GPUs are as described again, so that the next test finds them."""
    with forms.cleared():
        yield
    (own_host.policies / "sevenths.yaml").unlink(missing_ok=True)
    for annotation in (DRAIN_ANNOTATION, OPERATION_ANNOTATION):
        mark(cluster, node_name, "annotations", annotation, None)
    with closing(own_host.hardware.backend()) as backend:
        on = any(backend.mig_mode(gpu.uuid) for gpu in backend.snapshot().gpus)
    if on:
        assert kubectl.main(["gpu", "mig-mode", f"{node_name}/gpu-0", "off", "--timeout", "2m"]) == 0


def names(cluster: RealCluster) -> list[str]:
    return sorted(str(device["name"]) for device in cluster.devices())


def of_gpu(host: Host, minor: int) -> Obj:
    uuid = next(gpu.uuid for gpu in host.hardware.as_described().gpus if gpu.minor == minor)
    request = whole()
    request["selectors"].append({"cel": {"expression": f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'}})
    return request


def unmodified(name: str) -> Obj:
    container = {
        "name": "main",
        "image": "ubuntu:24.04",
        "command": ["sh", "-c", "nvidia-smi -L; exec sleep 3600"],
        "resources": {"limits": {RESOURCE: "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


@pytest.mark.needs(PARTITIONS, TAINTS, EXTENDED)
def test_an_a100_with_mig_mode_off_runs_seven_unmodified_pods(
    cluster: RealCluster, own_host: Host, forms: Forms, namespace: str, switched_back: None
) -> None:
    """The mode of gpu-0 changes under a pod on gpu-1, which is not restarted."""
    assert names(cluster) == ["gpu-0", "gpu-1"]
    forms.run("neighbour", of_gpu(own_host, 1))
    before = containers(forms.get("neighbour"))

    own_host.put_policy("sevenths.yaml", POLICY)
    wanted = ["gpu-1", *(f"gpu-0-mig-1g5gb-19-{start}" for start in range(PARTS))]
    wait(lambda: None if names(cluster) == sorted(wanted) else f"devices {names(cluster)}", SOON_S)
    assert kubectl.main(["classes", "apply"]) == 0
    try:
        pods = [f"seventh-{number}" for number in range(PARTS)]
        cluster.apply([unmodified(name) for name in pods], namespace)
        forms.wait_ready(*pods)
        uuids = {forms.partition(name) for name in pods}
        assert len(uuids) == PARTS
        assert containers(forms.get("neighbour")) == before
        forms.delete(*pods)
    finally:
        cluster.rest.delete(f"{paths.device_classes()}/mig-1g.5gb.nvidia.com")


@pytest.mark.needs(TAINTS)
def test_a_gpu_in_use_is_left_alone_until_it_is_evicted(
    cluster: RealCluster, own_host: Host, forms: Forms, node_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forms.run("holder", of_gpu(own_host, 0))
    target = f"{node_name}/gpu-0"
    try:
        assert kubectl.main(["gpu", "reset", target, "--timeout", "5s"]) == 1
        assert "holder" in capsys.readouterr().out
        assert dig(forms.get("holder"), "status", "phase") == "Running"
        assert kubectl.main(["gpu", "reset", target, "--evict", "--force", "--timeout", "2m"]) == 0
        assert "the reset of" in capsys.readouterr().out
    finally:
        mark(cluster, node_name, "annotations", DRAIN_ANNOTATION, None)
