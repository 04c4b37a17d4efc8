"""Rights that deploy/chart grants: every request of a node process and of the roles for people is granted, nothing
dangerous is."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands.usage_source import ask_exporters
from dra_driver.kubectl.drain.run import EVICT, needed_rights
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes import chart
from tests.fakes.dra_objects import gpu, resource_slice
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import NodeProcess
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.claims_api import ClaimMaker, ensure_namespace

NODE, DRIVER = "node-a", "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture(params=["dra-driver", "gpu-driver"])
def rules(request: pytest.FixtureRequest) -> Rules:
    objects = chart.objects(namespace=request.param)
    return Rules(objects, account="dra-driver-node", namespace=request.param)


@pytest.fixture(scope="module")
def requests_of_a_node_process() -> Iterator[list[tuple[str, str]]]:
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    api = ApiServer()
    api.start()
    process = None
    try:
        kubeconfig = api.kubeconfig(folder / "admin.conf")
        rest = RestClient(Connection.load(str(kubeconfig)))
        rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        for name in ("a", "b", "c"):  # slices of an earlier run: some are updated, surplus ones are deleted
            rest.create(SLICES, resource_slice(NODE, gpu("gpu-0"), name=name))
        policies = folder / "policies"
        policies.mkdir()
        with RecordingProxy(kubeconfig) as proxy:
            process = NodeProcess(
                folder, kubeconfig=str(proxy.kubeconfig(folder / "proxied.conf")), policy_dir=str(policies)
            )
            process.start()
            prepare_a_claim(rest, process)
            edit_a_slice(rest)
            process.wait_for(lambda: any(method == "PUT" for method, _ in proxy.requests))
            (policies / "wrong.yaml").write_text("kind: Nonsense\n")
            lose_the_journal(process)
            process.wait_for(lambda: sum("/resourceclaims/" in path for _, path in proxy.requests) > 1)
            process.wait_for(lambda: any("/events" in path for _, path in proxy.requests))
            yield list(proxy.requests)
    finally:
        if process is not None:
            process.kill()
        api.stop()
        shutil.rmtree(folder, ignore_errors=True)


def prepare_a_claim(rest: RestClient, process: NodeProcess) -> None:
    process.wait_for(process.registration.exists)
    register(process.registration)
    process.wait_for(lambda: any("gpu-1" in str(item["spec"]) for item in rest.list(SLICES)["items"]))
    ensure_namespace(rest)
    claim = ClaimMaker(rest, node=NODE, driver=DRIVER).make(0)
    with dial(process.dra) as channel:
        answer = DraClient(channel).prepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
    assert answer.claims[claim["uid"]].error == ""


def edit_a_slice(rest: RestClient) -> None:
    edited = next(item for item in rest.list(SLICES)["items"] if item["spec"].get("devices"))
    edited["spec"]["devices"].pop()
    rest.update(f"{SLICES}/{edited['metadata']['name']}", edited)


def lose_the_journal(process: NodeProcess) -> None:
    process.kill()
    for path in process.dra.parent.glob("state.db*"):
        path.unlink()
    process.start()


def test_every_request_of_a_node_process_is_granted(
    rules: Rules, requests_of_a_node_process: list[tuple[str, str]]
) -> None:
    asked = {access for request in requests_of_a_node_process if (access := Access.of_request(*request)) is not None}
    made = {(access.verb, access.resource) for access in asked}
    slices = {(verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")}
    nodes = {("get", "nodes"), ("list", "nodes"), ("watch", "nodes")}
    others = {("get", "resourceclaims"), *nodes, ("create", "events")}
    assert made >= slices | others, "the node process did not do everything that it does"
    assert [access for access in asked if not rules.allow(access)] == []


@pytest.mark.parametrize(
    "access",
    [
        Access(verb="patch", group="resource.k8s.io", resource="resourceclaims/status", namespace="default", name="x"),
        Access(verb="update", group="resource.k8s.io", resource="resourceclaims/status", namespace="default", name="x"),
        Access(verb="update", group="resource.k8s.io", resource="resourceclaims", namespace="default", name="x"),
        Access(verb="list", group="resource.k8s.io", resource="resourceclaims"),
        Access(verb="list", group="resource.k8s.io", resource="resourceclaims", namespace="default"),
        Access(verb="watch", group="resource.k8s.io", resource="resourceclaims"),
        Access(verb="deletecollection", group="resource.k8s.io", resource="resourceslices"),
        Access(verb="create", group="", resource="events", namespace="kube-system"),
        Access(verb="get", group="", resource="secrets", namespace="dra-driver", name="x"),
        Access(verb="create", group="", resource="pods", namespace="dra-driver"),
        Access(verb="create", group="", resource="serviceaccounts/token", namespace="dra-driver", name="x"),
        Access(verb="patch", group="", resource="nodes", name=NODE),
    ],
    ids=lambda access: f"{access.verb}-{access.resource}",
)
def test_dangerous_rights_are_not_granted(rules: Rules, access: Access) -> None:
    """With the right to write claims' status one node's token bound another namespace's pod to itself."""
    assert not rules.allow(access)


