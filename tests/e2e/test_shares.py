"""Shares for unmodified pods on a real cluster: one in each container, limits, the ninth pod, missing feature gates.

The tests of admission need only an administrator. examples/shares-for-unmodified-pods.yaml has the eight pods.
"""

import json
import os
from collections.abc import Iterator
from typing import Final

import pytest

from dra_driver.core.errors import InvalidObjectError, KubernetesApiError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import read_cluster
from dra_driver.kubectl.explain import Explanation, explain, pod_subject
from dra_driver.kubectl.explain.evaluation import scheduler_of
from dra_driver.kubectl.explain.report import Answer
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.demo.expectations import read_expectations, why_unscheduled
from dra_driver.sim.demo.requirements import Requirements, read_requirements
from tests.e2e.cluster import ROOT, RealCluster, wait
from tests.e2e.forms import pod, reached
from tests.e2e.gates import EXTENDED, SHARES, missing
from tests.fakes import chart

EXAMPLE: Final = ROOT / "examples" / "shares-for-unmodified-pods.yaml"
REQUIREMENTS: Final[Requirements] = read_requirements(EXAMPLE)
RESOURCE: Final = "nvidia.com/gpu.shared"
SUFFIX: Final = os.urandom(3).hex()
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS: Final = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
IN_DEFAULT: Final = "/api/v1/namespaces/default/pods"
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
NEEDED: Final = (EXTENDED, SHARES)


def asking(name: str, **amounts: str) -> Obj:
    """A pod of the device plugin; ``amounts`` are the limits of its containers and of its init container, "init"."""
    made = [
        {"name": each, "image": "ubuntu:24.04", "command": ["sleep", "infinity"]}
        | ({"resources": {"limits": {RESOURCE: amount}}} if amount else {})
        for each, amount in amounts.items()
    ]
    init = [each for each in made if each["name"] == "init"]
    spec: Obj = {"containers": [each for each in made if each["name"] != "init"]}
    return pod(name, spec | ({"initContainers": init} if init else {}) | {"automountServiceAccountToken": False})


@pytest.fixture(scope="module")
def one_each(kubeconfig: str) -> Iterator[RestClient]:
    """An API server with the chart's policy of one share in each container, under a name of this run."""
    rest = RestClient(Connection.load(kubeconfig))
    values = {"deviceClasses": {"shared": {"extendedResourceName": RESOURCE}}}
    made = [item for item in chart.objects(values) if item["metadata"]["name"] == "dra-driver-one-share-each"]
    assert {item["kind"] for item in made} == set(COLLECTIONS)
    for item in made:
        item["metadata"]["name"] += f"-{SUFFIX}"
        if "policyName" in item["spec"]:
            item["spec"]["policyName"] += f"-{SUFFIX}"
    try:
        for item in made:
            rest.create(COLLECTIONS[item["kind"]], item)
        wait(lambda: None if refusal(rest, main="2") else "the policy is not active", 30.0)
        yield rest
    finally:
        for item in reversed(made):
            try:
                rest.delete(f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}")
            except KubernetesApiError:
                continue


def refusal(rest: RestClient, **amounts: str) -> str | None:
    """The API server's answer to a pod that it does not accept."""
    try:
        rest.create(IN_DEFAULT, asking(f"e2e-{SUFFIX}", **amounts), dry_run=True)
    except InvalidObjectError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("amounts", "accepted"),
    [
        ({"main": "1"}, True),
        ({"main": ""}, True),
        ({"main": "1", "other": "1"}, True),
        ({"main": "2"}, False),
        ({"main": "1", "other": "3"}, False),
        ({"main": "", "init": "2"}, False),
    ],
)
def test_api_server_accepts_one_share_in_each_container(
    one_each: RestClient, amounts: dict[str, str], accepted: bool
) -> None:
    said = refusal(one_each, **amounts)
    assert (said is None) == accepted, said
    assert said is None or f"a container requests several of {RESOURCE}" in said


