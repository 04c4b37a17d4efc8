"""Claims that are wrong or hostile: each gets one clear error on its pod, and no other claim is affected.

The allocations are written by hand, as a client with the rights of a scheduler could, and the pods are put on the node
directly.
"""

from typing import Any

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from dra_driver.sim.cluster import DRIVER, Cluster
from tests.fakes.kubelet import DraClient, dial
from tests.scenario.conftest import Pods

POOL = f"gpu-a/{DRIVER}"


def _result(**changes: Any) -> Obj:
    return {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": "gpu-0", **changes}


def _allocate(cluster: Cluster, pod: Obj, *results: Obj, config: tuple[Obj, ...] = ()) -> Obj:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    claim = cluster.store.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
    user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    claim["status"] = {
        "allocation": {"devices": {"results": list(results), "config": list(config)}},
        "reservedFor": [user],
    }
    return cluster.store.update_status(RESOURCE_CLAIMS, claim)


def _opaque(parameters: Obj, driver: str = DRIVER) -> Obj:
    return {"source": "FromClaim", "requests": ["gpu"], "opaque": {"driver": driver, "parameters": parameters}}


@pytest.mark.parametrize(
    ("result", "config", "said"),
    [
        (_result(device="gpu-99"), (), "gpu-99"),
        (_result(pool=f"elsewhere/{DRIVER}"), (), "elsewhere"),
        (_result(), (_opaque({"kind": "Nonsense", "apiVersion": "example.com/v1"}),), "example.com/v1"),
        (_result(), (_opaque({"a": {"b": [1] * 2000}}),), "apiVersion"),
    ],
    ids=["unknown-device", "another-nodes-pool", "unknown-parameters", "large-parameters"],
)
def test_a_claim_that_cannot_be_prepared_says_why(
    cluster: Cluster, pods: Pods, result: Obj, config: tuple[Obj, ...], said: str
) -> None:
    pod = pods.create("bad", claim="bad", node="gpu-a")
    _allocate(cluster, pod, result, config=config)
    message = pods.wait_event("bad", "FailedPrepareDynamicResources", said)
    assert f"{pod['metadata']['namespace']}/bad" in message
    assert not cluster.nodes["gpu-a"].claim_files()
    assert cluster.nodes["gpu-a"].process.is_running

    good = pods.create("good", claim="good", node="gpu-a")
    _allocate(cluster, good, _result(device="gpu-1"))
    pods.wait_ready("good")


def test_a_gpu_is_never_given_to_two_claims(cluster: Cluster, namespace: str, pods: Pods) -> None:
    first = pods.create("first", claim="first", node="gpu-a")
    _allocate(cluster, first, _result())
    pods.wait_ready("first")
    second = pods.create("second", claim="second", node="gpu-a")
    _allocate(cluster, second, _result())
    message = pods.wait_event("second", "FailedPrepareDynamicResources", "gpu-0")
    assert f"{namespace}/first" in message
    assert "No devices" not in pods.log("first")


def test_admin_access_sees_a_gpu_in_use_and_leaves_its_claim_alone(
    cluster: Cluster, namespace: str, pods: Pods
) -> None:
    user = pods.create("user", claim="user", node="gpu-a")
    _allocate(cluster, user, _result())
    pods.wait_ready("user")
    monitor = pods.create("monitor", claim="monitor", node="gpu-a")
    _allocate(cluster, monitor, _result(adminAccess=True))
    pods.wait_ready("monitor")
    assert pods.log("monitor") == pods.log("user")


def test_results_of_other_drivers_are_ignored(cluster: Cluster, namespace: str, pods: Pods) -> None:
    """A claim with devices of two drivers waits for the missing one and is not half prepared before."""
    pod = pods.create("mixed", claim="mixed", node="gpu-a")
    foreign = _result(driver="nic.example.com", pool="gpu-a/nic.example.com", device="nic-0")
    _allocate(cluster, pod, _result(), foreign)
    pods.wait_event("mixed", "FailedPrepareDynamicResources", "DRA driver nic.example.com is not registered")
    assert not cluster.nodes["gpu-a"].claim_files()


def test_the_kubelet_does_not_prepare_a_claim_reserved_for_another_pod(cluster: Cluster, pods: Pods) -> None:
    pod = pods.create("stale", claim="stale", node="gpu-a")
    claim = _allocate(cluster, pod, _result())
    claim["status"]["reservedFor"][0]["uid"] = "00000000-0000-0000-0000-000000000000"
    cluster.store.update_status(RESOURCE_CLAIMS, claim)
    pods.wait_event("stale", "FailedPrepareDynamicResources", "is not allowed to use ResourceClaim stale")


def test_the_driver_does_not_prepare_a_claim_that_was_replaced(cluster: Cluster, namespace: str, pods: Pods) -> None:
    pod = pods.create("first", node="gpu-a", claim="missing")
    former = _allocate(cluster, pod, _result())
    cluster.store.update_status(RESOURCE_CLAIMS, {**former, "status": {}})
    cluster.store.delete(RESOURCE_CLAIMS, "first", namespace)
    current = _allocate(cluster, pod, _result())
    node = cluster.nodes["gpu-a"]
    with dial(node.folders.plugins / DRIVER / "dra.sock") as channel:
        uid = former["metadata"]["uid"]
        answer = DraClient(channel).prepare(uid, namespace=namespace, name="first").claims[uid]
    assert f"asks for uid {uid}, the API server has uid '{current['metadata']['uid']}'" in answer.error
    assert not node.claim_files()
    assert node.journal_rows() == 0
    cluster.store.update_status(RESOURCE_CLAIMS, {**current, "status": {}})


def test_a_selector_that_fails_is_an_event_of_the_pod(cluster: Cluster, namespace: str, pods: Pods) -> None:
    from tests.scenario.conftest import make_template

    selectors = [{"cel": {"expression": f'device.attributes["{DRIVER}"].nope == "x"'}}]
    pods.create("mistaken", template=make_template(cluster, namespace, selectors=selectors))
    pods.wait_event("mistaken", "FailedScheduling", "no such key")
