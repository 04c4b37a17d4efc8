"""Rights that deploy/chart grants: every request of a node process and of the roles for people is granted, nothing
dangerous is."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.controller.process import LEASE
from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands.usage_source import ask_exporters
from dra_driver.kubectl.drain.run import EVICT, needed_rights
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.sim.apiserver.kinds import NAMESPACES, POD_DISRUPTION_BUDGETS
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.controllers.workloads import DisruptionController
from tests.fakes import chart
from tests.fakes.dra_objects import gpu, resource_slice
from tests.fakes.extended_pods import is_leaving, make_slice, run_pod, taint_device
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.claims_api import ClaimMaker, ensure_namespace
from tests.rights.lives import UsageControllerLife

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


READER_NAMESPACE, USAGE_READER = "gpus", "dra-driver-usage-reader"


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
    assert ask_exporters(api, READER_NAMESPACE) == UseReport(source="1 of 1 exporters", window_s=60.0, uses=[], gaps=())
    objects = chart.objects({"usageReader": {"enabled": True}}, READER_NAMESPACE)
    assert chart.found(objects, "Role", USAGE_READER)["metadata"]["namespace"] == READER_NAMESPACE
    asked = [access for request in api.requests if (access := Access.of_request(*request)) is not None]
    assert {(access.verb, access.resource) for access in asked} == chart.granted(objects, USAGE_READER)
    assert {access.namespace for access in asked} == {READER_NAMESPACE}


def test_a_node_without_an_exporter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="namespace gpus on node other"):
        ask_exporters(Asked(), READER_NAMESPACE, node="other")


NAMESPACE, ACCOUNT = "dra-driver", "dra-driver-controller"
REPEATS = {("patch", "events")}  # a repeat within 10 s waits, see kube/events.py


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return chart.objects({"eviction": {"enabled": True}})


@pytest.fixture
def deployment() -> dict[str, Any]:
    spec: dict[str, Any] = chart.found(chart.objects(), "Deployment", ACCOUNT)["spec"]
    return spec


def test_two_replicas_and_a_budget_that_lets_one_go(objects: list[dict[str, Any]], deployment: dict[str, Any]) -> None:
    assert deployment["replicas"] == 2
    (budget,) = [obj for obj in objects if obj["kind"] == "PodDisruptionBudget"]
    assert budget["spec"] == {"maxUnavailable": 1, "selector": deployment["selector"]}
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items()


def test_the_pod_meets_the_restricted_profile(deployment: dict[str, Any]) -> None:
    """Pod Security Standards, profile restricted; and it mounts nothing."""
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert not {"volumes", "hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_every_setting_is_known_and_nothing_is_evicted_as_delivered(deployment: dict[str, Any]) -> None:
    (container,) = deployment["template"]["spec"]["containers"]
    variables = {item["name"]: item.get("value", "x") for item in container["env"]}
    assert variables.keys() <= {flag.env for flag in flags_of(ControllerSettings)}
    settings = load(ControllerSettings, {}, variables)
    assert not settings.evict_extended_resource_pods
    pod = chart.pod_spec(chart.objects({"eviction": {"enabled": True}}), "Deployment", ACCOUNT)
    assert chart.environment(pod)["EVICT_EXTENDED_RESOURCE_PODS"] == "true"
    port = container["ports"][0]["containerPort"]
    assert settings.http_addr == f":{port}"
    probes = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert probes == [{"path": "/readyz", "port": "http"}, {"path": "/healthz", "port": "http"}]


@pytest.fixture(scope="module")
def requests_of_a_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("controller")
    api = ApiServer()
    api.start()
    process = None
    try:
        prepare(api)
        with RecordingProxy(api.kubeconfig(folder / "admin.conf")) as proxy:
            flags: dict[str, str | None] = {
                "kubeconfig": str(proxy.kubeconfig(folder / "proxied.conf")),
                "grace": "0",
                "max_evictions_per_minute": "600",
                "evict_extended_resource_pods": "true",
                "lease_duration": "3",
            }
            process = DriverProcess("controller", folder, flags).start()
            process.wait_for(lambda: is_leaving(api.store, "goes"))
            process.wait_for(lambda: sum("/events" in path for _, path in proxy.requests) >= 2)
            assert process.end()[0] == 0
            yield list(proxy.requests)
    finally:
        if process is not None:
            process.kill()
        api.stop()


def prepare(api: ApiServer) -> None:
    store = api.store
    store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    make_slice(store, 20)
    run_pod(store, "goes", 1)
    run_pod(store, "stays", 1, labels={"app": "a"})
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}}
    store.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
    DisruptionController(store).step()
    taint_device(store, 1)


def test_the_account_has_the_rights_that_are_used_and_no_others(
    objects: list[dict[str, Any]], requests_of_a_controller: list[tuple[str, str]]
) -> None:
    rules = Rules(objects, account=ACCOUNT, namespace=NAMESPACE)
    asked = {access for request in requests_of_a_controller if (access := Access.of_request(*request)) is not None}
    assert [access for access in asked if not rules.allow(access)] == []
    used = {(access.verb, access.resource) for access in asked}
    # Without the CustomResourceDefinitions both lists are answered with 404, and nothing more is asked.
    policies = {("watch", "gpunodes"), ("watch", "gpupolicies"), ("update", "gpupolicies/status")}
    assert chart.granted(objects, ACCOUNT) == used | REPEATS | policies


@pytest.mark.parametrize(("namespace", "name"), [(NAMESPACE, "other"), ("kube-system", LEASE)])
def test_no_other_lease_is_granted(objects: list[dict[str, Any]], namespace: str, name: str) -> None:
    rules = Rules(objects, account=ACCOUNT, namespace=NAMESPACE)
    for verb in ("get", "update"):
        access = Access(verb=verb, group="coordination.k8s.io", resource="leases", namespace=namespace, name=name)
        assert not rules.allow(access)


TENANT = "team"


@pytest.fixture(scope="module")
def requests_for_use(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("controller")
    api = ApiServer()
    api.start()
    try:
        for name in (NAMESPACE, TENANT):
            api.store.create(NAMESPACES, {"metadata": {"name": name}})
        kubeconfig = api.kubeconfig(folder / "admin.conf")
        admin = RestClient(Connection.load(str(kubeconfig)))
        with RecordingProxy(kubeconfig) as proxy:
            yield UsageControllerLife(folder, admin, proxy, lease=NAMESPACE, tenant=TENANT, node="node-a").live()
    finally:
        api.stop()


def test_evictions_because_of_use_have_the_rights_that_are_used_and_no_others(
    requests_for_use: list[tuple[str, str]],
) -> None:
    objects = chart.objects({"eviction": {"overGrant": True}, "policyStatus": {"enabled": False}})
    asked = {access for request in requests_for_use if (access := Access.of_request(*request)) is not None}
    rules = Rules(objects, account=ACCOUNT, namespace=NAMESPACE)
    assert [access for access in asked if not rules.allow(access)] == []
    assert chart.granted(objects, ACCOUNT) == {(access.verb, access.resource) for access in asked} | REPEATS


@pytest.mark.parametrize("over_grant", [False, True])
@pytest.mark.parametrize("past_budgets", [False, True])
def test_pods_are_deleted_only_where_the_chart_says_so(over_grant: bool, past_budgets: bool) -> None:
    values = {"enabled": True, "overGrant": over_grant, "overGrantPastBudgets": past_budgets}
    granted = chart.granted(chart.objects({"eviction": values}), ACCOUNT)
    assert (("delete", "pods") in granted) is (over_grant and past_budgets)


@pytest.mark.parametrize(
    ("values", "variables"),
    [({}, {}), ({"overGrant": True}, {"EVICT_OVER_GRANT": "true"}), ({"reclaimIdle": True}, {"RECLAIM_IDLE": "true"})],
)
def test_each_switch_sets_its_setting_and_is_off_as_delivered(
    values: dict[str, bool], variables: dict[str, str]
) -> None:
    pod = chart.pod_spec(chart.objects({"eviction": values}), "Deployment", ACCOUNT)
    assert {k: v for k, v in chart.environment(pod).items() if k in {"EVICT_OVER_GRANT", "RECLAIM_IDLE"}} == variables
