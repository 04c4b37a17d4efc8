"""Eviction by device taints, as kube-controller-manager 1.36 does it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.claims import DeviceTaintController
from dra_driver.sim.objects import uid
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice

MAPPING = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)


class World:
    """Pods with one claim each on node a, whose devices get taints."""

    def __init__(self) -> None:
        self.store = Store()
        self.now = NOW
        self.controller = DeviceTaintController(self.store, lambda: self.now)
        self.store.create(RESOURCE_SLICES, resource_slice("a", gpu("gpu-0"), gpu("gpu-1"), name="s"))

    def taint(self, *taints: Obj, device: int = 0) -> None:
        item = self.store.get(RESOURCE_SLICES, "s")
        item["spec"]["devices"][device]["taints"] = list(taints)
        self.store.update(RESOURCE_SLICES, item)

    def run_pod(self, name: str, device: int = 0, *tolerations: Obj, extended: bool = False) -> None:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
        claim = self.store.create(RESOURCE_CLAIMS, body, namespace="default")
        listed = [] if extended else [{"name": "gpu", "resourceClaimName": name}]
        container: Obj = {"name": "c", "image": "i"}
        if extended:
            container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        spec = {"nodeName": "a", "containers": [container], "resourceClaims": listed}
        metadata = {"name": name, "labels": {"app": "x"}}
        pod = self.store.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
        pool = self.store.get(RESOURCE_SLICES, "s")["spec"]["pool"]["name"]
        result: Obj = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": f"gpu-{device}"}
        if tolerations:
            result["tolerations"] = list(tolerations)
        user = {"resource": "pods", "name": name, "uid": uid(pod)}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        self.store.update_status(RESOURCE_CLAIMS, claim)
        if extended:
            status = {"resourceClaimName": name, "requestMappings": [MAPPING]}
            pod["status"] = {"extendedResourceClaimStatus": status}
        pod["status"]["phase"] = "Running"
        self.store.update_status(PODS, pod)

    def leaving(self) -> list[str]:
        """Pods whose deletion has begun or is done."""
        alive = {
            pod["metadata"]["name"]
            for pod in self.store.list(PODS, "default").items
            if dig(pod, "metadata", "deletionTimestamp") is None
        }
        claims = {claim["metadata"]["name"] for claim in self.store.list(RESOURCE_CLAIMS, "default").items}
        return sorted(claims - alive)

    def events(self) -> list[str]:
        found = self.store.list(EVENTS, "default").items
        return [item["message"] for item in found if item["reason"] == "DeviceTaintManagerEviction"]


def taint(effect: str = "NoExecute", *, seconds: float = 0.0, **fields: Any) -> Obj:
    at = rfc3339(NOW + timedelta(seconds=seconds))
    return {"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect, "timeAdded": at, **fields}


@pytest.fixture
def world() -> World:
    world = World()
    world.run_pod("p0", 0)
    world.run_pod("p1", 1)
    return world


def test_the_pods_of_a_tainted_device_are_deleted_and_no_others(world: World) -> None:
    world.taint(taint())
    world.controller.step()
    assert world.leaving() == ["p0"]
    pod = world.store.get(PODS, "p0", "default")
    (found,) = [item for item in entries(pod, "status", "conditions") if item["type"] == "DisruptionTarget"]
    assert (found["status"], found["reason"]) == ("True", "DeletionByDeviceTaintManager")
    assert world.events() == ["Marking for deletion"]
    world.controller.step()
    assert world.events() == ["Marking for deletion"]


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_other_effects_delete_nothing(world: World, effect: str) -> None:
    world.taint(taint(effect))
    assert world.controller.step() is None
    assert world.leaving() == []


@pytest.mark.parametrize(
    ("toleration", "leaves_after_s"),
    [
        ({"operator": "Exists", "effect": "NoExecute"}, None),
        ({"key": "gpu.nvidia.com/xid", "operator": "Equal", "value": "79", "effect": "NoExecute"}, None),
        ({"key": "gpu.nvidia.com/xid", "operator": "Equal", "value": "48", "effect": "NoExecute"}, 0),
        ({"operator": "Exists"}, 0),  # 1.36 evicts although an empty effect stands for all of them
        ({"operator": "Exists", "effect": "NoSchedule"}, 0),
        ({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}, 30),
        ({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -5}, 0),
    ],
)
def test_tolerations(toleration: Obj, leaves_after_s: float | None) -> None:
    world = World()
    world.run_pod("p", 0, toleration)
    world.taint(taint())
    wait_s = world.controller.step()
    if leaves_after_s:
        assert (wait_s, world.leaving()) == (leaves_after_s, [])
        world.now += timedelta(seconds=leaves_after_s)
        world.controller.step()
    assert world.leaving() == ([] if leaves_after_s is None else ["p"])


def test_a_taint_that_goes_in_time_cancels_the_deletion() -> None:
    world = World()
    world.run_pod("p", 0, {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30})
    world.taint(taint())
    world.controller.step()
    world.taint()
    world.controller.step()
    world.now += timedelta(minutes=5)
    world.controller.step()
    assert world.leaving() == []
    assert world.events() == ["Cancelling deletion"]


def test_pods_that_came_by_an_extended_resource_are_missed() -> None:
    """kubernetes#141290: the reason for this project's own controller."""
    world = World()
    world.run_pod("p", 0, extended=True)
    world.taint(taint())
    world.controller.step()
    assert world.leaving() == []


def test_budgets_are_not_asked(world: World) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": "100%"}}
    world.store.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
    world.taint(taint())
    world.controller.step()
    assert world.leaving() == ["p0"]


def test_the_time_is_that_of_the_taint(world: World) -> None:
    world.taint(taint(seconds=20))
    assert world.controller.step() == 20
    assert world.leaving() == []
