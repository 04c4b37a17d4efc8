"""Rails of several pods, and claims for a GPU with the network card of its PCIe root."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated.spec import parse_document
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import Answer, explain_pods, render, with_rails
from dra_driver.node.slices import ApiServerFeatures, build_devices
from dra_driver.sim.node import network
from tests.fakes.dra_objects import exactly, node, resource_slice, wire
from tests.unit.kubectl.explain.clusters import A, allocated_claim, cluster, explained, pod, template

Obj = dict[str, Any]
Claims = dict[tuple[str, str, str], Callable[[], list[Obj]]]
PAGE = Path(__file__).parents[4] / "docs" / "topology.md"
FEATURES = ApiServerFeatures(counters=True, taints=True, multi_allocation=True)
ROOT = "resource.kubernetes.io/pcieRoot"
NEAR: Obj = {"constraints": [{"requests": ["gpu", "nic"], "matchAttribute": ROOT}]}
NIC = {"name": "nic", "exactly": {"deviceClassName": "dranet"}}


def rails(name: str, *numbers: int | None, driver: str = "") -> Obj:
    """A slice with one GPU for each rail."""
    found = resource_slice(
        name, *({"name": f"gpu-{at}", "attributes": {"type": {"string": "gpu"}}} for at in range(len(numbers)))
    )
    for device, number in zip(found["spec"]["devices"], numbers, strict=True):
        device["attributes"] |= {} if number is None else {f"{driver}rail": {"int": number}}
    return found


def noted(state: ClusterState, **devices: tuple[str, ...]) -> list[str]:
    """Notes about pods with these devices of node a."""
    claims: Claims = {
        ("pod", "default", name): partial(list, [allocated_claim(name, *given, on="a")])
        for name, given in devices.items()
    }
    (report,) = with_rails(state, claims, [explained(cluster(templates=[template("t")]))])
    return list(report.notes)


def test_rails_of_pods_are_compared_in_one_sentence() -> None:
    eight = cluster(slices=[rails("a", *range(8))])
    halves = {"prefill-0": ("gpu-0", "gpu-1", "gpu-2", "gpu-3"), "decode-0": ("gpu-4", "gpu-5", "gpu-6", "gpu-7")}
    (note,) = noted(eight, **halves)
    assert note in " ".join(PAGE.read_text().split())
    (note,) = noted(cluster(slices=[rails("a", 0, 1, 3, 2)]), p=("gpu-0", "gpu-2"), q=("gpu-1",), r=("gpu-2", "gpu-0"))
    assert note.startswith("pods on different rails: p, r on rails 0, 3; q on rail 1. DRA cannot")


@pytest.mark.parametrize(
    ("state", "devices"),
    [
        (cluster(slices=[rails("a", 5, 5)]), {"p": ("gpu-0",), "q": ("gpu-1",)}),  # equal
        (cluster(slices=[rails("a", 5, None)]), {"p": ("gpu-0",), "q": ("gpu-1",)}),  # unknown is not different
        (cluster(slices=[rails("a", None, None)]), {"p": ("gpu-0",), "q": ("gpu-1",)}),
        (cluster(slices=[rails("a", 0, 1)]), {"p": ("gpu-0",), "q": ()}),
        (cluster(slices=[rails("a", 0, 1, driver="example.com/")]), {"p": ("gpu-0",), "q": ("gpu-1",)}),
    ],
)
def test_pods_on_equal_or_unknown_rails_get_no_note(state: ClusterState, devices: dict[str, tuple[str, ...]]) -> None:
    assert noted(state, **devices) == []


def test_claims_of_pods_are_read_only_if_a_device_has_a_rail() -> None:
    def unread() -> list[Obj]:
        raise AssertionError

    claims = {("pod", "default", name): unread for name in "pq"}
    assert with_rails(cluster(slices=[rails("a", None)]), claims, [report := explained(cluster())]) == [report]


def test_pods_and_claims_of_one_name_are_compared() -> None:
    state = cluster(slices=[rails("a", 0, 1)])
    gpus: list[Callable[[], list[Obj]]] = [
        partial(list, [allocated_claim("x", f"gpu-{at}", on="a")]) for at in range(2)
    ]
    spaces = {("pod", "left", "x"): gpus[0], ("pod", "right", "x"): gpus[1]}
    kinds = {("pod", "left", "x"): gpus[0], ("claim", "left", "x"): gpus[1]}
    said = [with_rails(state, claims, [explained(cluster())])[0].notes[-1] for claims in (spaces, kinds)]
    assert "rails: left/x on rail 0; right/x on rail 1." in said[0]
    assert "rails: x on rail 0; claim x on rail 1." in said[1]


def test_manifests_of_one_name_in_two_namespaces_are_compared() -> None:
    state = cluster(
        slices=[rails("a", 0, 1, driver="gpu.nvidia.com/")],
        nodes=[node("a")],
        templates=[{**template("t"), "metadata": {"name": "t", "namespace": name}} for name in ("left", "right")],
    )
    same = [
        {**found, "metadata": {**found["metadata"], "namespace": name}}
        for name in ("left", "right")
        for found in [pod("x", template="t")]
    ]
    first, _ = explain_pods(state, same)
    assert "left/x on rail 0; right/x on rail 1" in first.notes[-1]


def test_rails_are_compared_before_the_pods_exist() -> None:
    state = cluster(slices=[rails("a", 0, 1, driver="gpu.nvidia.com/")], nodes=[node("a")], templates=[template("t")])
    first, second = explain_pods(state, [pod("prefill", template="t"), pod("decode", template="t")])
    assert "prefill on rail 0; decode on rail 1" in first.notes[-1]
    assert second.notes == ()


def with_cards(text: str) -> ClusterState:
    gpus = [each.gpu for each in parse_document(text, "a").gpus]
    devices = build_devices(Snapshot(gpus=tuple(gpus)), {}, FEATURES).devices
    nics = resource_slice("a", *wire(network.cards(gpus)), name="nics")
    nics["spec"] |= {"driver": network.DRIVER, "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}}
    base = cluster()
    return cluster(
        nodes=[node("a")],
        classes=[*base.classes, network.DEVICE_CLASS],
        slices=[resource_slice("a", *wire(devices)), nics],
        templates=[
            template("t", exactly(), NIC, **NEAR),
            template("one", exactly("gpu", f"{A}.?rail.orValue(-1) == 0")),
        ],
    )


def test_gpu_gets_a_card_of_its_root() -> None:
    state = with_cards("gpus: [{model: l4-24gb, count: 4}]")
    held = replace(state, claims=[allocated_claim("held", "gpu-0", "gpu-1", on="a")])
    found = explained(held, node="a")
    assert found.node is not None
    assert found.node.allocation == ("gpu=gpu-2", "nic=nic-2")


def test_board_without_pcie_roots_is_the_reason_for_a_waiting_pair() -> None:
    state = with_cards("gpus: [{model: l4-24gb, pcieRoot: null}, {model: l4-24gb, pcieRoot: null}]")
    found = explained(state)
    assert found.verdict.answer is Answer.CANNOT_FIT
    assert f"-2 constraint 1, matchAttribute {ROOT}: the device does not have the attribute" in render(found)


def test_selector_of_a_rail_waits_where_no_policy_sets_rails() -> None:
    found = explained(with_cards("gpus: [{model: l4-24gb}]"), pod(template="one"))
    assert found.verdict.answer is Answer.CANNOT_FIT
    assert "seen: rail is missing" in render(found)
