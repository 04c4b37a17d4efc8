"""The examples for workload operators against the schemas of the operators' CRDs, on a real API server.

WORKLOAD_CRDS names a folder with the CRDs of JobSet, LeaderWorkerSet, KubeRay, Kubeflow Trainer and KServe as their
releases have them (tried: 0.12.0, 0.10.0, 1.7.0, 2.3.0, 0.20.0). No operator runs, and none of its webhooks.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dra_driver.core.errors import DraError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.loop import load
from tests.e2e.cluster import CRDS, RealCluster, unread, wait
from tests.fakes.practice import WORKLOADS, objects_of

pytestmark = pytest.mark.skipif(
    "WORKLOAD_CRDS" not in os.environ, reason="$WORKLOAD_CRDS is not set; it names a folder of CRDs"
)
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@pytest.fixture(scope="module")
def collections(cluster: RealCluster) -> Iterator[dict[str, str]]:
    """Paths of the collections by kind, served while the tests run."""
    made = [crd for path in sorted(Path(os.environ["WORKLOAD_CRDS"]).glob("*.yaml")) for crd in load(path)]
    found = {"ResourceClaimTemplate": TEMPLATES}
    for crd in made:
        cluster.rest.create(CRDS, {**crd, "spec": {**crd["spec"], "conversion": {"strategy": "None"}}})
    try:
        for crd in made:
            stored = next(version["name"] for version in crd["spec"]["versions"] if version["storage"])
            api = f"/apis/{crd['spec']['group']}/{stored}"
            found[crd["spec"]["names"]["kind"]] = f"{api}/namespaces/default/{crd['spec']['names']['plural']}"
            wait(partial(unread, cluster.rest, f"{api}/{crd['spec']['names']['plural']}"), 60.0)
        yield found
    finally:
        for crd in made:
            cluster.rest.delete(f"{CRDS}/{crd['metadata']['name']}")


def checked(cluster: RealCluster, collections: dict[str, str], item: Obj) -> Obj:
    return cluster.rest.create(f"{collections[item['kind']]}?dryRun=All&fieldValidation=Strict", item)


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_operators_schema_keeps_every_field(cluster: RealCluster, collections: dict[str, str], path: Path) -> None:
    for item in objects_of(path):
        made = checked(cluster, collections, item)
        assert made["apiVersion"] == item["apiVersion"]
        assert set(made["spec"]) >= set(item["spec"])


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_operators_schema_refuses_an_unknown_field(
    cluster: RealCluster, collections: dict[str, str], path: Path
) -> None:
    """The check above can fail: where a claim is misspelt, the operator would drop it."""
    item = objects_of(path)[-1]
    item["spec"]["resourceClaim"] = []
    with pytest.raises(DraError, match=r"unknown field \"spec\.resourceClaim\""):
        checked(cluster, collections, item)


def test_a_train_job_cannot_add_a_claim(cluster: RealCluster, collections: dict[str, str]) -> None:
    """The runtime of examples/workloads/trainjob.yaml has it for this reason."""
    item = objects_of(next(path for path in WORKLOADS if path.stem == "trainjob"))[-1]
    template = {"spec": {"template": {"spec": {"resourceClaims": [{"name": "gpus"}]}}}}
    job = {"name": "node", "template": template}
    item["spec"]["runtimePatches"] = [
        {"manager": "example.com/me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
    ]
    with pytest.raises(DraError, match=r"unknown field .*resourceClaims"):
        checked(cluster, collections, item)
