"""The rights of each process on a real API server.

All that it asks is allowed, nothing is granted that it does not ask, and what its token must not do is refused. Needs
no node and no GPU: the control plane alone, and an administrator. Tokens are those that a kubelet asks for, bound to a
pod and so to its Node. With $E2E_RIGHTS_FILE the figures are written for docs/internals/rights.md.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import wait
from tests.fakes import chart
from tests.fakes.dra_objects import DRIVER
from tests.fakes.rbac import Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.rights import forbidden
from tests.rights.accounts import Account, account_on, acting_as, installed, pod_on, token
from tests.rights.lives import ControllerLife, NodeLife, evictable_pods, is_leaving
from tests.rights.request import Figures, Obj, Request, accesses, without_names

SUFFIX = os.urandom(3).hex()
OWN, OTHER, IDLE = (f"rights-{name}-{SUFFIX}" for name in ("own", "other", "idle"))
NAMESPACE, TENANT = f"rights-{SUFFIX}", f"rights-tenant-{SUFFIX}"
WORLD = forbidden.World(own=IDLE, other=OTHER, namespace=NAMESPACE, tenant=TENANT)
VALUES = {"eviction": {"enabled": True}}
PART = ""
plain = without_names({IDLE: "node-a", OTHER: "node-b", TENANT: "tenant", NAMESPACE: "dra-driver"}, SUFFIX)


@pytest.fixture(scope="module")
def manifests() -> list[Obj]:
    return chart.objects(VALUES, namespace=NAMESPACE)


@pytest.fixture(scope="module")
def admin_file(kubeconfig: str) -> Path:
    return Path(kubeconfig)


@pytest.fixture(scope="module")
def admin(kubeconfig: str, manifests: list[Obj]) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    tenant = f"/api/v1/namespaces/{TENANT}"
    with installed(rest, manifests, NAMESPACE, SUFFIX):
        try:
            rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}})
            for name in (OWN, OTHER, IDLE):
                rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            wait(lambda: "" if rest.get(f"{tenant}/serviceaccounts/default") else "no account", 30.0)
            wait(lambda: "" if rest.get(paths.gpu_nodes()) else "GpuNodes are not served", 30.0)
            rest.create(paths.gpu_nodes(), forbidden.gpu_node(OTHER))
            rest.create(f"{tenant}/pods", pod_on(OTHER, "default", TENANT, "x"))
            rest.create(paths.resource_claims(TENANT), claim())
            for body in (
                forbidden.slice_of(OTHER, f"{OTHER}/{DRIVER}", name=f"rights-{OTHER}"),
                forbidden.slice_of(IDLE, f"{IDLE}/x.example", driver="x.example", name=f"rights-x-{IDLE}"),
            ):
                rest.create(paths.resource_slices(), body)
            yield rest
        finally:
            clean(rest)


def claim() -> Obj:
    request = {"name": "r", "exactly": {"deviceClassName": DRIVER}}
    body = {"metadata": {"name": "x"}, "spec": {"devices": {"requests": [request]}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body}


def clean(rest: RestClient) -> None:
    for item in rest.list(paths.resource_slices())["items"]:
        if item["spec"].get("nodeName") in (OWN, OTHER, IDLE) or item["metadata"]["name"].startswith("rights-"):
            rest.delete(paths.resource_slices(item["metadata"]["name"]))
    for item in rest.list(paths.gpu_nodes())["items"]:
        if item["metadata"]["name"] in (OWN, OTHER, IDLE):
            rest.delete(paths.gpu_nodes(item["metadata"]["name"]))
    for name in (OWN, OTHER, IDLE):
        rest.delete(paths.node(name))
    rest.delete(f"/api/v1/namespaces/{TENANT}")


@pytest.fixture(scope="module")
def account(admin: RestClient) -> Callable[[str, str], Account]:
    made: dict[tuple[str, str], Account] = {}

    def of(name: str, node: str) -> Account:
        if (name, node) not in made:
            made[name, node] = account_on(admin, name, NAMESPACE, node)
        return made[name, node]

    return of


def test_a_node_process_has_the_rights_that_it_uses(  # noqa: PLR0917 - fixtures
    admin: RestClient,
    admin_file: Path,
    manifests: list[Obj],
    account: Callable[[str, str], Account],
    folder: Path,
    figures: Figures,
) -> None:
    own = account("dra-driver-node", OWN)
    with RecordingProxy(own.kubeconfig(admin_file, folder / "token.conf")) as proxy:
        requests = NodeLife(folder, admin, proxy, OWN).live()
    rules = Rules(manifests, account=own.name, namespace=NAMESPACE)
    assert proxy.refused == []
    figures.judge("node process", rules, accesses(requests), plain)


def test_a_controller_has_the_rights_that_it_uses(  # noqa: PLR0917 - fixtures
    admin: RestClient,
    admin_file: Path,
    manifests: list[Obj],
    account: Callable[[str, str], Account],
    folder: Path,
    figures: Figures,
) -> None:
    own = account("dra-driver-controller", OTHER)
    if not evictable_pods(admin, TENANT, OTHER, "goes", "stays"):
        pytest.skip("this API server keeps no taints of devices, so that the controller evicts nothing")
    with RecordingProxy(own.kubeconfig(admin_file, folder / "token.conf")) as proxy:
        requests = ControllerLife(folder, admin, proxy, NAMESPACE).live(lambda: is_leaving(admin, TENANT, "goes"))
    rules = Rules(manifests, account=own.name, namespace=NAMESPACE)
    assert proxy.refused == []
    figures.judge("controller", rules, accesses(requests), plain)


def test_the_mps_host_has_no_token_and_no_rights() -> None:
    objects = chart.objects({"mpsHost": {"enabled": True}})
    (pod,) = [
        obj["spec"]["template"]["spec"]
        for obj in objects
        if obj["kind"] == "DaemonSet" and obj["metadata"]["name"] == "dra-driver-mps-host"
    ]
    assert pod["automountServiceAccountToken"] is False
    account = pod.get("serviceAccountName", "default")
    assert list(Rules(objects, account=account, namespace="dra-driver").grants()) == []


def test_a_node_token_is_refused_everything_else(
    admin_file: Path, account: Callable[[str, str], Account], tmp_path: Path, figures: Figures
) -> None:
    rest = account("dra-driver-node", IDLE).client(admin_file, tmp_path / "c")
    requests = forbidden.of_a_node(WORLD)
    assert len(requests) >= 40
    figures.refuse_all("a node process' token", rest, requests, plain)


def test_a_node_token_writes_its_own_slices(
    admin: RestClient, admin_file: Path, account: Callable[[str, str], Account], tmp_path: Path
) -> None:
    """The refusals above are not those of a policy that refuses everything: dry runs in the canary pool, and the
    deletion of what an attack left on the node, are allowed."""
    rest = account("dra-driver-node", IDLE).client(admin_file, tmp_path / "c")
    made = rest.create(paths.resource_slices(), forbidden.slice_of(IDLE, f"{IDLE}/{DRIVER}", name=f"rights-{IDLE}"))
    made["spec"]["pool"]["generation"] += 1
    rest.update(paths.resource_slices(f"rights-{IDLE}"), made)
    rest.delete(paths.resource_slices(f"rights-{IDLE}"))
    rest.create(paths.resource_slices(), forbidden.slice_of(IDLE, f"{IDLE}/{DRIVER}/canary"), dry_run=True)
    admin.create(paths.resource_slices(), forbidden.slice_of(IDLE, f"{OTHER}/{DRIVER}", name=f"rights-left-{IDLE}"))
    rest.delete(paths.resource_slices(f"rights-left-{IDLE}"))


def test_a_token_that_is_bound_to_no_pod_writes_no_slice(
    admin: RestClient, admin_file: Path, tmp_path: Path, figures: Figures
) -> None:
    loose = Account(name="dra-driver-node", namespace=NAMESPACE, token=token(admin, "dra-driver-node", NAMESPACE))
    body = forbidden.slice_of(IDLE, f"{IDLE}/{DRIVER}")
    request = Request(what="a slice of the own node", verb="POST", path=paths.resource_slices(), body=body)
    rest = loose.client(admin_file, tmp_path / "c")
    who = "a token of the account without a pod"
    figures.refuse_all(who, rest, [request], plain)
    assert "this token is not bound to a node" in figures.refused[who][0]["said"]


def test_a_controller_token_is_refused_everything_else(
    admin_file: Path, account: Callable[[str, str], Account], tmp_path: Path, figures: Figures
) -> None:
    rest = account("dra-driver-controller", OTHER).client(admin_file, tmp_path / "c")
    figures.refuse_all("the controller's token", rest, forbidden.of_a_controller(WORLD), plain)


def test_a_kubelets_credentials_are_refused_slices_of_others(
    admin: RestClient, kubeconfig: str, figures: Figures
) -> None:
    kubelet = acting_as(kubeconfig, f"system:node:{IDLE}", group="system:nodes")
    figures.refuse_all("a kubelet's credentials", kubelet, forbidden.of_a_kubelet(WORLD), plain)


def test_a_starting_kubelet_deletes_all_slices_of_its_node(admin: RestClient, kubeconfig: str) -> None:
    """As the kubelet does it: one DELETE of the collection, with its Node as field selector. Other vendors' drivers may
    publish with its credentials."""
    admin.create(paths.resource_slices(), forbidden.slice_of(IDLE, f"{IDLE}/{DRIVER}", name=f"rights-own-{IDLE}"))
    kubelet = acting_as(kubeconfig, f"system:node:{IDLE}", group="system:nodes")
    kubelet.create(paths.resource_slices(), forbidden.slice_of(IDLE, "any-pool", driver="x.example"))
    kubelet.delete(f"{paths.resource_slices()}?fieldSelector=spec.nodeName%3D{IDLE}")
    left = admin.list(paths.resource_slices(), {"fieldSelector": f"spec.nodeName={IDLE}"})["items"]
    assert left == []
    assert admin.get(paths.resource_slices(f"rights-{OTHER}"))
