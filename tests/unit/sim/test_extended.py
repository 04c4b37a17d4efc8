"""Pods with extended resources: the claim that the scheduler creates for them, step by step."""

from typing import Any

import pytest

from dra_driver.core.errors import ConflictError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.claims import ClaimController
from dra_driver.sim.objects import FINALIZER, extended_claim_name
from dra_driver.sim.scheduler import EmbeddedScheduler
from tests.fakes.dra_objects import DRIVER, device_class, gpu, node, resource_slice

MIG = "nvidia.com/mig-1g.10gb"


class RefusingStore(Store):
    """A store whose next bindings fail, as after a conflict with another writer."""

    refusals = 0

    def bind(self, namespace: str, name: str, node_name: str) -> Obj:
        if self.refusals:
            self.refusals -= 1
            raise ConflictError("Operation cannot be fulfilled on pods", status=409)
        return super().bind(namespace, name, node_name)


def _class(name: str, resource: str, kind: str) -> Obj:
    guard = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    made = device_class(name, expression=guard)
    made["spec"]["extendedResourceName"] = resource
    return made


@pytest.fixture
def store() -> RefusingStore:
    """A node with two GPUs and a partition, and classes with extended resource names."""
    store = RefusingStore()
    store.create(NODES, {**node("a"), "spec": {}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}})
    store.create(RESOURCE_SLICES, resource_slice("a", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-1-mig-0", type="mig")))
    store.create(DEVICE_CLASSES, _class(DRIVER, "nvidia.com/gpu", "gpu"))
    store.create(DEVICE_CLASSES, _class("mig.nvidia.com", MIG, "mig"))
    return store


def pod(store: Store, name: str, *containers: dict[str, Any], **spec: Any) -> Obj:
    """A pod whose containers c0, c1, … request these amounts."""
    listed = [{"name": f"c{at}", "image": "i", "resources": {"limits": asks}} for at, asks in enumerate(containers)]
    return store.create(PODS, {"metadata": {"name": name}, "spec": {"containers": listed, **spec}}, namespace="default")


def claims(store: Store) -> list[Obj]:
    return store.list(RESOURCE_CLAIMS, "default").items


def message_of(store: Store, name: str) -> str:
    conditions = store.get(PODS, name, "default")["status"].get("conditions", [])
    return next((str(item.get("message", "")) for item in conditions if item["type"] == "PodScheduled"), "")


def test_one_claim_serves_all_containers_of_a_pod(store: RefusingStore) -> None:
    created = pod(store, "p", {"nvidia.com/gpu": 1}, {MIG: 1, "cpu": "1"})
    EmbeddedScheduler(store).step()
    (claim,) = claims(store)
    metadata, status = claim["metadata"], claim["status"]
    assert metadata["name"].startswith("p-extended-resources-")
    assert metadata["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert metadata["finalizers"] == [FINALIZER]
    assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [
        (created["metadata"]["uid"], True)
    ]
    assert {item["request"]: item["device"] for item in status["allocation"]["devices"]["results"]} == {
        "container-0-request-0": "gpu-0",
        "container-1-request-1": "gpu-1-mig-0",
    }
    assert status["reservedFor"] == [{"resource": "pods", "name": "p", "uid": created["metadata"]["uid"]}]
    bound = store.get(PODS, "p", "default")
    assert bound["spec"]["nodeName"] == "a"
    assert bound["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": metadata["name"],
        "requestMappings": [
            {"containerName": "c0", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"},
            {"containerName": "c1", "resourceName": MIG, "requestName": "container-1-request-1"},
        ],
    }


def test_an_attempt_that_fails_late_leaves_one_claim_after_the_next(store: RefusingStore) -> None:
    """The next attempt deletes the claim of a failed one before it allocates, so no device is allocated twice."""
    store.refusals = 1
    pod(store, "p", {"nvidia.com/gpu": 2})
    scheduler = EmbeddedScheduler(store)
    scheduler.step()
    (first,) = claims(store)
    scheduler.step()
    (second,) = claims(store)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    bound = store.get(PODS, "p", "default")
    assert bound["spec"]["nodeName"] == "a"
    assert extended_claim_name(bound) == second["metadata"]["name"]


@pytest.mark.parametrize("end", ["deleted", "finished"])
def test_the_claim_is_deleted_when_its_pod_has_finished(store: RefusingStore, end: str) -> None:
    pod(store, "p", {"nvidia.com/gpu": 2})
    scheduler, controller = EmbeddedScheduler(store), ClaimController(store)
    scheduler.step()
    current = store.get(PODS, "p", "default")
    current["status"]["phase"] = "Succeeded"
    store.update_status(PODS, current)
    if end == "deleted":
        store.delete(PODS, "p", "default")
    controller.step()
    controller.step()
    assert not claims(store)
    pod(store, "q", {"nvidia.com/gpu": 2})
    scheduler.step()
    assert dig(store.get(PODS, "q", "default"), "spec", "nodeName") == "a"
