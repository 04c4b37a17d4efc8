"""The controller writes the status of GpuPolicies on a real API server, with what nodes say made up.

Needs no node and no GPU, only an administrator. A cluster in which a controller runs already is left alone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.status import node_status
from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus, NodePolicy, PolicyState
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import CRDS, crd_served, unread
from tests.e2e.host import controllers
from tests.fakes.node_process import DriverProcess
from tests.unit.controller.fleets import said

SUFFIX = os.urandom(3).hex()
POLICY = f"e2e-{SUFFIX}"
PLURALS = ("gpupolicies", "gpunodes")


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> RestClient:
    return RestClient(Connection.load(kubeconfig))


@pytest.fixture
def crds(api: RestClient) -> Iterator[Callable[[], object]]:
    with ExitStack() as made:
        yield lambda: [made.enter_context(crd_served(api, plural)) for plural in PLURALS]
        for item in (paths.gpu_policies(POLICY), *(paths.gpu_nodes(_node(number)) for number in range(2))):
            with suppress(KubernetesApiError):
                api.delete(item)


@pytest.fixture
def replica(kubeconfig: str, tmp_path: Path) -> Iterator[Callable[[str], DriverProcess]]:
    flags = {"kubeconfig": kubeconfig, "namespace": "default", "lease_duration": "3"}
    with controllers(tmp_path, flags) as start:
        yield start


def _node(number: int) -> str:
    return f"e2e-{SUFFIX}-{number:02}"


def say(api: RestClient, number: int, *policies: NodePolicy) -> None:
    name, kind = _node(number), {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuNode"}
    status = node_status(GpuNodeStatus(driver_name="gpu.nvidia.com", policies=policies), "2026-11-22T12:00:00Z")
    try:
        made = api.get(paths.gpu_nodes(name))
    except NotFoundError:
        made = api.create(paths.gpu_nodes(), {**kind, "metadata": {"name": name}})
    api.update(f"{paths.gpu_nodes(name)}/status", {**made, "status": status})


def make_policy(api: RestClient) -> None:
    """For the nodes of this test: a node process that runs in the cluster has nothing to say of it."""
    spec = {"select": {"nodeNames": [f"e2e-{SUFFIX}-*"]}, "sharing": {"strategy": "MPS"}}
    header = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": POLICY}}
    api.create(paths.gpu_policies(), {**header, "spec": spec})


def status_is(api: RestClient, reason: str, **gpus: int) -> Callable[[], bool]:
    def holds() -> bool:
        status: dict[str, Any] = api.get(paths.gpu_policies(POLICY)).get("status") or {}
        conditions = [item["reason"] for item in status.get("conditions", ())]
        counts = {name: (status.get(name) or {}).get("gpus") for name in gpus}
        return conditions == [reason] and counts == gpus

    return holds


def test_the_status_follows_the_nodes_and_a_second_replica_goes_on(
    api: RestClient, crds: Callable[[], object], replica: Callable[[str], DriverProcess]
) -> None:
    crds()
    make_policy(api)
    first, second = replica("first"), replica("second")
    first.wait_for(status_is(api, "NothingSelected"), 30)
    waits = said(POLICY, PolicyState.WAITING, waiting=("gpu-0", "gpu-1"), waiting_for=("team/train",))
    say(api, 0, waits)
    say(api, 1, said(POLICY))
    first.wait_for(status_is(api, "Waiting", selected=4, waiting=2, inForce=2), 30)
    (place,) = api.get(paths.gpu_policies(POLICY))["status"]["waiting"]["places"]
    assert place["claims"] == ["team/train"]
    say(api, 0, said(POLICY))
    first.wait_for(status_is(api, "InForce", selected=4, waiting=0, inForce=4), 30)
    first.kill()
    api.delete(paths.gpu_nodes(_node(1)))
    second.wait_for(status_is(api, "InForce", selected=2, inForce=2), 30)
    second.end()


def test_a_cluster_without_the_definitions_is_waited_for(
    api: RestClient, crds: Callable[[], object], replica: Callable[[str], DriverProcess]
) -> None:
    if unread(api, f"{CRDS}/gpupolicies.gpu.dra-driver.io") is None:
        pytest.skip("the cluster has the CustomResourceDefinitions already")
    controller = replica("early")
    controller.wait_for(lambda: "watch failed" in controller.text, 30)
    crds()
    make_policy(api)
    say(api, 0, said(POLICY))
    controller.wait_for(status_is(api, "InForce", inForce=2), 90)
    assert controller.end()[0] == 0
