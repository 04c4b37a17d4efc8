"""Policies as objects on a real API server: the node process follows them, and the GpuNode says what became of them.

Needs no kubelet and no GPU, only an administrator: the node process, with simulated GPUs, has the token that a kubelet
would give its pod, and the chart's rights and admission policies are in force.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.policy_watch import HOLD_S
from tests.e2e.cluster import still_there, unread, wait
from tests.e2e.forms import policy
from tests.e2e.gates import SHARES
from tests.fakes import chart
from tests.fakes.dra_objects import DRIVER
from tests.fakes.kubelet import DraClient, dial
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.harness.claims_api import ClaimMaker, ensure_namespace
from tests.rights import forbidden
from tests.rights.accounts import Account, account_on, installed
from tests.rights.request import Obj, Request, refusal

SUFFIX = os.urandom(3).hex()
NODE, OTHER = f"policies-{SUFFIX}", f"policies-other-{SUFFIX}"
NAMESPACE = f"policies-{SUFFIX}"
POOL, RIVAL = f"pool-{SUFFIX}", f"rival-{SUFFIX}"
GPUS = ("gpu-0", "gpu-1")
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpupolicies.gpu.dra-driver.io"
WITHIN_S = 60.0


class World:
    """The administrator's view. Conditions return a complaint, as `wait` expects them."""

    def __init__(self, rest: RestClient, kubeconfig: Path) -> None:
        self.rest, self.kubeconfig = rest, kubeconfig

    def apply(self, name: str, **spec: Any) -> None:
        spec = {"select": {"nodeNames": [NODE]}, **spec}
        try:
            found = self.rest.get(paths.gpu_policies(name))
        except NotFoundError:
            self.rest.create(paths.gpu_policies(), policy(name, **spec))
        else:
            self.rest.update(paths.gpu_policies(name), {**found, "spec": spec})

    def drop(self, *names: str) -> None:
        for name in names:
            try:
                self.rest.delete(paths.gpu_policies(name))
            except NotFoundError:
                continue

    def strategies(self) -> list[str | None]:
        """How each GPU is published: its sharing strategy, None for a whole one."""
        query = {"fieldSelector": f"spec.nodeName={NODE},spec.driver={DRIVER}"}
        slices = self.rest.list(paths.resource_slices(), query)["items"]
        devices = [device for item in slices for device in item["spec"].get("devices") or ()]
        by_name = {device["name"]: device["attributes"] for device in devices}
        return [by_name[name].get("sharingStrategy", {}).get("string") for name in GPUS if name in by_name]

    def published_as(self, *wanted: str | None) -> Callable[[], str | None]:
        return lambda: None if (found := self.strategies()) == list(wanted) else f"published as {found}"

    def status(self) -> Obj:
        found: Obj = self.rest.get(paths.gpu_nodes(NODE)).get("status") or {}
        return found

    def policy(self, name: str) -> Obj:
        return next((item for item in self.status().get("policies", ()) if item["name"] == name), {})

    def policy_is(self, name: str, state: str) -> Callable[[], str | None]:
        return lambda: None if (found := self.policy(name)).get("state") == state else f"{name}: {found}"

    def total(self, name: str, **gpus: int) -> Callable[[], str | None]:
        def complaint() -> str | None:
            status = self.rest.get(paths.gpu_policies(name)).get("status") or {}
            counts = {outcome: (status.get(outcome) or {}).get("gpus") for outcome in gpus}
            return None if counts == gpus else f"{counts}: {json.dumps(status)}"

        return complaint


@pytest.fixture(scope="module")
def world(kubeconfig: str) -> Iterator[World]:
    rest = RestClient(Connection.load(kubeconfig))
    is_new = still_there(rest, CRD) is None
    with installed(rest, chart.objects(namespace=NAMESPACE), NAMESPACE, SUFFIX):
        try:
            for name in (NODE, OTHER):
                rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            for kind in (paths.gpu_policies(), paths.gpu_nodes()):
                wait(partial(unread, rest, kind), WITHIN_S)
            ensure_namespace(rest)
            yield World(rest, Path(kubeconfig))
        finally:
            for name in (NODE, OTHER):
                rest.delete(paths.node(name))
    if is_new:  # it is served for a moment longer
        wait(lambda: still_there(rest, CRD), WITHIN_S)


@pytest.fixture(scope="module")
def account(world: World) -> Callable[[str], Account]:
    made: dict[str, Account] = {}

    def of(node: str) -> Account:
        if node not in made:
            made[node] = account_on(world.rest, "dra-driver-node", NAMESPACE, node)
        return made[node]

    return of


