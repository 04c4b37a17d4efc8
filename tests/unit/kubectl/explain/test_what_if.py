"""Explanations of manifests that are not applied yet."""

from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.explain import explain_pods
from dra_driver.kubectl.explain.manifests import MAX_PODS, pods_in
from dra_driver.kubectl.explain.report import Answer
from dra_driver.kubectl.explain.scheduler import gates_of, scheduler_of
from tests.fakes.dra_objects import claim, exactly, resource_slice
from tests.unit.kubectl.explain.clusters import cluster, pod, template

Obj = dict[str, Any]


def workload(kind: str, **spec: Any) -> Obj:
    inner = {"metadata": {"labels": {"a": "b"}}, "spec": pod(template="t")["spec"]}
    body = {"jobTemplate": {"spec": {"template": inner}}} if kind == "CronJob" else {"template": inner}
    return {"kind": kind, "metadata": {"name": "w"}, "spec": {**body, **spec}}


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (workload("Deployment"), 1),
        (workload("Deployment", replicas=3), 3),
        (workload("StatefulSet", replicas=10**9), MAX_PODS),
        (workload("Deployment", replicas=0), 0),
        (workload("Deployment", replicas="many"), 1),
        (workload("Job", parallelism=2, completions=9), 2),
        (workload("CronJob"), 1),
        (workload("DaemonSet"), 1),
        ({"kind": "Service", "metadata": {"name": "s"}}, 0),
        ({"kind": "Deployment", "metadata": {"name": "empty"}, "spec": {}}, 0),
    ],
)
def test_workloads_become_pods(document: Obj, count: int) -> None:
    assert len(pods_in([document], "team", "x.yaml")) == count


def test_a_malformed_pod_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigurationError, match=r"x\.yaml: Pod p: spec\.containers: expected a list"):
        pods_in([{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": {}}}], "d", "x.yaml")


def test_each_pod_sees_the_earlier_ones_placed() -> None:
    """Six GPUs are free: three pods with two GPUs each fit, a fourth does not."""
    state = cluster(templates=[template("t", exactly(count=2))])
    pods = [pod(f"p{index}", template="t") for index in range(4)]
    answers = [report.verdict.answer for report in explain_pods(state, pods)]
    assert answers == [Answer.FITS] * 3 + [Answer.CANNOT_FIT]


def test_pods_that_share_a_claim_go_to_the_same_node() -> None:
    shared = claim("c", exactly(count=4))
    reports = explain_pods(cluster(claims=[shared]), [pod("p", claim="c"), pod("q", claim="c")])
    assert [report.fitting_nodes for report in reports] == [("a",), ("a",)]


def test_defaults_of_manifests_are_filled_in() -> None:
    """Manifests usually omit allocationMode and count; capacities may be plain numbers."""
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": 1024}}},
    }
    (report,) = explain_pods(cluster(templates=[template("t", request)]), [pod(template="t")])
    assert report.verdict.answer is Answer.FITS


def test_the_scheduler_model_follows_the_clusters_version() -> None:
    assert not scheduler_of("v1.34.1", {}).features.consumable_capacity
    assert scheduler_of("v1.34.1", {"DRAConsumableCapacity": True}).features.consumable_capacity
    assert scheduler_of("v1.36.2+k3s1", {}).quirks.counters_by_pool_name
    assert not scheduler_of("v1.37.0", {}).quirks.counters_by_pool_name
    assert scheduler_of("", {}).features.consumable_capacity
    listed = resource_slice("a", {"name": "gpu-0", "attributes": {"numaNode": {"ints": [0]}}})
    assert scheduler_of("v1.36.2", {}, [listed]).features.list_attributes
    assert not scheduler_of("v1.36.2", {"DRAListTypeAttributes": False}, [listed]).features.list_attributes
    other = resource_slice("b", {"name": "nic-0"})
    other["spec"]["driver"] = "nic.example.com"
    assert scheduler_of("v1.36.2", {}, [other] * 100 + [listed]).features.list_attributes, "another driver's come first"
    assert gates_of("A=true, B=FALSE,") == {"A": True, "B": False}
    with pytest.raises(ConfigurationError, match="'A=1'"):
        gates_of("A=1")
