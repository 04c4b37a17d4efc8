"""Disruption budgets: their status, and evictions that they allow or refuse."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, utc_now
from dra_driver.sim.apiserver.kinds import POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply
from dra_driver.sim.apiserver.router import Router
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.workloads import DisruptionController
from dra_driver.sim.objects import condition, owner_reference


class World:
    """A replica set with ready pods on a node, and a budget for them."""

    def __init__(self, replicas: int = 3, **limits: Any) -> None:
        self.store = Store()
        self.controller = DisruptionController(self.store)
        template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        selector = {"matchLabels": {"app": "a"}}
        spec = {"replicas": replicas, "selector": selector, "template": template}
        self.owner = self.store.create(REPLICA_SETS, {"metadata": {"name": "r"}, "spec": spec}, namespace="default")
        for number in range(replicas):
            self.add_pod(f"p{number}")
        if limits:
            budget = {"metadata": {"name": "b"}, "spec": {"selector": selector, **limits}}
            self.store.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
        self.controller.step()

    def add_pod(self, name: str, *, ready: bool = True) -> None:
        metadata = {"name": name, "labels": {"app": "a"}, "ownerReferences": [owner_reference(self.owner)]}
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
        pod = self.store.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
        state = "True" if ready else "False"
        pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": state}]}
        self.store.update_status(PODS, pod)

    def evict(self, name: str, **options: Any) -> int:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
        path = f"/api/v1/namespaces/default/pods/{name}/eviction"
        request = ApiRequest(method="POST", path=path, body=json.dumps(body).encode())
        reply = Router(self.store, utc_now).answer(request)
        assert isinstance(reply, Reply)
        return reply.status

    def refusal(self, name: str) -> KubernetesApiError:
        with pytest.raises(KubernetesApiError) as refused:
            self.evict(name)
        return refused.value

    @property
    def budget(self) -> Obj:
        return self.store.get(POD_DISRUPTION_BUDGETS, "b", "default")

    @property
    def allowed(self) -> int:
        return int(dig(self.budget, "status", "disruptionsAllowed"))


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": 3}, 0),
        ({"minAvailable": "50%"}, 1),
        ({"minAvailable": "100%"}, 0),
        ({"maxUnavailable": 2}, 2),
        ({"maxUnavailable": "34%"}, 2),
        ({"maxUnavailable": 0}, 0),
    ],
)
def test_the_status_counts_what_may_go(limits: dict[str, Any], allowed: int) -> None:
    assert World(3, **limits).allowed == allowed


def test_an_eviction_takes_from_the_budget_at_once_and_the_next_is_refused() -> None:
    """Before the controller has seen anything: two evictions at the same moment must not both pass."""
    world = World(3, minAvailable=2)
    assert world.evict("p0") == 201
    error = world.refusal("p1")
    assert (error.status, error.reason) == (429, "TooManyRequests")
    assert error.details is not None
    assert error.details["causes"][0]["reason"] == "DisruptionBudget"
    evicted = world.store.get(PODS, "p0", "default")
    assert condition(evicted, "DisruptionTarget") == "True"
    world.controller.step()
    assert world.allowed == 0
    assert "needs 2 healthy pods and has 2 currently" in str(world.refusal("p1").details)


def test_a_replacement_that_is_ready_allows_the_next() -> None:
    world = World(2, maxUnavailable=1)
    world.evict("p0")
    world.controller.step()
    assert world.allowed == 0
    world.add_pod("p2")
    world.controller.step()
    assert world.evict("p1") == 201


def test_a_dry_run_takes_nothing() -> None:
    world = World(3, minAvailable=2)
    assert world.evict("p0", dryRun=["All"]) == 201
    assert world.allowed == 1
    assert condition(world.store.get(PODS, "p0", "default"), "DisruptionTarget") == ""


def test_two_budgets_for_one_pod_are_an_error() -> None:
    world = World(2, minAvailable=1)
    other = {"metadata": {"name": "b2"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}}
    world.store.create(POD_DISRUPTION_BUDGETS, other, namespace="default")
    assert world.refusal("p0").status == 500


def test_an_unready_pod_goes_while_enough_others_are_healthy() -> None:
    world = World(2, minAvailable=2)
    world.add_pod("sick", ready=False)
    world.controller.step()
    assert world.evict("sick") == 201
    assert world.refusal("p0").status == 429


def test_both_limits_at_once_are_refused() -> None:
    with pytest.raises(KubernetesApiError, match="cannot be both set"):
        World(1, minAvailable=1, maxUnavailable=1)