@pytest.fixture
def driver(world: World, account: Callable[[str], Account]) -> Iterator[NodeProcess]:
    folder = Path(tempfile.mkdtemp(prefix="dra-"))  # short, for the sockets in it
    config = account(NODE).kubeconfig(world.kubeconfig, folder / "token.conf")
    process = NodeProcess(folder, node_name=NODE, kubeconfig=str(config), poll_interval="1").start()
    try:
        wait(world.published_as(None, None), WITHIN_S)
        yield process
    finally:
        process.kill()
        world.drop(POOL, RIVAL)
        for path in (paths.gpu_nodes(NODE), f"{paths.resource_slices()}?fieldSelector=spec.nodeName%3D{NODE}"):
            try:
                world.rest.delete(path)
            except NotFoundError:
                continue
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def prepared(world: World, process: NodeProcess) -> Iterator[Obj]:
    maker = ClaimMaker(world.rest, node=NODE, driver=DRIVER)
    claim = maker.make([name for _, name in maker.gpus].index("gpu-0"))
    uid, namespace, name = claim["uid"], claim["namespace"], claim["name"]
    with dial(process.dra) as channel:
        client = DraClient(channel)
        assert client.prepare(uid, namespace=namespace, name=name).claims[uid].error == ""
        try:
            yield claim
        finally:
            assert client.unprepare(uid, namespace=namespace, name=name).claims[uid].error == ""
            maker.drop(claim)


@contextmanager
def controller(world: World, folder: Path) -> Iterator[DriverProcess]:
    flags: dict[str, str | None] = {"kubeconfig": str(world.kubeconfig), "namespace": NAMESPACE, "pod_name": "c"}
    process = DriverProcess("controller", folder, {**flags, "lease_duration": "3"}).start()
    try:
        yield process
    finally:
        process.kill()


