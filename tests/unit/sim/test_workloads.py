"""Deployments, replica sets and jobs create, replace and count pods; the tests write the pods' statuses."""

from datetime import timedelta

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, utc_now
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, PODS, REPLICA_SETS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.workloads import DeploymentController, JobController, ReplicaSetController
from dra_driver.sim.objects import condition


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
