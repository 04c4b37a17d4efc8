"""What the credentials of one node can do to other nodes: deploy/base's RBAC and admission policy on a real API server.

Needs no node and no GPU, only an administrator who may impersonate. Requests carry the user that the API server would
find in the driver's token: the ServiceAccount, and the node to which Kubernetes binds the token of every pod.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import ForbiddenError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import DRIVER, ROOT

SUFFIX = os.urandom(3).hex()
OWN, OTHER = f"e2e-own-{SUFFIX}", f"e2e-other-{SUFFIX}"
NAMESPACE = f"e2e-access-{SUFFIX}"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:dra-driver-node"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/default/roles",
    "RoleBinding": f"{RBAC}/namespaces/default/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
ACTIVE_WITHIN_S = 30.0


class Impersonation(Connection):
    """The administrator's connection in the name of another user."""

    headers: Mapping[str, str] = {}

    def auth_headers(self) -> dict[str, str]:
        return {**super().auth_headers(), **self.headers}


def acting_as(kubeconfig: str, user: str, *, group: str = "", token_node: str = "") -> RestClient:
    """``token_node`` is the node to which the token is bound; none where it is empty."""
    connection = Impersonation.load(kubeconfig)
    assert isinstance(connection, Impersonation)
    connection.headers = {"Impersonate-User": user}
    if group:
        connection.headers = {**connection.headers, "Impersonate-Group": group}
    if token_node:
        extra = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"
        connection.headers = {**connection.headers, extra: token_node}
    return RestClient(connection)


def renamed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object under a name of this test run, for the ServiceAccount in this run's namespace."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(manifest))
    if copy["kind"] == "ServiceAccount":
        copy["metadata"]["namespace"] = NAMESPACE
        return copy
    copy["metadata"]["name"] += f"-{SUFFIX}"
    for subject in copy.get("subjects", ()):
        subject["namespace"] = NAMESPACE
    if "roleRef" in copy:
        copy["roleRef"]["name"] += f"-{SUFFIX}"
    if "policyName" in copy.get("spec", {}):
        copy["spec"]["policyName"] += f"-{SUFFIX}"
    return copy


@pytest.fixture(scope="module")
def admin(kubeconfig: str) -> Iterator[RestClient]:
    """The administrator, with deploy/base's rules and policy installed in a namespace of this run's own."""
    rest = RestClient(Connection.load(kubeconfig))
    manifests: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for name in ("rbac.yaml", "admission-policy.yaml"):
        manifests += [renamed(obj) for obj in yaml.safe_load_all((ROOT / "deploy" / "base" / name).read_text())]
    made: list[str] = []
    try:
        for manifest in manifests:
            rest.create(COLLECTIONS[manifest["kind"]], manifest)
            made.append(f"{COLLECTIONS[manifest['kind']]}/{manifest['metadata']['name']}")
        wait_until_active(acting_as(kubeconfig, ACCOUNT))
        yield rest
    finally:
        for item in rest.list(paths.resource_slices())["items"]:
            if item["metadata"]["name"].startswith(f"e2e-{SUFFIX}-"):
                rest.delete(paths.resource_slices(item["metadata"]["name"]))
        for path in reversed(made):
            rest.delete(path)


def wait_until_active(unbound: RestClient) -> None:
    """The API server reads a new policy a moment after it was created."""
    deadline = time.monotonic() + ACTIVE_WITHIN_S
    while "not bound to a node" not in refusal(lambda: create(unbound, OWN, f"{OWN}/{DRIVER}")):
        assert time.monotonic() < deadline, f"the policy was not active within {ACTIVE_WITHIN_S:g} s"
        time.sleep(0.2)


def refusal(request: Callable[[], object]) -> str:
    """The sentence with which a request was forbidden; empty when it was accepted."""
    try:
        request()
    except ForbiddenError as error:
        return str(error)
    return ""


