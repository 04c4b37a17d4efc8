"""Deployments, replica sets, jobs and disruption budgets; the tests write the pods' statuses."""

import json
from datetime import timedelta
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, utc_now
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply
from dra_driver.sim.apiserver.router import Router
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.workloads import (
    DeploymentController,
    DisruptionController,
    JobController,
    ReplicaSetController,
)
from dra_driver.sim.objects import condition, owner_reference


class World:
    """A store and the controllers, stepped until nothing changes."""

    def __init__(self) -> None:
        self.store = Store()
        self.now = utc_now()
        controllers = (DeploymentController(self.store), ReplicaSetController(self.store))
        self.jobs = JobController(self.store, lambda: self.now)
        self._steps = [*(controller.step for controller in controllers), self.jobs.step]

    def settle(self) -> None:
        before = -1
        for _ in range(20):
            if self.store.revision == before:
                return
            before = self.store.revision
            for step in self._steps:
                step()
        raise AssertionError("the controllers never come to rest")

    def pods(self) -> list[Obj]:
        return self.store.list(PODS).items

    def set_phase(self, pod: Obj, phase: str) -> None:
        pod = self.store.get(PODS, pod["metadata"]["name"], "default")
        pod["status"]["phase"] = phase
        ready = "True" if phase == "Running" else "False"
        pod["status"]["conditions"] = [{"type": "Ready", "status": ready, "lastTransitionTime": None}]
        self.store.update_status(PODS, pod)

    def run_all(self) -> None:
        for pod in self.pods():
            self.set_phase(pod, "Running")
        self.settle()

    def deployment(self) -> Obj:
        return self.store.get(DEPLOYMENTS, "d", "default")

    def job(self) -> Obj:
        return self.store.get(JOBS, "j", "default")


@pytest.fixture
def world() -> World:
    return World()


def _template(image: str = "i:1", **spec: object) -> Obj:
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "m", "image": image}], **spec}}


def _deploy(world: World, replicas: int = 2) -> None:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": _template()}
    world.store.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec}, namespace="default")
    world.settle()


def _job(world: World, **spec: object) -> None:
    body = {"metadata": {"name": "j"}, "spec": {"template": _template(restartPolicy="Never"), **spec}}
    world.store.create(JOBS, body, namespace="default")
    world.settle()


def test_a_deployment_becomes_available_with_its_pods(world: World) -> None:
    _deploy(world)
    assert len(world.pods()) == 2
    assert condition(world.deployment(), "Available") == "False"
    world.run_all()
    assert condition(world.deployment(), "Available") == "True"
    assert world.deployment()["status"]["availableReplicas"] == 2


def test_scaling_down_deletes_pods(world: World) -> None:
    _deploy(world, replicas=3)
    keep = world.pods()[1]
    world.set_phase(keep, "Running")
    world.settle()
    deployment = world.deployment()
    deployment["spec"]["replicas"] = 1
    world.store.update(DEPLOYMENTS, deployment)
    world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods()] == [keep["metadata"]["name"]]


def test_a_new_template_replaces_pods_without_an_outage(world: World) -> None:
    """With two replicas one extra pod is created at a time, and a ready pod is deleted only after another is ready."""
    _deploy(world)
    world.run_all()
    deployment = world.deployment()
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2"
    world.store.update(DEPLOYMENTS, deployment)
    world.settle()
    ready = [pod for pod in world.pods() if condition(pod, "Ready") == "True"]
    assert len(ready) == 2
    assert len(world.pods()) == 3
    for _ in range(4):
        world.run_all()
    images = {pod["spec"]["containers"][0]["image"] for pod in world.pods()}
    assert images == {"i:2"}
    assert len(world.pods()) == 2
    assert len(world.store.list(REPLICA_SETS).items) == 1