def test_the_policy_of_one_share_has_no_type_problems(one_each: RestClient) -> None:
    found = one_each.get(f"{COLLECTIONS['ValidatingAdmissionPolicy']}/dra-driver-one-share-each-{SUFFIX}")
    assert not found.get("status", {}).get("typeChecking", {}).get("expressionWarnings")


@pytest.mark.needs(*NEEDED)
def test_eight_pods_have_limits_and_the_ninth_waits(cluster: RealCluster, namespace: str) -> None:
    with reached(cluster, EXAMPLE, namespace, read_expectations(EXAMPLE)) as home:
        running = cluster.pods(home)
        assert len(running) == 8
        assert {name for each in running for name in cluster.granted_devices(each)} == {"gpu-0"}
        for name in ("notebook-a", "notebook-b"):
            lines = cluster.all_logs(cluster.pod(name, home))["main"].splitlines()
            assert {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1862M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12"} <= set(lines)
        cluster.apply([asking("ninth", main="1")], home)
        try:
            wait(
                lambda: None if why_unscheduled(cluster.pod("ninth", home)) else "the scheduler has not tried it", 60.0
            )
            report = explained(cluster, "ninth", home)
            assert report.verdict.answer is Answer.CANNOT_FIT
            assert {reason.code for asked in report.requests for reason in asked.reasons} >= {"capacityShort"}
        finally:
            cluster.client.delete(PODS, "ninth", home)


def explained(cluster: RealCluster, name: str, namespace: str) -> Explanation:
    state = read_cluster(cluster.rest, namespace)
    scheduler = scheduler_of(state.server_version, {}, state.slices)
    return explain(state, pod_subject(state, namespace, name), scheduler=scheduler)


def device_class(expression: str) -> Obj:
    """A class as `kubectl apply` creates it, with its own resource."""
    spec = {"extendedResourceName": f"example.com/share-{SUFFIX}", "selectors": [{"cel": {"expression": expression}}]}
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    metadata = {"name": f"e2e-shared-{SUFFIX}"}
    applied = json.dumps({**header, "metadata": metadata, "spec": spec})
    return {**header, "metadata": {**metadata, "annotations": {LAST_APPLIED: applied}}, "spec": spec}


def test_a_missing_feature_gate_is_named(cluster: RealCluster, gates: dict[str, bool]) -> None:
    """Without DRAConsumableCapacity the API server rejects the class of shared GPUs; without DRAExtendedResource it
    drops the resource of a class, and explain names the gate to the owner of a pod."""
    off = missing(NEEDED, gates)
    if SHARES in off:
        with pytest.raises(InvalidObjectError, match="allowMultipleAllocations"):
            cluster.rest.create(CLASSES, device_class("device.allowMultipleAllocations"), dry_run=True)
    else:
        cluster.rest.create(CLASSES, device_class("device.allowMultipleAllocations"), dry_run=True)
    made = cluster.rest.create(CLASSES, device_class(f'device.driver == "{SUFFIX}.example.com"'))
    name, home = made["metadata"]["name"], cluster.make_namespace("missing-gate")
    try:
        assert ("extendedResourceName" in made["spec"]) == (EXTENDED not in off)
        waits = pod("waits", {"containers": [{"name": "main", "image": "ubuntu:24.04"}]})
        waits["spec"]["containers"][0]["resources"] = {"limits": {f"example.com/share-{SUFFIX}": "1"}}
        cluster.apply([waits], home)
        wait(lambda: None if why_unscheduled(cluster.pod("waits", home)) else "the scheduler has not tried it", 60.0)
        report = explained(cluster, "waits", home)
        assert report.verdict.answer is Answer.CANNOT_FIT
        named = [cause.message for cause in report.causes if EXTENDED in cause.message]
        assert bool(named) == (EXTENDED in off), [cause.message for cause in report.causes]
    finally:
        cluster.client.delete(PODS, "waits", home)
        cluster.rest.delete(f"{CLASSES}/{name}")
        cluster.drop_namespace(home)
