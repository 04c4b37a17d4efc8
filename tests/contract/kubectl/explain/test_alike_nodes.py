"""Equivalent nodes are explained once, with the same result as explaining each node."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.document import to_wire
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump, load
from dra_driver.kubectl.explain import claim_subject, explain
from tests.bench import allocation_cluster as cluster

NODES = 5
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.20gb'"
UUID = "GPU-00000003-ce1e-3b6e-6cc1-000000000002"
QUESTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "profile": {"class_name": "mig.nvidia.com", "expression": PROFILE},
    "nowhere": {"expression": "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'"},
    "one GPU by UUID": {
        "expression": "device.attributes['gpu.nvidia.com'].uuid == 'GPU-00000003-ce1e-3b6e-6cc1-000000000002'"
    },
    "every attribute": {"expression": "'uuid' in device.attributes['gpu.nvidia.com'] && device.attributes != {}"},
    "too many": {"count": 9},
    "all": {"all": True},
}
USES = {"idle": 0.0, "some": 0.4, "busy": 1.0}


@pytest.mark.parametrize("use", ["some", *(pytest.param(use, marks=pytest.mark.slow) for use in ("idle", "busy"))])
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_explanation_is_the_same(question: str, use: str, tmp_path: Path) -> None:
    state = _state(random.Random(f"{question} {use}"), QUESTIONS[question], USES[use])  # noqa: S311  a repeatable cluster
    _assert_same(state, tmp_path, node="node-3")


@pytest.mark.parametrize("attribute", ["parentUUID", "productName"])
def test_constraints_compare_the_values_of_each_node(attribute: str, tmp_path: Path) -> None:
    constraint = {"requests": [], "matchAttribute": f"gpu.nvidia.com/{attribute}"}
    question = {"class_name": "mig.nvidia.com", "count": 3, "constraints": [constraint]}
    state = _state(random.Random(attribute), question, 0.5)  # noqa: S311  a repeatable cluster
    _assert_same(state, tmp_path)


def test_a_node_with_other_devices_is_not_taken_for_its_neighbour(tmp_path: Path) -> None:
    state = _state(random.Random(1), QUESTIONS["profile"], 0.0)  # noqa: S311  a repeatable cluster
    for item in state.slices:
        spec: Any = item["spec"]
        if spec["nodeName"] == "node-3" and "devices" in spec:
            spec["devices"] = [device for device in spec["devices"] if "1g20gb" not in device["name"]]
    dump(state, tmp_path / "state.json")
    report = to_wire(explain(loaded := load(tmp_path / "state.json"), claim_subject(loaded, "default", "claim")))
    assert report["verdict"]["fittingNodeCount"] == NODES - 1
    assert "node-3" not in report["fittingNodes"]


def test_one_claim_is_not_taken_for_two(tmp_path: Path) -> None:
    state = _state(random.Random(1), QUESTIONS["whole"], 0.0)  # noqa: S311  a repeatable cluster
    every = [f"gpu-{minor}" for minor in range(8)]
    held = [_holding(0, every), _holding(1, every[:4]), _holding(1, every[4:])]
    held[2]["metadata"] = {"name": "second", "namespace": "default", "uid": "second"}
    held += [_holding(index, every) for index in range(2, NODES)]
    _assert_same(replace(state, claims=(*held, _claim())), tmp_path)


def test_the_file_is_small(tmp_path: Path) -> None:
    sizes = []
    for nodes in (2, 3):
        state = _state(random.Random(1), {}, 0.0, nodes)  # noqa: S311  a repeatable cluster
        dump(state, tmp_path / "state.json")
        sizes.append((tmp_path / "state.json").stat().st_size)
    assert sizes[1] - sizes[0] < 3 << 10


def _state(chance: random.Random, question: dict[str, Any], use: float, nodes: int = NODES) -> ClusterState:
    """Nodes with eight GPUs in every MIG form, the last with slices in another order, and claims that use them."""
    slices = [json.loads(text) for index in range(nodes) for text in cluster.slices(index, mig=True)]
    slices[-1]["metadata"]["name"] = f"0-{slices[-1]['metadata']['name']}"
    names = [device["name"] for item in slices[:5] for device in item["spec"].get("devices", ())]
    ways = [["gpu-0"], ["gpu-1", "gpu-2"], [f"gpu-{minor}" for minor in range(8)], chance.sample(names, 3)]
    ways = chance.sample(ways, 2)  # few, so that nodes are alike
    held = [_holding(index, chance.choice(ways)) for index in range(nodes) if chance.random() < use]
    return ClusterState(
        nodes=tuple(cluster.node(index) for index in range(nodes)),
        slices=tuple(slices),
        classes=tuple(cluster.classes()),
        claims=(*held, _claim(**question)),
        server_version="v1.36.2",
    )


def _assert_same(state: ClusterState, folder: Path, *, node: str = "") -> None:
    dump(state, folder / "state.json")
    stored_once = load(folder / "state.json")
    expected = to_wire(explain(state, claim_subject(state, "default", "claim"), node=node))
    assert to_wire(explain(stored_once, claim_subject(stored_once, "default", "claim"), node=node)) == expected


def _holding(index: int, devices: list[str]) -> dict[str, Any]:
    claim = cluster.holding(index, *devices)
    claim["spec"] = {"devices": {"requests": []}}
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": f"train-{index}", "uid": f"pod-{index}"}]
    return claim


def _claim(*, constraints: list[Any] | None = None, all: bool = False, **question: Any) -> dict[str, Any]:  # noqa: A002
    claim = cluster.claim(**question)
    devices = claim["spec"]["devices"]
    if all:
        devices["requests"][0]["exactly"] = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    if constraints:
        devices["constraints"] = constraints
    return claim
