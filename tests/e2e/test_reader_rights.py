"""The rights of opt-in parts that only read, on a real API server: the survey of free capacity, and people who ask the
exporters. All that they ask is allowed, nothing is granted that they do not ask, and everything near it is refused.

Needs a control plane only. With $E2E_RIGHTS_FILE the test writes the figures for docs/internals/rights.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands.usage_source import SELECTOR
from tests.fakes import chart
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.rights import forbidden, optional
from tests.rights.accounts import Account, account_on, bound, installed, pod_on, token
from tests.rights.request import Figures, Obj, Request, accesses, without_names

SUFFIX = os.urandom(3).hex()
OWN, OTHER = (f"readers-{name}-{SUFFIX}" for name in ("own", "other"))
NAMESPACE, TENANT = f"readers-{SUFFIX}", f"readers-tenant-{SUFFIX}"
WORLD = forbidden.World(own=OWN, other=OTHER, namespace=NAMESPACE, tenant=TENANT)
VALUES = {name: {"enabled": True} for name in ("capacityMetrics", "usageReader")} | {"policyStatus": {"enabled": False}}
PART = "readers"
READER = "rights-reader"
ROLE = {"kind": "Role", "metadata": {"name": "dra-driver-usage-reader", "namespace": NAMESPACE}}
plain = without_names({OWN: "node-a", OTHER: "node-b", TENANT: "tenant", NAMESPACE: "dra-driver"}, SUFFIX)


@pytest.fixture(scope="module")
def manifests() -> list[Obj]:
    return [*chart.objects(VALUES, namespace=NAMESPACE), *bound(READER, NAMESPACE, ROLE)]


@pytest.fixture(scope="module")
def admin(kubeconfig: str, manifests: list[Obj]) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    with installed(rest, manifests, NAMESPACE, SUFFIX):
        rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN}})
        try:
            yield rest
        finally:
            rest.delete(paths.node(OWN))


def beside(rules: Rules, requests: Iterator[Request]) -> list[Request]:
    """Those that the role is not meant to allow, of all that any controller must not do and of these."""

    def may(request: Request) -> bool:
        access = Access.of_request(request.verb, f"{request.path}?{urlencode(request.query)}")
        return access is not None and rules.allow(access)

    near = list(requests)
    assert [request.what for request in near if may(request)] == [], "a refusal is wanted, and the role allows it"
    names = {request.what for request in near}
    return [*near, *(each for each in forbidden.of_a_controller(WORLD) if each.what not in names and not may(each))]


def test_a_controller_that_surveys_capacity_has_the_rights_that_it_uses(
    admin: RestClient, kubeconfig: str, manifests: list[Obj], folder: Path, figures: Figures
) -> None:
    account = account_on(admin, "dra-driver-controller", NAMESPACE, OWN)
    with RecordingProxy(account.kubeconfig(Path(kubeconfig), folder / "token.conf")) as proxy:
        asked = accesses(optional.SurveyingController(folder, proxy, NAMESPACE).live())
    rules = Rules(manifests, account=account.name, namespace=NAMESPACE)
    assert proxy.refused == []
    figures.judge("controller that surveys capacity", rules, asked, plain)
    rest = account.client(Path(kubeconfig), folder / "c")
    refused = beside(rules, optional.of_a_survey(WORLD))
    figures.refuse_all("the token of a controller that surveys capacity", rest, refused, plain)


def test_who_reads_usage_asks_the_exporters_and_nothing_else(
    admin: RestClient, kubeconfig: str, manifests: list[Obj], folder: Path, figures: Figures
) -> None:
    """``kubectl dra usage``. The pod runs nowhere: the API server admits the request, and cannot reach an exporter."""
    account = Account(name=READER, namespace=NAMESPACE, token=token(admin, READER, NAMESPACE))
    exporter = pod_on(OWN, READER, NAMESPACE, "x")
    exporter["metadata"]["labels"] = dict([SELECTOR.split("=")])
    admin.create(paths.pods(NAMESPACE), exporter)
    with RecordingProxy(account.kubeconfig(Path(kubeconfig), folder / "token.conf")) as proxy:
        said = optional.usage(proxy.kubeconfig(folder / "proxied.conf"), NAMESPACE)
    rules = Rules(manifests, account=READER, namespace=NAMESPACE)
    assert "none of 1 exporters returned a valid response" in said
    assert proxy.refused == []
    figures.judge("person who reads usage", rules, accesses(proxy.requests), plain)
    rest = account.client(Path(kubeconfig), folder / "c")
    refused = beside(rules, optional.of_a_usage_reader(WORLD))
    figures.refuse_all("the token of a person who reads usage", rest, refused, plain)
