"""The scheduler's node filters without devices."""

from typing import Any

import pytest

from dra_driver.core.quantity import NANO
from dra_driver.scheduler.allocation.nodes import (
    NodeUsage,
    requests_of,
    unfit_reason,
    unmodelled_constraints,
    usage_by_node,
)
from tests.fakes.dra_objects import node

Obj = dict[str, Any]


def asks(cpu: str, **fields: Any) -> Obj:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [asks("1"), asks("500m")]}, 1.5),
        ({"containers": [asks("1")], "initContainers": [asks("3"), asks("2")]}, 3),
        ({"containers": [asks("1")], "initContainers": [asks("1", restartPolicy="Always")]}, 2),
        ({"containers": [asks("1")], "initContainers": [asks("1", restartPolicy="Always"), asks("3")]}, 4),
        ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2),
        ({"containers": [asks("1")], "overhead": {"cpu": "250m"}}, 1.25),
        ({"containers": [asks("1")], "resources": {"requests": {"cpu": "5"}}}, 5),
        ({"containers": [asks("no quantity")]}, 0),
    ],
)
def test_requests_add_up_as_the_scheduler_adds_them(spec: Obj, cpu: float) -> None:
    """Init containers run one after the other; sidecars keep running."""
    assert requests_of({"spec": spec}).get("cpu", 0) == int(cpu * NANO)


def test_usage_counts_pods_that_have_not_ended() -> None:
    pods = [
        {"spec": {"nodeName": "a", "containers": [asks("1", ports=[{"hostPort": 80}])]}, "status": {"phase": phase}}
        for phase in ("Running", "Succeeded")
    ]
    found = usage_by_node([*pods, {"spec": {"containers": [asks("9")]}}])
    assert list(found) == ["a"]
    assert (found["a"].pods, found["a"].taken["cpu"], found["a"].ports) == (1, NANO, {(80, "TCP")})


def test_missing_resources_are_named_except_those_that_devices_provide() -> None:
    wanting = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3", "example.com/gpu": "1"}}}]}}
    there = {**node("a"), "status": {"allocatable": {"cpu": "4", "pods": "10"}}}
    usage = NodeUsage(pods=1, taken={"cpu": 2 * NANO})
    assert unfit_reason(wanting, there, usage) == "Insufficient cpu, Insufficient example.com/gpu"
    assert unfit_reason(wanting, there, NodeUsage(), ["example.com/gpu"]) == ""
    assert unfit_reason(wanting, there, NodeUsage(pods=10)) == "Too many pods"


def test_host_ports_and_node_names_are_checked() -> None:
    wanting = {"spec": {"nodeName": "a", "containers": [{"ports": [{"hostPort": 80}]}]}}
    assert "node name" in unfit_reason(wanting, node("b"), NodeUsage())
    assert "free ports" in unfit_reason(wanting, node("a"), NodeUsage(ports={(80, "TCP")}))
    assert unfit_reason(wanting, node("a"), NodeUsage(ports={(80, "UDP")})) == ""


def test_constraints_that_depend_on_other_pods_are_named() -> None:
    spec = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
        "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    }
    assert unmodelled_constraints({"spec": spec}) == ["pod anti-affinity", "topology spread constraints"]
    assert unmodelled_constraints({"spec": {}}) == []