def test_a_node_process_reads_its_own_node_alone(requests_of_a_node_process: list[tuple[str, str]]) -> None:
    """RBAC would let it read all of them: 1,000 nodes would send each process the status of all others."""
    own = (f"/api/v1/nodes/{NODE}", f"/api/v1/nodes?fieldSelector=metadata.name%3D{NODE}&")
    nodes = [url for _, url in requests_of_a_node_process if url.startswith("/api/v1/nodes")]
    assert nodes
    assert [url for url in nodes if not url.startswith(own)] == []


def test_events_may_be_written_and_counted_in_default(rules: Rules) -> None:
    """There the API server wants events about Nodes; a repeat patches the count of the first."""
    for verb in ("create", "patch"):
        assert rules.allow(Access(verb=verb, group="", resource="events", namespace="default"))


def test_a_drainer_has_the_rights_that_a_drain_names_and_no_others() -> None:
    objects = chart.objects({"drainer": {"enabled": True}})
    granted = {
        (verb, group, resource, each["metadata"].get("namespace", ""))
        for each in objects
        if each["metadata"]["name"] == "dra-driver-drainer"
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = (*needed_rights("gpu-a", reads_events=True), EVICT)
    assert granted == {
        (each.verb, each.group, "/".join(part for part in (each.resource, each.subresource) if part), each.namespace)
        for each in needed
    }


def test_view_reads_the_driver_s_cluster_wide_objects() -> None:
    role = chart.found(chart.objects(), "ClusterRole", "dra-driver-viewer")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    rules = {
        (group, resource) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }
    assert rules == {
        ("gpu.dra-driver.io", "gpunodes"),
        ("gpu.dra-driver.io", "gpupolicies"),
        ("resource.k8s.io", "resourceslices"),
        ("resource.k8s.io", "deviceclasses"),
    }
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_the_viewer_can_be_left_out() -> None:
    names = {each["metadata"]["name"] for each in chart.objects({"viewer": {"enabled": False}})}
    assert "dra-driver-viewer" not in names


NAMESPACE, USAGE_READER = "gpus", "dra-driver-usage-reader"


class Asked:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def list(self, path: str, query: object = None) -> dict[str, Any]:
        assert query == {"labelSelector": "app.kubernetes.io/component=exporter"}
        self.requests.append(("GET", path))
        return {"items": [{"metadata": {"name": "exporter-a"}, "spec": {"nodeName": "a"}}]}

    def get_all(self, paths: Any, *, within_s: float | None = None) -> Sequence[Any]:
        assert within_s is not None
        self.requests += [("GET", path) for path in paths]
        return [{"version": 1, "windowSeconds": 60, "claims": []} for _ in paths]


def test_a_usage_reader_has_the_rights_that_the_command_asks_and_no_others() -> None:
    api = Asked()
    assert ask_exporters(api, NAMESPACE) == UseReport(source="1 of 1 exporters", window_s=60.0, uses=[], gaps=())
    objects = chart.objects({"usageReader": {"enabled": True}}, NAMESPACE)
    assert chart.found(objects, "Role", USAGE_READER)["metadata"]["namespace"] == NAMESPACE
    asked = [access for request in api.requests if (access := Access.of_request(*request)) is not None]
    assert {(access.verb, access.resource) for access in asked} == chart.granted(objects, USAGE_READER)
    assert {access.namespace for access in asked} == {NAMESPACE}


def test_a_node_without_an_exporter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="in namespace gpus on node other: the exporter is off"):
        ask_exporters(Asked(), NAMESPACE, node="other")
