"""Waiting pods in groups: one answer for equal pods, owners by the name that a user wrote."""

from typing import Any

from dra_driver.kubectl.explain import waiting
from tests.unit.kubectl.explain.clusters import cluster, pod


def replica(name: str, token: str, **spec: Any) -> dict[str, Any]:
    made = pod(name, claim="gpu", volumes=[{"name": f"kube-api-access-{token}"}], hostname=name, **spec)
    made["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-5d4f", "controller": True}]
    made["metadata"]["labels"] = {"pod-template-hash": "5d4f"}
    return made


def names(groups: waiting.Groups) -> list[list[str]]:
    return [[each["metadata"]["name"] for each in group] for group in groups]


def test_replicas_with_random_names_are_equal() -> None:
    state = cluster(pods=[replica("a", "x7k2p"), replica("b", "9qqzz"), replica("c", "11111", priority=5)])
    assert names(waiting.waiting_groups(state)) == [["a", "b"], ["c"]]
    assert names(waiting.owner_groups(state, "deployment", "web", "default")) == [["a", "b"], ["c"]]


def test_pods_with_a_node_or_an_end_do_not_wait() -> None:
    state = cluster(
        pods=[replica("a", "x7k2p", nodeName="n"), {**replica("b", "9qqzz"), "status": {"phase": "Failed"}}]
    )
    assert names(waiting.waiting_groups(state)) == []
