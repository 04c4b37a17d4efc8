"""The embedded scheduler, one step at a time, on a store without a web server."""

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.scheduler import EmbeddedScheduler
from tests.fakes.dra_objects import claim, device_class, exactly, gpu, node, resource_slice


@pytest.fixture
def store() -> Store:
    store = Store()
    for name in ("a", "b"):
        store.create(NODES, {**node(name), "spec": {}})
        store.create(RESOURCE_SLICES, resource_slice(name, gpu("gpu-0"), gpu("gpu-1")))
    store.create(DEVICE_CLASSES, device_class())
    return store


def pod(store: Store, name: str, *claims: str, **spec: object) -> Obj:
    names = [{"name": f"c{index}", "resourceClaimName": each} for index, each in enumerate(claims)]
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": item["name"]} for item in names]}}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": names, **spec}}
    return store.create(PODS, body, namespace="default")


def stepped(store: Store, request: Obj) -> EmbeddedScheduler:
    store.create(RESOURCE_CLAIMS, claim("c", request))
    pod(store, "p", "c")
    scheduler = EmbeddedScheduler(store)
    scheduler.step()
    return scheduler


def node_of(store: Store, name: str) -> str:
    return str(dig(store.get(PODS, name, "default"), "spec", "nodeName", default=""))


def message_of(store: Store, name: str) -> str:
    conditions = store.get(PODS, name, "default")["status"].get("conditions", [])
    return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")


def test_allocates_reserves_and_binds(store: Store) -> None:
    """Allocation, reservation and finalizer are written before the binding, so a bound pod always has its devices."""
    store.create(RESOURCE_CLAIMS, claim("c"))
    created = pod(store, "p", "c")
    EmbeddedScheduler(store).step()
    assert node_of(store, "p") == "a"
    stored = store.get(RESOURCE_CLAIMS, "c", "default")
    assert [result["device"] for result in stored["status"]["allocation"]["devices"]["results"]] == ["gpu-0"]
    assert stored["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": created["metadata"]["uid"]}]
    assert "resource.kubernetes.io/delete-protection" in stored["metadata"]["finalizers"]
    (event,) = [event for event in store.list(EVENTS).items if event["reason"] == "Scheduled"]
    assert event["message"] == "Successfully assigned default/p to a"


def test_a_shared_claim_pulls_its_pods_to_one_node(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim("c"))
    pod(store, "p", "c")
    pod(store, "q", "c")
    EmbeddedScheduler(store).step()
    assert node_of(store, "p") == node_of(store, "q") == "a"
    assert len(store.get(RESOURCE_CLAIMS, "c", "default")["status"]["reservedFor"]) == 2


def test_says_why_no_node_fits(store: Store) -> None:
    stepped(store, exactly(count=3))
    expected = (
        "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are "
        "available: 2 Preemption is not helpful for scheduling."
    )
    assert message_of(store, "p") == expected
    assert [event["message"] for event in store.list(EVENTS).items] == [expected]


def test_counts_reasons_of_nodes(store: Store) -> None:
    """Each node's reason is counted, so that a wrong node selector does not look like a lack of GPUs."""
    cordoned = store.get(NODES, "b")
    cordoned["spec"]["unschedulable"] = True
    store.update(NODES, cordoned)
    stepped(store, exactly(count=3))
    assert "1 cannot allocate all claims, 1 node(s) were unschedulable" in message_of(store, "p")


def test_a_pod_waits_quietly_until_the_cluster_changes(store: Store) -> None:
    scheduler = stepped(store, exactly(count=3))
    before = store.revision
    assert scheduler.step() is None
    assert store.revision == before


def test_a_change_is_acted_on_after_the_backoff(store: Store) -> None:
    scheduler = stepped(store, exactly(count=3))
    store.create(NODES, {**node("d"), "spec": {}})
    store.create(RESOURCE_SLICES, resource_slice("d", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2")))
    wait_s = scheduler.step()
    assert wait_s is not None
    assert 0 < wait_s <= 0.2
    assert node_of(store, "p") == ""


def test_a_selector_that_fails_ends_the_attempt_with_its_text(store: Store) -> None:
    stepped(store, exactly("gpu", 'device.attributes["gpu.nvidia.com"].nope == "x"'))
    conditions = store.get(PODS, "p", "default")["status"]["conditions"]
    assert conditions[0]["reason"] == "SchedulerError"
    assert "no such key: nope" in conditions[0]["message"]


@pytest.mark.parametrize(
    ("claims", "said"),
    [((), ""), (("missing",), 'resourceclaim "missing" not found')],
    ids=["no-claims", "missing-claim"],
)
def test_pods_without_claims_and_without_their_claims(store: Store, claims: tuple[str, ...], said: str) -> None:
    pod(store, "p", *claims)
    EmbeddedScheduler(store).step()
    assert message_of(store, "p") == said
    assert bool(node_of(store, "p")) == (not said)


def test_pods_that_are_not_for_it_are_left_alone(store: Store) -> None:
    pod(store, "gated", schedulingGates=[{"name": "later"}])
    pod(store, "other", schedulerName="other")
    EmbeddedScheduler(store).step()
    assert node_of(store, "gated") == node_of(store, "other") == ""


def test_first_come_first_served(store: Store) -> None:
    where = {"nodeSelector": {"only": "a"}}
    labelled = store.get(NODES, "a")
    labelled["metadata"]["labels"] = {"only": "a"}
    store.update(NODES, labelled)
    for name in ("zz", "mm", "aa"):
        store.create(RESOURCE_CLAIMS, claim(name))
        pod(store, name, name, **where)
    EmbeddedScheduler(store).step()
    assert [node_of(store, name) for name in ("zz", "mm", "aa")] == ["a", "a", ""]
