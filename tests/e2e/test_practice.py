"""The examples from practice on a real cluster: every object is accepted, and the workloads run.

Images that test nodes do not have are replaced by ubuntu:24.04 with a stand-in: a web server that says ready for Triton
and Jupyter, the list of GPUs for PyTorch. Probes, rollouts and controllers are the cluster's own.
"""

import copy
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ForbiddenError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.published.listing import observed_devices
from dra_driver.sim.demo.expectations import read_expectations, unmet
from dra_driver.sim.demo.requirements import Requirements, group_examples, read_requirements
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import GONE_S, REACH_S, RealCluster, wait
from tests.e2e.gates import gates_of
from tests.fakes.practice import PRACTICE, Wire, job_of, needed_api, objects_of, pod_specs

PATHS = [path for group in group_examples(PRACTICE).values() for path in group]
RUN = [path for path in PATHS if path.stem != "quota-on-classes"]
PLURALS = {
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ResourceClaimTemplate": "resourceclaimtemplates",
}
SERVER = """
import socket
server = socket.create_server(("", {port}))
while True:
    client, _ = server.accept()
    client.recv(4096)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    client.close()
"""


def with_gates(path: Path) -> Any:
    return pytest.param(path, id=path.stem, marks=pytest.mark.needs(*gates_of(objects_of(path))))


PORTS = {"tritonserver": 8000, "jupyter": 8888}


@pytest.fixture
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def requirements(path: Path) -> Requirements:
    return read_requirements(path)


@pytest.fixture
def served(cluster: RealCluster, path: Path) -> None:
    if api := needed_api(path):
        try:
            cluster.rest.get(f"/apis/{api}")
        except NotFoundError:
            pytest.skip(f"this cluster does not serve {api}")


def collection(item: Wire, namespace: str) -> str:
    api = f"/apis/{item['apiVersion']}" if "/" in item["apiVersion"] else f"/api/{item['apiVersion']}"
    return f"{api}/namespaces/{namespace}/{PLURALS.get(item['kind'], item['kind'].lower() + 's')}"


def with_stand_ins(item: Wire) -> Wire:
    """The object with images that the node has, less memory, and pods that end at once, as the next test needs GPUs."""
    found = copy.deepcopy(item)
    for spec in pod_specs(found):
        spec["terminationGracePeriodSeconds"] = 1
    for container in (container for spec in pod_specs(found) for container in spec["containers"]):
        image = container["image"]
        if image == "ubuntu:24.04":
            continue
        port = next((port for part, port in PORTS.items() if part in image), None)
        serve = f"; exec python3 -c '{SERVER.format(port=port)}'" if port else ""
        container.update(image="ubuntu:24.04", command=["bash", "-c", f"nvidia-smi -L{serve}"])
        container.pop("args", None)
        container.pop("workingDir", None)
        container["resources"]["requests"] = {"cpu": "50m", "memory": "64Mi"}
    return found


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("path", [with_gates(path) for path in PATHS], indirect=True)
def test_the_api_server_accepts_every_object(cluster: RealCluster, namespace: str, path: Path) -> None:
    for item in objects_of(path):
        made = cluster.rest.create(f"{collection(item, namespace)}?dryRun=All&fieldValidation=Strict", item)
        assert made["metadata"]["name"] == item["metadata"]["name"]


@pytest.fixture
def ready(cluster: RealCluster, namespace: str) -> None:
    """The pods of a gang that found no node are looked at again after minutes only (1.36)."""
    assert namespace
    wait(lambda: ", ".join(item["metadata"]["name"] for item in cluster.nodes() if not is_ready(item)), GONE_S)


@pytest.mark.usefixtures("served", "ready")
@pytest.mark.parametrize("path", [with_gates(path) for path in RUN], indirect=True)
def test_the_workload_runs(cluster: RealCluster, namespace: str, path: Path) -> None:
    for item in objects_of(path):
        cluster.rest.create(collection(item, namespace), with_stand_ins(item))
        if item["kind"] == "CronJob":
            cluster.rest.create(collection({**job_of(item)}, namespace), with_stand_ins(job_of(item)))
    expectations = read_expectations(path)
    wait(lambda: _unmet(cluster, namespace, expectations), REACH_S)
    logs = cluster.logs(namespace)
    assert logs
    for pod, log in logs.items():
        seen = observed_devices(log)
        assert len(seen.partitions or seen.gpus) >= 1, f"{pod} sees nothing: {log}"


def _unmet(cluster: RealCluster, namespace: str, expectations: Any) -> str | None:
    complaint = unmet(expectations, cluster.client, namespace)
    return None if complaint is None else f"{complaint}; warnings: {cluster.warnings(namespace)}"


@pytest.mark.parametrize("path", [PATHS[0].with_name("quota-on-classes.yaml")], indirect=True, ids=["quota"])
def test_the_quota_counts_devices_of_claims(cluster: RealCluster, namespace: str, path: Path) -> None:
    for item in objects_of(path):
        cluster.rest.create(collection(item, namespace), item)

    def claim(name: str, class_name: str, count: int) -> None:
        exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        cluster.rest.create(paths.resource_claims(namespace), body)

    def counted(wanted: str) -> str | None:
        status = cluster.rest.get(f"/api/v1/namespaces/{namespace}/resourcequotas/gpus").get("status") or {}
        used = (status.get("used") or {}).get("gpu.nvidia.com.deviceclass.resource.k8s.io/devices")
        return None if used == wanted else f"{used} devices are counted"

    wait(lambda: counted("0"), 60.0)  # until then the API server lets everything pass
    claim("two", "gpu.nvidia.com", 2)
    wait(lambda: counted("2"), 60.0)
    with pytest.raises(ForbiddenError, match="exceeded quota: gpus"):
        claim("third", "gpu.nvidia.com", 1)
    with pytest.raises(ForbiddenError, match="exceeded quota: gpus"):
        claim("reserved", "gpu-reserved", 1)
    claim("slices", "mig.nvidia.com", 8)
