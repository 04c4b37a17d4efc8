"""The scheduler's node filters without devices."""

from collections import Counter
from typing import Any

import pytest

from dra_driver.core.quantity import NANO
from dra_driver.scheduler.allocation.extended import extended_claim, resource_classes
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
    usage = NodeUsage(pods=1, taken=Counter(cpu=2 * NANO))
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


GPU = "nvidia.com/gpu"


def device_class(name: str, resource: str = "", created: str = "2026-01-01T00:00:00Z") -> Obj:
    spec = {"extendedResourceName": resource} if resource else {}
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}


def container(name: str, **requests: str) -> Obj:
    return {"name": name, "resources": {"requests": {key.replace("gpu", GPU): v for key, v in requests.items()}}}


def pod(*containers: Obj, init: list[Obj] | None = None) -> Obj:
    metadata = {"name": "p", "namespace": "default", "uid": "u"}
    return {"metadata": metadata, "spec": {"containers": list(containers), "initContainers": init or []}}


def asked(of: Obj, on: Obj | None = None) -> tuple[dict[str, int], dict[str, list[str]]] | None:
    made = extended_claim(of, on or node("a"), resource_classes([device_class("gpu", GPU)]))
    if made is None:
        return None
    served: dict[str, list[str]] = {}
    for mapping in made.mappings:
        served.setdefault(mapping["containerName"], []).append(mapping["requestName"])
    counts = {item["name"]: item["exactly"]["count"] for item in made.claim["spec"]["devices"]["requests"]}
    return counts, served


def test_the_newest_class_has_the_resource() -> None:
    classes = [
        device_class("old", GPU, "2026-01-01T00:00:00Z"),
        device_class("b", GPU, "2026-02-01T00:00:00Z"),
        device_class("a", GPU, "2026-02-01T00:00:00Z"),
    ]
    found = resource_classes(classes)
    assert found[GPU] == "a"
    assert found["deviceclass.resource.kubernetes.io/old"] == "old"


def test_each_container_has_its_request() -> None:
    found = asked(pod(container("x", cpu="1", gpu="2"), container("y", gpu="1"), container("z", cpu="1")))
    names = {"container-0-request-1": 2, "container-1-request-0": 1}
    assert found == (names, {"x": ["container-0-request-1"], "y": ["container-1-request-0"]})


def test_init_containers_use_the_devices_of_later_containers() -> None:
    init = [container("i", gpu="3"), container("j", gpu="4"), {**container("side", gpu="1"), "restartPolicy": "Always"}]
    found = asked(pod(container("x", gpu="1"), init=init))
    assert found == (
        {"container-1-request-0": 2, "container-2-request-0": 1, "container-3-request-0": 1},
        {
            "side": ["container-2-request-0"],
            "x": ["container-3-request-0"],
            "i": ["container-2-request-0", "container-3-request-0", "container-1-request-0"],
            "j": ["container-2-request-0", "container-3-request-0", "container-1-request-0"],
        },
    )


def test_a_resource_of_the_node_needs_no_device() -> None:
    with_plugin = {**node("a"), "status": {"allocatable": {GPU: "8"}}}
    assert asked(pod(container("x", gpu="1")), with_plugin) is None
    assert asked(pod(container("x", cpu="1"))) is None
