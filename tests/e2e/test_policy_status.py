"""The controller writes the status of GpuPolicies on a real API server, with what nodes say made up.

Needs no node and no GPU, only an administrator. A cluster in which a controller runs already is left alone.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config.status import node_status
from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus, NodePolicy, PolicyState
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import ROOT, wait
from tests.fakes.node_process import DriverProcess
from tests.unit.controller.fleets import said

SUFFIX = os.urandom(3).hex()
POLICY = f"e2e-{SUFFIX}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLURALS = ("gpupolicies", "gpunodes")


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> RestClient:
    return RestClient(Connection.load(kubeconfig))


@pytest.fixture
def crds(api: RestClient) -> Iterator[Callable[[], None]]:
    """A function that makes the CustomResourceDefinitions; those that it made are deleted again."""
    made: list[str] = []

    def make() -> None:
        for plural in PLURALS:
            crd = yaml.safe_load((ROOT / "crds" / f"gpu.dra-driver.io_{plural}.yaml").read_text())
            path = f"{CRDS}/{crd['metadata']['name']}"
            try:
                api.get(path)
            except NotFoundError:
                api.create(CRDS, crd)
                made.append(path)
            wait(partial(_not_served, api, plural), 30.0)

    yield make
    for item in (paths.gpu_policies(POLICY), *(paths.gpu_nodes(_node(number)) for number in range(30)), *made):
        try:
            api.delete(item)
        except KubernetesApiError:
            continue
    for path in made:  # it has a finalizer, and is served for a moment longer
        wait(partial(_is_there, api, path), 60.0)
    if made:
        wait(lambda: None if _not_served(api, "gpupolicies") else "gpupolicies are served", 60.0)


@pytest.fixture
def replica(kubeconfig: str, tmp_path: Path) -> Iterator[Callable[[str], DriverProcess]]:
    made: list[DriverProcess] = []

    def start(name: str) -> DriverProcess:
        folder = tmp_path / name
        folder.mkdir()
        flags: dict[str, str | None] = {"kubeconfig": kubeconfig, "namespace": "default", "lease_duration": "3"}
        made.append(DriverProcess("controller", folder, {**flags, "pod_name": name}).start())
        return made[-1]

    yield start
    for process in made:
        process.kill()


def _is_there(api: RestClient, path: str) -> str | None:
    try:
        api.get(path)
    except NotFoundError:
        return None
    return f"{path} is there"


def _not_served(api: RestClient, plural: str) -> str | None:
    try:
        api.get(f"{paths.GPU_API}/{plural}")
    except NotFoundError as error:
        return str(error)
    return None


def _node(number: int) -> str:
    return f"e2e-{SUFFIX}-{number:02}"


def say(api: RestClient, number: int, *policies: NodePolicy) -> None:
    """As the node process does: the object, then its status."""
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
    """Whether the condition has this reason, and each outcome this number of GPUs."""

    def holds() -> bool:
        status: dict[str, Any] = api.get(paths.gpu_policies(POLICY)).get("status") or {}
        conditions = [item["reason"] for item in status.get("conditions", ())]
        counts = {name: (status.get(name) or {}).get("gpus") for name in gpus}
        return conditions == [reason] and counts == gpus

    return holds


def test_the_status_follows_the_nodes_and_a_second_replica_goes_on(
    api: RestClient, crds: Callable[[], None], replica: Callable[[str], DriverProcess]
) -> None:
    """The whole way: reported, waiting, in force, a node gone, the leader killed."""
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
    api: RestClient, crds: Callable[[], None], replica: Callable[[str], DriverProcess]
) -> None:
    try:
        api.get(f"{CRDS}/gpupolicies.gpu.dra-driver.io")
        pytest.skip("the cluster has the CustomResourceDefinitions already")
    except NotFoundError:
        assert _not_served(api, "gpupolicies")
    controller = replica("early")
    controller.wait_for(lambda: "watch failed" in controller.text, 30)
    crds()
    make_policy(api)
    say(api, 0, said(POLICY))
    controller.wait_for(status_is(api, "InForce", inForce=2), 90)
    assert controller.end()[0] == 0


def test_thirty_nodes_at_once_are_a_few_writes(
    api: RestClient, crds: Callable[[], None], replica: Callable[[str], DriverProcess]
) -> None:
    crds()
    make_policy(api)
    controller = replica("only")
    controller.wait_for(status_is(api, "NothingSelected"), 30)
    before = int(api.get(paths.gpu_policies(POLICY))["metadata"]["generation"])
    for number in range(30):
        say(api, number, said(POLICY, generation=before))
    controller.wait_for(status_is(api, "InForce", inForce=60), 60)
    status = api.get(paths.gpu_policies(POLICY))["status"]
    assert len(status["inForce"]["places"]) == 20
    assert status["inForce"]["nodes"] == 30
