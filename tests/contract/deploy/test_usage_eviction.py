"""What the chart grants a controller that evicts because of use: what it asks of an API server, and no more."""

from collections.abc import Iterator

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes import chart
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.rights.use import UsageControllerLife

NAMESPACE, ACCOUNT, TENANT = "dra-driver", "dra-driver-controller", "team"
VALUES = {"eviction": {"overGrant": True}, "policyStatus": {"enabled": False}}


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str]]]:
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


def test_the_account_has_the_rights_that_are_used_and_no_others(requests: list[tuple[str, str]]) -> None:
    """Among them no right to list pods or claims, or to delete anything."""
    objects = chart.objects(VALUES)
    asked = {access for request in requests if (access := Access.of_request(*request)) is not None}
    rules = Rules(objects, account=ACCOUNT, namespace=NAMESPACE)
    assert [access for access in asked if not rules.allow(access)] == []
    used = {(access.verb, access.resource) for access in asked}
    repeats = {("patch", "events")}  # a repeat within 10 s waits, see kube/events.py
    assert chart.granted(objects, ACCOUNT) == used | repeats


@pytest.mark.parametrize(
    ("values", "variables"),
    [
        ({}, {}),
        ({"overGrant": True}, {"EVICT_OVER_GRANT": "true"}),
        ({"reclaimIdle": True}, {"RECLAIM_IDLE": "true"}),
    ],
)
def test_each_switch_sets_its_setting_and_is_off_as_delivered(
    values: dict[str, bool], variables: dict[str, str]
) -> None:
    pod = chart.pod_spec(chart.objects({"eviction": values}), "Deployment", ACCOUNT)
    assert {k: v for k, v in chart.environment(pod).items() if k in {"EVICT_OVER_GRANT", "RECLAIM_IDLE"}} == variables


def test_without_gpu_nodes_there_is_no_one_to_ask() -> None:
    off = {"enabled": False}
    said = chart.refusal({"eviction": {"overGrant": True}, "gpuNodes": off, "policyStatus": off})
    assert "controller.enabled and gpuNodes.enabled have to be true" in said
