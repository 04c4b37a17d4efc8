"""The controller of deploy/chart: the pod has no rights on its machine, and its account only the rights that it
uses."""

from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.controller.process import LEASE
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES, POD_DISRUPTION_BUDGETS
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.controllers.workloads import DisruptionController
from tests.fakes import chart
from tests.fakes.extended_pods import is_leaving, make_slice, run_pod, taint_device
from tests.fakes.node_process import DriverProcess
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.rights.lives import UsageControllerLife

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


@pytest.mark.parametrize(
    ("values", "variables"),
    [({}, {}), ({"overGrant": True}, {"EVICT_OVER_GRANT": "true"}), ({"reclaimIdle": True}, {"RECLAIM_IDLE": "true"})],
)
def test_each_switch_sets_its_setting_and_is_off_as_delivered(
    values: dict[str, bool], variables: dict[str, str]
) -> None:
    pod = chart.pod_spec(chart.objects({"eviction": values}), "Deployment", ACCOUNT)
    assert {k: v for k, v in chart.environment(pod).items() if k in {"EVICT_OVER_GRANT", "RECLAIM_IDLE"}} == variables
