"""status.devices of claims, written by the node process and as far as the API server allows it."""

from collections.abc import Iterator

import pytest

from dra_driver.core.errors import ForbiddenError, InvalidObjectError
from dra_driver.kube import paths
from dra_driver.node.process.claim_reports import MANAGER
from dra_driver.sim.apiserver.jsonvalue import Obj, entries
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.e2e.cluster import DRIVER, RealCluster, wait
from tests.e2e.forms import Forms, slice_of, whole
from tests.e2e.gates import DRIVER_STATUS, PARTITIONS
from tests.e2e.host import Host
from tests.e2e.test_health import BACK_S, NEEDS_RESET, REQUIREMENTS, SHOWN_S
from tests.fakes import chart
from tests.rights.accounts import acting_as

__all__ = ["REQUIREMENTS"]  # of the fixture `requirements`
USER = "e2e-claim-status"
# The node process writes no claim's status where no right for it can be given.
pytestmark = pytest.mark.needs(DRIVER_STATUS)


@pytest.fixture
def forms(cluster: RealCluster, own_host: Host, namespace: str) -> Iterator[Forms]:
    process = own_host.process
    process.end()
    process.flags["claim_status"] = "true"
    own_host.restart()
    with Forms(cluster, namespace).cleared() as found:
        yield found
    process.end()
    del process.flags["claim_status"]
    own_host.restart()


@pytest.fixture
def rights(cluster: RealCluster) -> Iterator[None]:
    """Those of the component, for a user of this test."""
    manifests = [
        obj for obj in chart.objects({"claimStatus": {"enabled": True}}) if "claim-status" in obj["metadata"]["name"]
    ]
    made = []
    for manifest in manifests:
        kind = f"{manifest['kind'].lower()}s"
        manifest["metadata"]["name"] += "-e2e"
        if "roleRef" in manifest:
            manifest["roleRef"]["name"] += "-e2e"
            manifest["subjects"] = [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]
        collection = f"/apis/rbac.authorization.k8s.io/v1/{kind}"
        cluster.rest.create(collection, manifest)
        made.append(f"{collection}/{manifest['metadata']['name']}")
    yield
    for path in made:
        cluster.rest.delete(path)


def claim_of(forms: Forms) -> Obj:
    (claim,) = forms.cluster.client.list(RESOURCE_CLAIMS, forms.namespace)
    return claim


def ready(forms: Forms) -> str:
    found = [each["conditions"][0]["status"] for each in entries(claim_of(forms), "status", "devices")]
    return found[0] if len(found) == 1 else f"{len(found)} devices"


def taints(forms: Forms) -> set[str]:
    return {str(taint["key"]) for device in forms.cluster.devices() for taint in entries(device, "taints")}


@pytest.mark.needs(PARTITIONS)
def test_a_claims_status_has_uuid_placement_and_health(forms: Forms, own_host: Host) -> None:
    forms.run("pod", slice_of("1g.10gb"), "true")
    wait(lambda: "" if ready(forms) == "True" else ready(forms), SHOWN_S)
    (device,) = entries(claim_of(forms), "status", "devices")
    assert (device["driver"], device["data"]["placement"]["profile"]) == (DRIVER, "1g.10gb")
    assert device["data"]["uuid"].startswith("MIG-")
    backend = own_host.hardware.backend()
    (gpu,) = [each for each in backend.snapshot().gpus if each.uuid == device["data"]["parentUUID"]]
    backend.inject(gpu.uuid, "xid=48")
    wait(lambda: "" if ready(forms) == "False" else ready(forms), SHOWN_S)
    wait(lambda: "" if NEEDS_RESET in taints(forms) else "no reset is asked for yet", SHOWN_S)
    backend.recover(gpu.uuid)
    wait(lambda: "" if ready(forms) == "True" else ready(forms), BACK_S)
    wait(lambda: str(taints(forms) or ""), BACK_S)


def test_the_components_rights_are_for_claims_of_the_own_node(
    forms: Forms, rights: None, kubeconfig: str, node: str
) -> None:
    forms.run("pod", whole(), "true")
    wait(lambda: "" if ready(forms) == "True" else ready(forms), SHOWN_S)
    claim = claim_of(forms)
    name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
    path = f"{paths.resource_claim(forms.namespace, name)}/status"
    written = entries(claim, "status", "devices")
    body: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": forms.namespace, "uid": uid},
        "status": {"devices": written},
    }
    assert acting_as(kubeconfig, USER, token_node=node).apply(path, body, MANAGER)["status"]["devices"]
    for other in ("", "node-of-another"):
        changed = {**body, "status": {"devices": [{**written[0], "data": {"by": other}}]}}
        with pytest.raises((ForbiddenError, InvalidObjectError)):
            acting_as(kubeconfig, USER, token_node=other).apply(path, changed, MANAGER)
    stolen = {**body, "status": {"reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]}}
    with pytest.raises((ForbiddenError, InvalidObjectError)):
        acting_as(kubeconfig, USER, token_node=node).apply(path, stolen, MANAGER)