def create(
    rest: RestClient, node: str, pool: str, *, driver: str = DRIVER, dry_run: bool = True, generation: int = 1_000_000
) -> dict[str, Any]:
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    metadata = {"generateName": f"e2e-{SUFFIX}-"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    return rest.create(paths.resource_slices(), body, dry_run=dry_run)


@pytest.fixture
def driver(admin: RestClient, kubeconfig: str) -> RestClient:
    """The node process on OWN."""
    return acting_as(kubeconfig, ACCOUNT, token_node=OWN)


@pytest.fixture
def kubelet(admin: RestClient, kubeconfig: str) -> RestClient:
    return acting_as(kubeconfig, f"system:node:{OWN}", group="system:nodes")


def test_the_driver_writes_and_deletes_its_own_slices(driver: RestClient) -> None:
    """The policy must not stop the driver's own work, dry runs for feature gates included."""
    made = create(driver, OWN, f"{OWN}/{DRIVER}", dry_run=False)
    made["spec"]["pool"]["generation"] += 1
    made = driver.update(paths.resource_slices(made["metadata"]["name"]), made)
    driver.delete(paths.resource_slices(made["metadata"]["name"]))
    create(driver, OWN, f"{OWN}/{DRIVER}/canary")
    assert "may not write the pool" in refusal(lambda: create(driver, OWN, f"{OWN}/{DRIVER}/canary", dry_run=False))


def test_a_nodes_token_cannot_write_into_the_pool_of_another_node(driver: RestClient) -> None:
    """A slice of a higher generation would replace all slices of the other node's pool."""
    said = refusal(lambda: create(driver, OWN, f"{OTHER}/{DRIVER}"))
    assert f"may not write the pool {OTHER}/{DRIVER}: its own is {OWN}/{DRIVER}" in said


def test_a_nodes_token_cannot_write_slices_of_another_node_or_driver(driver: RestClient) -> None:
    assert f"ResourceSlice of node {OTHER}" in refusal(lambda: create(driver, OTHER, f"{OTHER}/{DRIVER}"))
    said = refusal(lambda: create(driver, OWN, f"{OWN}/x.example", driver="x.example"))
    assert "may not change a ResourceSlice of driver x.example" in said


def test_a_nodes_token_cannot_delete_slices_of_another_node_or_driver(admin: RestClient, driver: RestClient) -> None:
    others = create(admin, OTHER, f"{OTHER}/{DRIVER}", dry_run=False)["metadata"]["name"]
    foreign = create(admin, OWN, f"{OWN}/x.example", driver="x.example", dry_run=False)["metadata"]["name"]
    residue = create(admin, OWN, f"{OTHER}/{DRIVER}", dry_run=False)["metadata"]["name"]
    assert f"ResourceSlice of node {OTHER}" in refusal(lambda: driver.delete(paths.resource_slices(others)))
    assert "of driver x.example" in refusal(lambda: driver.delete(paths.resource_slices(foreign)))
    driver.delete(paths.resource_slices(residue))  # what an attack left on the own node may go


def test_a_token_without_a_node_is_refused_with_that_reason(admin: RestClient, kubeconfig: str) -> None:
    """A user without ``extra`` at all gets the same sentence, not an evaluation error."""
    unbound = acting_as(kubeconfig, ACCOUNT)
    assert "this token is not bound to a node" in refusal(lambda: create(unbound, OWN, f"{OWN}/{DRIVER}"))


def test_kubelet_credentials_cannot_write_into_the_pool_of_another_node(kubelet: RestClient) -> None:
    """NodeRestriction checks nodeName alone."""
    assert "may not write the pool" in refusal(lambda: create(kubelet, OWN, f"{OTHER}/{DRIVER}"))
    create(kubelet, OWN, f"{OWN}/{DRIVER}")


def test_a_starting_kubelet_deletes_the_slices_of_all_drivers(admin: RestClient, kubelet: RestClient) -> None:
    """And other vendors' drivers that use the kubelet's credentials keep working."""
    create(kubelet, OWN, "any-pool", driver="x.example")
    create(admin, OWN, f"{OWN}/{DRIVER}", dry_run=False)
    create(admin, OWN, "any-pool", driver="x.example", dry_run=False)
    query = {"fieldSelector": f"spec.nodeName={OWN}"}
    for item in admin.list(paths.resource_slices(), query)["items"]:
        kubelet.delete(paths.resource_slices(item["metadata"]["name"]))
    assert admin.list(paths.resource_slices(), query)["items"] == []


def test_a_nodes_token_cannot_write_the_status_of_claims(driver: RestClient) -> None:
    """With Kubernetes up to 1.35 that right is enough to bind another namespace's pod to this node."""
    status = f"{paths.resource_claim('default', 'any')}/status"
    assert "cannot patch resource" in refusal(lambda: driver.merge_patch(status, {"status": {}}))


def test_a_nodes_token_cannot_forge_events_of_other_namespaces(driver: RestClient) -> None:
    """Events about Nodes live in ``default``, and the driver writes no others."""

    def record(namespace: str, kind: str) -> None:
        about = {"kind": kind, "name": OWN, **({} if kind == "Node" else {"namespace": namespace})}
        body = {"metadata": {"generateName": "e2e-"}, "involvedObject": about, "reason": "Test", "type": "Normal"}
        driver.create(paths.events(namespace), {"apiVersion": "v1", "kind": "Event", **body}, dry_run=True)

    assert 'in the namespace "kube-system"' in refusal(lambda: record("kube-system", "Pod"))
    record("default", "Node")


def test_dangerous_rights_are_not_granted(driver: RestClient) -> None:
    """Asked of the API server's own authorizer."""
    for verb, group, resource in (
        ("get", "", "secrets"),
        ("create", "", "pods"),
        ("create", "", "serviceaccounts/token"),
        ("update", "resource.k8s.io", "resourceclaims"),
        ("patch", "resource.k8s.io", "resourceclaims/status"),
        ("impersonate", "", "users"),
        ("deletecollection", "resource.k8s.io", "resourceslices"),
    ):
        name, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": name, "subresource": subresource}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        review = {**body, "spec": {"resourceAttributes": attributes}}
        answer = driver.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        assert not answer["status"]["allowed"], (verb, resource)
