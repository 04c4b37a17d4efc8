"""What ``kubectl dra migrate`` prints, on a real cluster: it is accepted, and the pods run as they did before."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_driver.kubectl.migrate import Translation
from dra_driver.sim.demo.commands import MANIFEST as DEMO_MANIFEST
from dra_driver.sim.demo.expectations import read_expectations
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import ROOT, RealCluster, crd_served
from tests.e2e.forms import reached
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES
from tests.unit.kubectl.migrate.helpers import NAMES, migrated, of_inputs

MANIFEST: Final = ROOT / DEMO_MANIFEST
REQUIREMENTS: Final = Requirements(nodes=(("lab", "4xh100-sxm5-80gb"),))
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


@pytest.mark.needs(PARTITIONS)
def test_a_manifest_of_the_device_plugin_runs(cluster: RealCluster, namespace: str, tmp_path: Path) -> None:
    file = written(tmp_path, migrated(MANIFEST.read_text()))
    with reached(cluster, file, namespace, read_expectations(MANIFEST)) as home:
        assert {pod["metadata"]["name"] for pod in cluster.pods(home)} == {"train", "notebook"}


@pytest.mark.needs(EXTENDED, SHARES)  # the API server drops their fields
def test_everything_that_comes_out_is_accepted(cluster: RealCluster, namespace: str) -> None:
    accepted: set[str] = set()
    with crd_served(cluster.rest, "gpupolicies"):
        for name in NAMES:
            for value in of_inputs(name).objects:
                if value["kind"] in API and value["metadata"]["name"] != "odd":  # which no API server accepted before
                    stored(cluster, value, namespace)
                    accepted.add(value["kind"])
    assert accepted == set(API) - {"Pod"}


def stored(cluster: RealCluster, value: dict[str, Any], namespace: str) -> None:
    metadata = {**value["metadata"], "name": f"{value['metadata']['name']}-tried"}
    if "{}" in API[value["kind"]]:
        metadata["namespace"] = namespace
    sent = {**value, "metadata": metadata}
    found = cluster.rest.create(API[value["kind"]].format(namespace), sent, dry_run=True)
    missing = lost(sent["spec"], found["spec"], "spec")
    assert missing == [], f"{value['kind']} {metadata['name']}"


def lost(sent: Any, kept: Any, path: str) -> list[str]:
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
