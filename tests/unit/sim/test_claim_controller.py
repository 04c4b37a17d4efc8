"""The claim controller: claims of templates are created once, deallocated when their pods finish, deleted with them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import (
    EVENTS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra_driver.sim.apiserver.store import Listing, Store
from dra_driver.sim.controllers.claims import ClaimController, DeviceTaintController
from dra_driver.sim.objects import FINALIZER, uid
from tests.fakes.dra_objects import DRIVER, claim, gpu, resource_slice


@pytest.fixture
def store() -> Store:
    store = Store()
    template = {"metadata": {"name": "t"}, "spec": {"metadata": {"labels": {"l": "1"}}, "spec": claim("x")["spec"]}}
    store.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    return store


def make_pod(store: Store, *, template: str = "t", **source: str) -> Obj:
    reference = source or {"resourceClaimTemplateName": template}
    spec = {"containers": [{"name": "m", "image": "i"}], "resourceClaims": [{"name": "gpu", **reference}]}
    return store.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace="default")


def claims(store: Store) -> list[Obj]:
    return store.list(RESOURCE_CLAIMS).items


def allocate(store: Store, name: str, pod: Obj) -> None:
    found = store.get(RESOURCE_CLAIMS, name, "default")
    found["metadata"]["finalizers"] = [FINALIZER]
    found = store.update(RESOURCE_CLAIMS, found)
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a/gpu.nvidia.com", "device": "gpu-0"}
    user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    found["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    store.update_status(RESOURCE_CLAIMS, found)


def held_claim(store: Store) -> None:
    """Claim c, which a user made, allocated for a pod that names it."""
    store.create(RESOURCE_CLAIMS, claim("c"))
    allocate(store, "c", make_pod(store, resourceClaimName="c"))


def finish(store: Store) -> None:
    pod = store.get(PODS, "p", "default")
    pod["status"]["phase"] = "Succeeded"
    store.update_status(PODS, pod)


def test_creates_a_claim_and_names_it_in_the_pod(store: Store) -> None:
    pod = make_pod(store)
    ClaimController(store).step()
    (made,) = claims(store)
    assert made["metadata"]["name"].startswith("p-gpu-")
    assert made["metadata"]["labels"] == {"l": "1"}
    assert made["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    statuses = store.get(PODS, "p", "default")["status"]["resourceClaimStatuses"]
    assert statuses == [{"name": "gpu", "resourceClaimName": made["metadata"]["name"]}]


def test_creates_a_claim_once(store: Store) -> None:
    make_pod(store)
    controller = ClaimController(store)
    controller.step()
    forgetful = store.get(PODS, "p", "default")
    forgetful["status"].pop("resourceClaimStatuses")
    store.update_status(PODS, forgetful)
    controller.step()
    assert len(claims(store)) == 1
    assert store.get(PODS, "p", "default")["status"]["resourceClaimStatuses"]


def test_a_missing_template_is_an_event_on_the_pod(store: Store) -> None:
    make_pod(store, template="later")
    controller = ClaimController(store)
    controller.step()
    (event,) = store.list(EVENTS).items
    assert event["reason"] == "FailedResourceClaimCreation"
    assert '"later" not found' in event["message"]
    template = {"metadata": {"name": "later"}, "spec": {"spec": claim("x")["spec"]}}
    store.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    controller.step()
    assert len(claims(store)) == 1


def test_a_finished_pods_claim_is_deallocated_and_deleted(store: Store) -> None:
    pod = make_pod(store)
    controller = ClaimController(store)
    controller.step()
    allocate(store, claims(store)[0]["metadata"]["name"], pod)
    controller.step()
    assert dig(claims(store)[0], "status", "allocation") is not None
    finish(store)
    controller.step()
    assert claims(store) == []


def test_a_deleted_claim_waits_for_its_users(store: Store) -> None:
    held_claim(store)
    store.delete(RESOURCE_CLAIMS, "c", "default")
    controller = ClaimController(store)
    controller.step()
    assert dig(claims(store)[0], "status", "allocation") is not None
    finish(store)
    controller.step()
    assert claims(store) == []


class _Busy(Store):
    """A store in which a pod is created and reserves a claim right after the controller's first list."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def list(self, *args: Any, **kwargs: Any) -> Listing:
        found = super().list(*args, **kwargs)
        if self.armed:
            self.armed = False
            allocate(self, "c", make_pod(self, resourceClaimName="c"))
        return found


def test_a_pod_created_between_both_lists_keeps_its_reservation() -> None:
    """Otherwise the pod, which is bound already, would wait for its claim for ever."""
    store = _Busy()
    store.create(RESOURCE_CLAIMS, claim("c"))
    controller = ClaimController(store)
    store.armed = True
    controller.step()
    controller.step()
    (kept,) = claims(store)
    assert [user["name"] for user in dig(kept, "status", "reservedFor", default=[])] == ["p"]


def test_a_finalizer_without_an_allocation_stays(store: Store) -> None:
    """The scheduler adds the finalizer before the allocation; removing it in between would make the attempt fail."""
    protected = claim("c")
    protected["metadata"]["finalizers"] = [FINALIZER]
    made = store.create(RESOURCE_CLAIMS, protected)
    ClaimController(store).step()
    assert claims(store) == [made]
    store.delete(RESOURCE_CLAIMS, "c", "default")
    ClaimController(store).step()
    assert claims(store) == []


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
        limits = {"nvidia.com/gpu": "1"} if extended else {}
        container = {"name": "c", "image": "i", "resources": {"limits": limits}}
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
    assert (world.controller.step(), world.leaving()) == (20, [])