def table(world: World) -> str:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    command = [kubectl, "--kubeconfig", str(world.kubeconfig), "get", "gpunodes,gpupolicies", "-o", "wide"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.needs(SHARES)
def test_a_node_follows_an_object_from_its_creation_to_its_deletion(world: World, driver: NodeProcess) -> None:
    world.apply(POOL, sharing={"strategy": "MPS", "maxShares": 8})
    wait(world.published_as("MPS", "MPS"), WITHIN_S)
    wait(world.policy_is(POOL, "InForce"), WITHIN_S)
    assert world.policy(POOL)["inForce"] == list(GPUS)
    world.apply(POOL, sharing={"strategy": "TimeSlicing"})
    wait(world.published_as("TimeSlicing", "TimeSlicing"), WITHIN_S)
    wait(lambda: None if world.policy(POOL).get("generation") == 2 else str(world.policy(POOL)), WITHIN_S)
    world.drop(POOL)
    wait(world.published_as(None, None), WITHIN_S)
    wait(lambda: str(world.policy(POOL)) if world.policy(POOL) else None, WITHIN_S)


def test_a_policy_for_other_nodes_changes_nothing(world: World, driver: NodeProcess) -> None:
    """The second one shows that the first had arrived."""
    world.apply(RIVAL, select={"nodeNames": [OTHER]}, availability="Hidden")
    world.apply(POOL, attributes=[{"name": "example.com/team", "string": "red"}])
    wait(world.policy_is(POOL, "InForce"), WITHIN_S)
    assert world.strategies() == [None, None]
    assert world.policy(RIVAL) == {}


@pytest.mark.needs(SHARES)
def test_a_policy_waits_for_the_claim_that_has_the_gpu_and_is_told(
    world: World, driver: NodeProcess, tmp_path: Path
) -> None:
    with controller(world, tmp_path):
        with prepared(world, driver) as claim:
            world.apply(POOL, sharing={"strategy": "MPS", "maxShares": 8})
            wait(world.policy_is(POOL, "Waiting"), WITHIN_S)
            entry = world.policy(POOL)
            assert entry["waiting"] == ["gpu-0"]
            assert entry["inForce"] == ["gpu-1"]
            assert entry["waitingFor"] == [f"{claim['namespace']}/{claim['name']}"]
            wait(world.published_as(None, "MPS"), WITHIN_S)
            wait(world.total(POOL, selected=2, waiting=1, inForce=1), WITHIN_S)
            (place,) = world.rest.get(paths.gpu_policies(POOL))["status"]["waiting"]["places"]
            assert place["claims"] == entry["waitingFor"]
            shown = table(world)
            print(f"{shown}\n{json.dumps(entry, indent=1)}")  # noqa: T201 - for `pytest -s`
            assert f"gpunode.gpu.dra-driver.io/{NODE}" in shown
            assert f"gpupolicy.gpu.dra-driver.io/{POOL}" in shown
        wait(world.published_as("MPS", "MPS"), WITHIN_S)
        wait(world.policy_is(POOL, "InForce"), WITHIN_S)
        wait(world.total(POOL, selected=2, waiting=0, inForce=2), WITHIN_S)
        print(table(world))  # noqa: T201 - for `pytest -s`


@pytest.mark.needs(SHARES)
def test_a_contradiction_keeps_the_last_good_set_and_says_why(
    world: World, driver: NodeProcess, tmp_path: Path
) -> None:
    with controller(world, tmp_path):
        world.apply(POOL, sharing={"strategy": "MPS", "maxShares": 8})
        wait(world.published_as("MPS", "MPS"), WITHIN_S)
        world.apply(RIVAL, sharing={"strategy": "TimeSlicing"})
        wait(world.policy_is(RIVAL, "Conflicting"), WITHIN_S)
        entry = world.policy(RIVAL)
        assert entry["conflictsWith"] == [POOL]
        assert POOL in entry["message"]
        assert RIVAL in entry["message"]
        assert "the previous ones stay in force" in entry["message"]
        assert world.strategies() == ["MPS", "MPS"]
        assert "cannot use" in _problems(world)
        wait(world.total(RIVAL, conflicting=2, inForce=0), WITHIN_S)
        wait(world.total(POOL, conflicting=2, inForce=2), WITHIN_S)
        print(f"{table(world)}\n{json.dumps(world.status()['problems'], indent=1)}")  # noqa: T201 - for `pytest -s`
        driver.end()
        driver.start()  # the last good set is on disk
        wait(world.policy_is(RIVAL, "Conflicting"), WITHIN_S)
        assert world.strategies() == ["MPS", "MPS"]
        world.drop(RIVAL)
        wait(world.policy_is(POOL, "InForce"), WITHIN_S)
        wait(lambda: found if "policies" in (found := _problems(world)) else None, WITHIN_S)


@pytest.mark.needs(SHARES)
def test_the_definition_is_deleted_and_the_policies_stay(world: World, driver: NodeProcess) -> None:
    """Until the API server serves the kind again and a list says that there is none; over restarts, too."""
    if others := [item for item in world.rest.list(paths.gpu_policies())["items"] if item["metadata"]["name"] != POOL]:
        pytest.skip(f"the cluster has GpuPolicies of its own, {len(others)}, which this test would delete")
    world.apply(POOL, sharing={"strategy": "MPS", "maxShares": 8})
    wait(world.published_as("MPS", "MPS"), WITHIN_S)
    wait(world.policy_is(POOL, "InForce"), WITHIN_S)
    definition = world.rest.get(CRD)
    world.rest.delete(CRD)
    try:
        wait(lambda: still_there(world.rest, paths.gpu_policies()), WITHIN_S)
        driver.wait_for(lambda: "GpuPolicy objects may be outdated" in _problems(world), WITHIN_S)
        print(json.dumps(world.status()["problems"], indent=1))  # noqa: T201 - for `pytest -s`
        # Deleted objects count for HOLD_S more, and the folder of policies is looked at every second.
        seen = _slices_seen(world, HOLD_S + 3)
        assert seen == {json.dumps(["MPS", "MPS"])}
        driver.end()
        driver.start()
        wait(world.policy_is(POOL, "InForce"), WITHIN_S)
        driver.wait_for(lambda: "GpuPolicy objects may be outdated" in _problems(world), WITHIN_S)
        assert world.strategies() == ["MPS", "MPS"]
    finally:
        wait(lambda: still_there(world.rest, CRD), WITHIN_S)
        kept = {key: definition["metadata"].get(key) for key in ("name", "labels", "annotations")}
        world.rest.create(CRD.rpartition("/")[0], {**definition, "metadata": kept, "status": None})
    wait(partial(unread, world.rest, paths.gpu_policies()), WITHIN_S)
    assert world.strategies() == ["MPS", "MPS"]
    driver.end()
    driver.start()
    wait(world.published_as(None, None), WITHIN_S)


def _slices_seen(world: World, seconds: float) -> set[str]:
    seen, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        seen.add(json.dumps(world.strategies()))
        time.sleep(0.2)
    return seen


def _problems(world: World) -> str:
    return json.dumps(world.status().get("problems", []))


def test_another_nodes_token_does_not_write_this_gpu_node(
    world: World, driver: NodeProcess, account: Callable[[str], Account], tmp_path: Path
) -> None:
    wait(lambda: None if world.status() else "no GpuNode", WITHIN_S)
    before = world.rest.get(paths.gpu_nodes(NODE))
    stranger = account(OTHER).client(world.kubeconfig, tmp_path / "other.conf")
    path = paths.gpu_nodes(NODE)
    labelled = {**before, "metadata": before["metadata"] | {"labels": {"a": "b"}}}
    forged = {**before, "status": {"driverName": DRIVER}}
    said = {
        request.what: refusal(stranger, request)
        for request in (
            Request(what="replace it", verb="PUT", path=path, body=labelled),
            Request(what="replace its status", verb="PUT", path=f"{path}/status", body=forged),
            Request(what="patch its status", verb="PATCH", path=f"{path}/status", body={"status": {"gpus": []}}),
            Request(what="delete it", verb="DELETE", path=path),
        )
    }
    print(json.dumps(said, indent=1))  # noqa: T201 - for `pytest -s`
    assert f"the driver on node {OTHER} may not change the GpuNode {NODE}" in said["patch its status"]
    now = world.rest.get(paths.gpu_nodes(NODE))
    assert now["status"] == before["status"]
    stranger.create(paths.gpu_nodes(), forbidden.gpu_node(OTHER))  # its own, it may
    world.rest.delete(paths.gpu_nodes(OTHER))
