"""The claim controller: claims of templates are created once, deallocated when their pods finish, deleted with them."""

from typing import Any

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import EVENTS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.store import DeleteOptions, Listing, Store
from dra_driver.sim.controllers.claims import ClaimController
from dra_driver.sim.objects import FINALIZER
from tests.fakes.dra_objects import claim


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
    """Write an allocation and a reservation, as the scheduler does."""
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
    """If writing the pod's status failed, the next step finds the claim of the last one."""
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
    """The event names the template; the pod gets its claim once the template exists."""
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
    """Finished pods use no GPU while they still exist, and their generated claims are deleted."""
    pod = make_pod(store)
    controller = ClaimController(store)
    controller.step()
    allocate(store, claims(store)[0]["metadata"]["name"], pod)
    controller.step()
    assert dig(claims(store)[0], "status", "allocation") is not None
    finish(store)
    controller.step()
    assert claims(store) == []


def test_a_claim_without_owner_is_deallocated_and_stays(store: Store) -> None:
    """A claim that a user created outlives its pods and is free for the next one."""
    held_claim(store)
    controller = ClaimController(store)
    store.delete(PODS, "p", "default", DeleteOptions(grace_period_s=0))
    controller.step()
    (left,) = claims(store)
    assert dig(left, "status", "allocation") is None
    assert not dig(left, "status", "reservedFor", default=[])
    assert not dig(left, "metadata", "finalizers", default=[])


def test_a_deleted_claim_waits_for_its_users(store: Store) -> None:
    """Deleting a claim in use changes nothing for the pod; the claim is removed when the pod has finished."""
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