def test_a_job_runs_its_pods_one_after_the_other(world: World) -> None:
    _job(world, completions=2, parallelism=1)
    assert len(world.pods()) == 1
    world.set_phase(world.pods()[0], "Succeeded")
    world.settle()
    assert condition(world.job(), "Complete") == ""
    active = [pod for pod in world.pods() if dig(pod, "status", "phase") != "Succeeded"]
    assert len(active) == 1
    world.set_phase(active[0], "Succeeded")
    world.settle()
    assert condition(world.job(), "Complete") == "True"
    assert world.job()["status"]["succeeded"] == 2
    assert len(world.pods()) == 2


def test_a_job_ends_at_its_deadline(world: World) -> None:
    _job(world, activeDeadlineSeconds=60)
    world.now += timedelta(seconds=20)
    assert 39 <= (world.jobs.step() or 0) <= 41
    world.now += timedelta(seconds=41)
    world.settle()
    [failed] = [item for item in world.job()["status"]["conditions"] if item["type"] == "Failed"]
    assert (failed["status"], failed["reason"]) == ("True", "DeadlineExceeded")
    assert world.pods() == []


def test_a_finished_job_is_deleted_after_its_time(world: World) -> None:
    _job(world, ttlSecondsAfterFinished=10)
    world.set_phase(world.pods()[0], "Succeeded")
    world.settle()
    assert condition(world.job(), "Complete") == "True"
    world.now += timedelta(seconds=11)
    world.settle()
    assert world.store.find(JOBS, "j", "default") is None
    assert world.pods() == []


def test_a_job_that_keeps_failing_ends(world: World) -> None:
    _job(world, backoffLimit=1)
    for _ in range(2):
        for pod in world.pods():
            world.set_phase(pod, "Failed")
        world.settle()
    assert condition(world.job(), "Failed") == "True"
    assert len(world.pods()) == 2


class Budgeted:
    """A replica set with ready pods on a node, and a budget for them."""

    def __init__(self, replicas: int = 3, **limits: Any) -> None:
        self.store = Store()
        self.controller = DisruptionController(self.store)
        selector = {"matchLabels": {"app": "x"}}
        spec = {"replicas": replicas, "selector": selector, "template": _template()}
        self.owner = self.store.create(REPLICA_SETS, {"metadata": {"name": "r"}, "spec": spec}, namespace="default")
        for number in range(replicas):
            self.add_pod(f"p{number}")
        if limits:
            budget = {"metadata": {"name": "b"}, "spec": {"selector": selector, **limits}}
            self.store.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
        self.controller.step()

    def add_pod(self, name: str, *, ready: bool = True) -> None:
        metadata = {"name": name, "labels": {"app": "x"}, "ownerReferences": [owner_reference(self.owner)]}
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
    assert Budgeted(3, **limits).allowed == allowed


def test_an_eviction_takes_from_the_budget_at_once_and_the_next_is_refused() -> None:
    """Before the controller has seen anything: two evictions at the same moment must not both pass."""
    world = Budgeted(3, minAvailable=2)
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
    world = Budgeted(2, maxUnavailable=1)
    world.evict("p0")
    world.controller.step()
    assert world.allowed == 0
    world.add_pod("p2")
    world.controller.step()
    assert world.evict("p1") == 201


def test_a_dry_run_takes_nothing() -> None:
    world = Budgeted(3, minAvailable=2)
    assert world.evict("p0", dryRun=["All"]) == 201
    assert world.allowed == 1
    assert condition(world.store.get(PODS, "p0", "default"), "DisruptionTarget") == ""


def test_two_budgets_for_one_pod_are_an_error() -> None:
    world = Budgeted(2, minAvailable=1)
    other = {"metadata": {"name": "b2"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": 1}}
    world.store.create(POD_DISRUPTION_BUDGETS, other, namespace="default")
    assert world.refusal("p0").status == 500


def test_an_unready_pod_goes_while_enough_others_are_healthy() -> None:
    world = Budgeted(2, minAvailable=2)
    world.add_pod("sick", ready=False)
    world.controller.step()
    assert world.evict("sick") == 201
    assert world.refusal("p0").status == 429


def test_both_limits_at_once_are_refused() -> None:
    with pytest.raises(KubernetesApiError, match="cannot be both set"):
        Budgeted(1, minAvailable=1, maxUnavailable=1)
