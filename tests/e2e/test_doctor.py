"""What `kubectl dra doctor` says of a real cluster: nothing broken while it works, and the layer that was broken here.

Every set-up is made by objects of the API and undone. Only what a test broke is looked for: a cluster of its own may
have warnings of its own, and GPUs started by the tests have no DaemonSet.
"""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES
from tests.e2e.cluster import RealCluster
from tests.e2e.forms import pod, pod_spec, template
from tests.e2e.host import Host

Obj = dict[str, Any]
CLASS = "gpu.nvidia.com"


class Doctor:
    def __init__(self, kubeconfig: str, printed: pytest.CaptureFixture[str]) -> None:
        self._kubeconfig, self._printed = kubeconfig, printed
        self.status = 0

    def ask(self, *words: str) -> list[Obj]:
        self._printed.readouterr()
        self.status = kubectl.main(["doctor", *words, "-o", "json", "--kubeconfig", self._kubeconfig])
        found: list[Obj] = json.loads(self._printed.readouterr().out)["items"]
        return [each for each in found if each["status"] != "ok"]

    def failures(self, *words: str) -> list[tuple[str, str]]:
        return [(each["layer"], each["object"]) for each in self.ask(*words) if each["status"] == "fail"]


@pytest.fixture
def doctor(kubeconfig: str, host: Host | None, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(kubeconfig, capsys)


@pytest.fixture
def namespace(cluster: RealCluster) -> Iterator[str]:
    name = cluster.make_namespace("doctor")
    yield name
    cluster.drop_namespace(name)


def test_a_cluster_that_works_has_nothing_broken(doctor: Doctor) -> None:
    found = doctor.ask()
    assert [each for each in found if each["status"] != "warn"] == []
    assert doctor.status == 0


def test_a_class_that_cannot_be_evaluated_is_named(doctor: Doctor, cluster: RealCluster) -> None:
    """Its selector reads an attribute that no device has: every pod with it would end the scheduler's attempt."""
    name = f"doctor-{uuid.uuid4().hex[:6]}"
    expression = f'device.driver == "{CLASS}" && device.attributes["{CLASS}"].noSuchThing == 1'
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    cluster.client.create(made, "")
    try:
        found = [each for each in doctor.ask() if each["object"] == f"class/{name}"]
        assert [each["layer"] for each in found] == ["classes"]
        assert "noSuchThing" in found[0]["seen"]
    finally:
        cluster.client.delete(DEVICE_CLASSES, name, "")
    assert not [each for each in doctor.ask() if each["object"] == f"class/{name}"]


def test_a_missing_class_is_the_first_broken_layer(doctor: Doctor, cluster: RealCluster) -> None:
    stored = cluster.client.find(DEVICE_CLASSES, CLASS, "")
    assert stored is not None
    cluster.client.delete(DEVICE_CLASSES, CLASS, "")
    try:
        assert ("classes", f"class/{CLASS}") in doctor.failures()
        assert doctor.status == 1
    finally:
        kept = {
            name: stored["metadata"][name] for name in ("name", "labels", "annotations") if name in stored["metadata"]
        }
        cluster.client.create({**stored, "metadata": kept}, "")
    assert ("classes", f"class/{CLASS}") not in doctor.failures()


def test_a_template_of_another_namespace_is_found(doctor: Doctor, cluster: RealCluster, namespace: str) -> None:
    other = cluster.make_namespace("doctor")
    try:
        elsewhere = template("elsewhere", {"deviceClassName": CLASS})
        cluster.client.create(elsewhere, other)
        cluster.client.create(pod("train", pod_spec("elsewhere")), namespace)
        (found,) = [each for each in doctor.ask("pod/train", "-n", namespace) if each["layer"] == "workload"][:1]
        assert (found["status"], found["object"]) == ("fail", f"pod/{namespace}/train")
        assert other in found["seen"]
        assert doctor.status == 1
        cluster.client.create(elsewhere, namespace)
        assert not [each for each in doctor.ask("pod/train", "-n", namespace) if "does not exist" in each["seen"]]
    finally:
        cluster.drop_namespace(other)
