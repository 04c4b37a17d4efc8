"""The rights of opt-in parts on a real API server, as test_rights.py has those of the others: all that they ask is
allowed, nothing is granted that they do not ask, and what their tokens must not do is refused.

Needs a control plane only. With $E2E_RIGHTS_FILE the test writes the figures for docs/internals/rights.md.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.discovery import server_version
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.claim_reports import LEAST_MINOR
from tests.e2e.cluster import wait
from tests.fakes import chart
from tests.fakes.dra_objects import DRIVER
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.claims_api import NAMESPACE as CLAIMS
from tests.rights import forbidden
from tests.rights.accounts import Account, account_on, bound, installed, token
from tests.rights.lives import UsageControllerLife
from tests.rights.optional import Drainer, TellingNode
from tests.rights.request import Figures, Obj, Request, accesses, without_names

SUFFIX = os.urandom(3).hex()
OWN, OTHER, ELSEWHERE = (f"optional-{name}-{SUFFIX}" for name in ("own", "other", "elsewhere"))
NAMESPACE, TENANT = f"optional-{SUFFIX}", f"optional-tenant-{SUFFIX}"
WORLD = forbidden.World(own=OWN, other=OTHER, namespace=NAMESPACE, tenant=TENANT)
VALUES = {name: {"enabled": True} for name in ("claimStatus", "claimEvents", "drainer")}
VALUES |= {"eviction": {"overGrant": True}, "policyStatus": {"enabled": False}}
PART = "optional"
DRAINER = "rights-drainer"
ROLES: list[Obj] = [
    {"kind": "ClusterRole", "metadata": {"name": "dra-driver-drainer"}},
    {"kind": "Role", "metadata": {"name": "dra-driver-drainer", "namespace": "default"}},
]
SWITCHED_ON = ("dra-driver-claim-status", "dra-driver-claim-events")
"""Roles of the node process that two of these values add, and their bindings."""
NAMES = {OWN: "node-a", OTHER: "node-b", ELSEWHERE: "node-b", TENANT: "tenant", NAMESPACE: "dra-driver"}
plain = without_names(NAMES, SUFFIX)


@pytest.fixture(scope="module")
def manifests() -> list[Obj]:
    return [*chart.objects(VALUES, namespace=NAMESPACE), *bound(DRAINER, NAMESPACE, *ROLES)]


@pytest.fixture(scope="module")
def admin(kubeconfig: str, manifests: list[Obj]) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    if server_version(rest).minor < LEAST_MINOR:
        pytest.skip(f"the chart refuses claimStatus before Kubernetes 1.{LEAST_MINOR}")
    with installed(rest, manifests, NAMESPACE, SUFFIX):
        try:
            rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}})
            for name in (OWN, OTHER):
                rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            wait(lambda: "" if rest.get(paths.gpu_nodes()) else "GpuNodes are not served", 30.0)
            yield rest
        finally:
            clean(rest)


def clean(rest: RestClient) -> None:
    for item in rest.list(paths.resource_slices())["items"]:
        if item["spec"].get("nodeName") in (OWN, OTHER):
            rest.delete(paths.resource_slices(item["metadata"]["name"]))
    for name in (OWN, OTHER):
        for path in (paths.gpu_nodes(name), paths.node(name)):
            with suppress(NotFoundError):
                rest.delete(path)
    for name in (TENANT, CLAIMS):
        with suppress(NotFoundError):
            rest.delete(f"/api/v1/namespaces/{name}")


def test_a_node_process_tells_claims_with_the_rights_that_it_uses(
    admin: RestClient, kubeconfig: str, manifests: list[Obj], folder: Path, figures: Figures
) -> None:
    account = account_on(admin, "dra-driver-node", NAMESPACE, OWN)
    with RecordingProxy(account.kubeconfig(Path(kubeconfig), folder / "token.conf")) as proxy:
        node = TellingNode(folder, admin, proxy, OWN)
        asked = accesses(node.live())
    # The API server asks for this right itself, in a write of the status (pkg/registry/resource/utils.go).
    asked += [
        Access(verb="associated-node:patch", group=each.group, resource="resourceclaims/driver", name=DRIVER)
        for each in asked
        if (each.verb, each.resource) == ("patch", "resourceclaims/status")
    ]
    told = [each for each in asked if each.resource != "events" or each.namespace == CLAIMS]  # not those on the Node
    switched_on = [each for each in manifests if each["metadata"]["name"] in SWITCHED_ON]
    added, rules = (Rules(each, account=account.name, namespace=NAMESPACE) for each in (switched_on, manifests))
    assert proxy.refused == []
    figures.judge("node process that tells claims", rules, told, plain, added)
    rest = account.client(Path(kubeconfig), folder / "c")
    figures.refuse_all("a node process' token with these rights", rest, list(stolen_status(node.claim, admin)), plain)


def stolen_status(claim: dict[str, str], admin: RestClient) -> Iterator[Request]:
    path = f"{paths.resource_claim(claim['namespace'], claim['name'])}/status"
    stored = admin.get(path.removesuffix("/status"))["status"]
    written = stored["devices"][0]
    own, changed = stored["allocation"], {"by": "an intruder"}
    result = own["devices"]["results"][0]
    elsewhere = {**own, "nodeSelector": node_selector(ELSEWHERE)}
    for what, status in (
        ("move a claim to another node", {"allocation": elsewhere}),
        ("give a claim another device", {"allocation": {**own, "devices": {"results": [{**result, "device": "x"}]}}}),
        ("reserve a claim for another pod", {"reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]}),
        ("take a claim back", {"allocation": None, "devices": None, "reservedFor": None}),
        ("another driver's entry of a claim", {"devices": [{**written, "driver": "x.example"}]}),
    ):
        yield Request(what=what, verb="PATCH", path=path, body={"status": status})
    moved = admin.get(path.removesuffix("/status"))
    moved["status"]["allocation"] = elsewhere
    moved["status"]["devices"] = []
    other = another_claim(admin, moved)
    body = {"status": {"devices": [{**written, "pool": f"{ELSEWHERE}/{DRIVER}", "data": changed}]}}
    yield Request(what="the status of a claim of another node", verb="PATCH", path=f"{other}/status", body=body)
    for what, verb, where in (
        ("a claim's specification", "PATCH", path.removesuffix("/status")),
        ("list all claims", "GET", paths.resource_claims()),
    ):
        yield Request(what=what, verb=verb, path=where, body={"metadata": {"labels": {"by": "an intruder"}}})


def node_selector(node: str) -> Obj:
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeSelectorTerms": [here]}


def another_claim(admin: RestClient, like: Obj) -> str:
    body = {"apiVersion": like["apiVersion"], "kind": like["kind"], "spec": like["spec"]}
    made = admin.create(paths.resource_claims(CLAIMS), {**body, "metadata": {"generateName": "other-"}})
    path = paths.resource_claim(CLAIMS, made["metadata"]["name"])
    allocation = like["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    results = [{**result, "pool": f"{ELSEWHERE}/{DRIVER}"}]
    made["status"] = {"allocation": {**allocation, "devices": {"results": results}}}
    admin.update(f"{path}/status", made)
    return path


def test_a_drain_has_the_rights_that_it_uses(
    admin: RestClient, kubeconfig: str, manifests: list[Obj], folder: Path, figures: Figures
) -> None:
    account = Account(name=DRAINER, namespace=NAMESPACE, token=token(admin, DRAINER, NAMESPACE))
    with RecordingProxy(account.kubeconfig(Path(kubeconfig), folder / "token.conf")) as proxy:
        requests = Drainer(folder, admin, Path(kubeconfig), proxy, OTHER).live()
    rules = Rules(manifests, account=DRAINER, namespace=NAMESPACE)
    # Every authenticated user may ask what it may do.
    asked = [each for each in accesses(requests) if each.group != "authorization.k8s.io"]
    assert proxy.refused == []
    figures.judge("drainer", rules, asked, plain)
    rest = account.client(Path(kubeconfig), folder / "c")
    refused = [each for each in forbidden.of_a_controller(WORLD) if not may(rules, each)]
    assert len(refused) >= 40
    figures.refuse_all("a drainer's token", rest, refused, plain)


def test_a_controller_that_evicts_because_of_use_has_the_rights_that_it_uses(
    admin: RestClient, kubeconfig: str, manifests: list[Obj], folder: Path, figures: Figures
) -> None:
    account = account_on(admin, "dra-driver-controller", NAMESPACE, OTHER)
    with RecordingProxy(account.kubeconfig(Path(kubeconfig), folder / "token.conf")) as proxy:
        life = UsageControllerLife(folder, admin, proxy, lease=NAMESPACE, tenant=TENANT, node=OTHER, protected="stays")
        asked = accesses(life.live())
    rules = Rules(manifests, account=account.name, namespace=NAMESPACE)
    assert proxy.refused == []
    figures.judge("controller that evicts because of use", rules, asked, plain)
    rest = account.client(Path(kubeconfig), folder / "c")
    refused = [each for each in forbidden.of_a_controller(WORLD) if not may(rules, each)]
    assert len(refused) >= 40
    figures.refuse_all("the token of a controller that evicts because of use", rest, refused, plain)


def may(rules: Rules, request: Request) -> bool:
    """Whether the account's role is meant to allow it."""
    access = Access.of_request(request.verb, request.path)
    return access is not None and rules.allow(access)
