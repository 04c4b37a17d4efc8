"""What ``kubectl dra migrate`` prints, on a real cluster: it is accepted, and the pods run as they did before.

The gradual way is tried as far as one node allows: a resource in the Node's status stands for a device plugin.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_driver.core.errors import AlreadyExistsError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kubectl.migrate import Translation
from dra_driver.sim.demo import moving
from dra_driver.sim.demo.expectations import read_expectations
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import REACH_S, ROOT, SETTLE_S, RealCluster, wait
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES, TAINTS
from tests.e2e.host import Host
from tests.e2e.scenario import reached
from tests.unit.kubectl.migrate.helpers import NAMES, migrated, of_inputs

MANIFEST: Final = ROOT / moving.MANIFEST
CRD: Final = ROOT / "deploy/chart/files/crds/gpu.dra-driver.io_gpupolicies.yaml"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API: Final = {
    "GpuPolicy": "/apis/gpu.dra-driver.io/v1alpha1/gpupolicies",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "LimitRange": "/api/v1/namespaces/{}/limitranges",
}
POD: Final = """\
apiVersion: v1
kind: Pod
metadata: {name: moved}
spec:
  containers:
  - name: main
    image: ubuntu:24.04
    command: ["bash", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
NOTICED_S, BACK_S = 60.0, 240.0
"""A device plugin is noticed after 10 s, and believed to be gone after 60."""
REQUIREMENTS = Requirements(nodes=(("lab", "4xh100-sxm5-80gb"),))


@pytest.mark.needs(PARTITIONS)
def test_a_manifest_of_the_device_plugin_runs(cluster: RealCluster, namespace: str, tmp_path: Path) -> None:
    """Two whole H100 by product and memory, and a MIG device: logs list exactly what was allocated."""
    file = written(tmp_path, migrated(MANIFEST.read_text()))
    with reached(cluster, file, namespace, read_expectations(MANIFEST)) as home:
        assert {pod["metadata"]["name"] for pod in cluster.pods(home)} == {"train", "notebook"}


@pytest.mark.needs(EXTENDED, SHARES)  # the API server drops their fields
def test_everything_that_comes_out_is_accepted(cluster: RealCluster, namespace: str) -> None:
    """Of inputs with every field of every format: the API server would store each object, and loses no field of it."""
    accepted: set[str] = set()
    with policies_served(cluster):
        for name in NAMES:
            for value in of_inputs(name).objects:
                if value["kind"] in API and value["metadata"]["name"] != "odd":  # which no API server accepted before
                    stored(cluster, value, namespace)
                    accepted.add(value["kind"])
    assert accepted == set(API) - {"Pod"}


@pytest.mark.needs(TAINTS)
def test_a_node_changes_over_from_the_device_plugin(
    cluster: RealCluster, own_host: Host, namespace: str, node: str
) -> None:
    """While the plugin offers GPUs this driver offers none, and a translated pod waits; then it runs."""
    assert own_host is not None
    before = {device["name"] for device in devices(cluster)}
    objects = migrated(POD).objects
    try:
        with device_plugin(cluster, node):
            wait(lambda: f"{len(devices(cluster))} devices are published" if devices(cluster) else None, NOTICED_S)
            cluster.apply(objects, namespace)
            time.sleep(SETTLE_S)
            assert not is_ready(cluster.pod("moved", namespace))
        wait(lambda: None if {each["name"] for each in devices(cluster)} == before else "not offered again", BACK_S)
        wait(lambda: None if is_ready(cluster.pod("moved", namespace)) else "the pod does not run", REACH_S)
    finally:
        cluster.remove(objects, namespace)


@contextmanager
def device_plugin(cluster: RealCluster, node: str) -> Iterator[None]:
    """The Node's status says what a device plugin's would."""

    def offer(amount: str | None) -> None:
        resources = {"nvidia.com/gpu": amount}
        status = {"status": {"capacity": resources, "allocatable": resources}}
        cluster.rest.merge_patch(f"{paths.node(node)}/status", status)

    offer("4")
    try:
        yield
    finally:
        offer(None)


@contextmanager
def policies_served(cluster: RealCluster) -> Iterator[None]:
    """The CustomResourceDefinition of policies exists; it is removed again if it did not before."""
    definition = yaml.safe_load(CRD.read_text())
    name = definition["metadata"]["name"]
    made = True
    try:
        cluster.rest.create(CRDS, definition)
    except AlreadyExistsError:
        made = False
    try:
        wait(lambda: None if cluster.rest.list(API["GpuPolicy"]) else "not served", 30.0)
        yield
    finally:
        if made:
            with suppress(NotFoundError):
                cluster.rest.delete(f"{CRDS}/{name}")


def stored(cluster: RealCluster, value: dict[str, Any], namespace: str) -> None:
    """The API server would store the object with all that was written."""
    metadata = {**value["metadata"], "name": f"{value['metadata']['name']}-tried"}
    if "{}" in API[value["kind"]]:
        metadata["namespace"] = namespace
    sent = {**value, "metadata": metadata}
    found = cluster.rest.create(API[value["kind"]].format(namespace), sent, dry_run=True)
    missing = lost(sent["spec"], found["spec"], "spec")
    assert missing == [], f"{value['kind']} {metadata['name']}"


def lost(sent: Any, kept: Any, path: str) -> list[str]:
    """Paths of fields that were sent and not kept."""
    if isinstance(sent, dict):
        pairs = [(key, sent[key], kept.get(key) if isinstance(kept, dict) else None) for key in sent]
        return [each for key, one, other in pairs for each in lost(one, other, f"{path}.{key}")]
    if isinstance(sent, list):
        others = kept if isinstance(kept, list) and len(kept) == len(sent) else [None] * len(sent)
        return [each for at, one in enumerate(sent) for each in lost(one, others[at], f"{path}[{at}]")]
    return [path] if kept is None and sent is not None else []


def written(folder: Path, found: Translation) -> Path:
    file = folder / "migrated.yaml"
    file.write_text(yaml.safe_dump_all(found.objects, sort_keys=False))
    return file


def devices(cluster: RealCluster) -> list[Any]:
    return [device for item in cluster.slices() for device in item["spec"].get("devices") or ()]
