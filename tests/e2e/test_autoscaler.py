"""A real cluster-autoscaler copies, renames and simulates published devices: which pods add nodes, which nodes go.

E2E_AUTOSCALER names a cluster-autoscaler 1.36 built with its provider kwok (`go build -tags kwok`). A control plane is
enough; docs/autoscalers.md has the results.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube import paths
from dra_driver.sim.apiserver.jsonvalue import Obj
from tests.e2e import forms
from tests.e2e.autoscaler import HOSTNAME, MAX_NODES, Fleet, dra, fleet
from tests.e2e.cluster import RealCluster
from tests.e2e.forms import share, slice_of, whole
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES, TAINTS

ROOT_POLICIES = Path(__file__).parent / "policies"
L4 = "time-sliced-l4.yaml"
TEN = share("10Gi", 0)
TWO = whole() | {"count": 2}

pytestmark = [
    pytest.mark.skipif(
        "E2E_AUTOSCALER" not in os.environ, reason="$E2E_AUTOSCALER is not set; it names a cluster-autoscaler"
    ),
]


@pytest.fixture
def gpus(cluster: RealCluster, kubeconfig: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with fleet(cluster, kubeconfig, request.node.name, folder) as made:
        yield made


def put_policy(gpus: Fleet, name: str) -> None:
    text = (ROOT_POLICIES / name).read_text()
    (gpus.policies / "new").write_text(text)
    (gpus.policies / "new").replace(gpus.policies / name)


# --- Up.


@pytest.mark.needs(PARTITIONS)
def test_ninth_gpu_adds_a_node_whose_slices_equal_the_copied_ones(gpus: Fleet) -> None:
    """Eight H100 with all MIG placements: several slices, counters apart. The new node goes with its pod, and its
    slices go with it, although its node process was killed before."""
    gpus.add("8xh100-sxm5-80gb", "gpus-0")
    gpus.autoscale()
    for number in range(8):
        gpus.pods(f"old-{number}", whole())
    assert set(gpus.wait_bound("old")) == {"gpus-0"}
    gpus.pods("ninth", whole())
    node = gpus.wait_grown("ninth")
    first, second = (gpus.slices(name) for name in ("gpus-0", node))
    assert len(first) == first[0]["spec"]["pool"]["resourceSliceCount"] > 2
    assert [_shape(item) for item in first] == [_shape(item) for item in second]
    assert not re.search(r"^cluster_autoscaler_dra_node_template_resources_mismatch\{.*\} [^0]", gpus.metrics(), re.M)
    gpus.processes[node].kill()
    gpus.delete("ninth")
    gpus.wait_nodes("gpus-0")


def _shape(item: Obj) -> object:
    """The part of a slice that two equal nodes share."""
    devices = [
        (one["name"], sorted(one["attributes"]), one["capacity"], one.get("consumesCounters"))
        for one in item["spec"].get("devices") or ()
    ]
    return item["spec"]["pool"]["resourceSliceCount"], devices, item["spec"].get("sharedCounters")


def test_two_gpus_in_one_pod_add_a_node(gpus: Fleet) -> None:
    gpus.add("2xh100-sxm5-80gb", "gpus-0")
    gpus.autoscale()
    gpus.pods("one", whole())
    gpus.wait_bound("one")
    gpus.pods("two", TWO)
    gpus.wait_grown("two")


@pytest.mark.needs(PARTITIONS)
def test_small_partition_adds_a_node_if_its_gpu_is_full(gpus: Fleet) -> None:
    """Copied counters work as published: 4g and 3g leave no place for 1g."""
    gpus.add("1xh100-sxm5-80gb", "gpus-0")
    gpus.autoscale()
    for name in ("4g.40gb", "3g.40gb"):
        gpus.pods(f"old-{name[:2]}", slice_of(name))
    assert set(gpus.wait_bound("old")) == {"gpus-0"}
    gpus.pods("small", slice_of("1g.10gb"))
    gpus.wait_grown("small")


@pytest.mark.needs(SHARES)
def test_third_share_adds_a_node(gpus: Fleet) -> None:
    put_policy(gpus, L4)
    gpus.add("1xl4-24gb", "gpus-0")
    gpus.autoscale()
    for number in range(2):
        gpus.pods(f"old-{number}", TEN)
    assert set(gpus.wait_bound("old")) == {"gpus-0"}
    gpus.pods("third", TEN)
    gpus.wait_grown("third")


@pytest.mark.needs(PARTITIONS, SHARES)
def test_claims_that_no_node_meets_add_no_node(gpus: Fleet) -> None:
    gpus.add("2xh100-sxm5-80gb", "gpus-0")
    gpus.autoscale()
    gpus.pods("three", whole() | {"count": 3})
    gpus.pods("unknown", slice_of("1g.99gb"))
    gpus.pods("share", TEN)
    for name in ("three", "unknown", "share"):
        gpus.wait_refused(name)


def test_claim_for_a_uuid_in_use_grows_to_the_maximum(gpus: Fleet) -> None:
    """Copied nodes have the UUID, new nodes do not: lint reports such claims (DRA023)."""
    gpus.add("1xl4-24gb", "gpus-0")
    gpus.pods("old", whole())
    gpus.wait_bound("old")
    (device,) = gpus.slices("gpus-0")[0]["spec"]["devices"]
    uuid = device["attributes"]["uuid"]["string"]
    gpus.autoscale(scale_down_unneeded_time="10m")
    expression = f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'
    gpus.pods("same", whole() | {"selectors": [{"cel": {"expression": expression}}]})
    gpus.wait(lambda: None if len(gpus.nodes()) == MAX_NODES else f"{gpus.nodes()}: {gpus.events()}")
    gpus.scanned()
    assert gpus.placed("same") == {"same": ""}
    assert len(gpus.nodes()) == MAX_NODES


def test_driver_that_never_starts_costs_one_node(gpus: Fleet) -> None:
    gpus.add("1xl4-24gb", "gpus-0")
    gpus.autoscale(max_node_provision_time="8s")
    gpus.boots = False
    gpus.pods("first", whole())
    gpus.wait_bound("first")
    gpus.pods("second", whole())
    gpus.wait_event("TriggeredScaleUp", "second")
    assert len(gpus.nodes()) == 2
    gpus.wait_event("ScaleUpTimedOut", "cluster-autoscaler-status")
    gpus.scanned()
    assert gpus.placed("second") == {"second": ""}
    assert len(gpus.nodes()) <= 2


@pytest.mark.needs(SHARES)
def test_changed_policy_changes_simulated_nodes(gpus: Fleet) -> None:
    """Shares get no new node before the policy publishes them; with it, the third share of a GPU gets one."""
    gpus.add("1xl4-24gb", "gpus-0")
    gpus.autoscale()
    gpus.pods("share-0", TEN)
    gpus.wait_refused("share-0")
    put_policy(gpus, L4)
    assert gpus.wait_bound("share-0") == ["gpus-0"]
    gpus.pods("share-1", TEN)
    assert gpus.wait_bound("share-1") == ["gpus-0"]
    gpus.pods("share-2", TEN)
    gpus.wait_grown("share-2")


@pytest.mark.needs(EXTENDED)
def test_extended_resource_pods_get_nodes_one_after_the_other(gpus: Fleet) -> None:
    """The autoscaler simulates no claims for such pods: a new node takes all of them, so nodes come one by one."""
    gpus.add("2xl4-24gb", "gpus-0")
    gpus.autoscale()
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": forms.IMAGE, "resources": {"limits": limits}}
    for number in range(6):
        gpus.apply(forms.pod(f"pod-{number}", gpus.spec({"containers": [container]})))
    gpus.wait_bound("pod", count=6)
    assert re.findall(r"Final scale-up plan: \[\{gpus (\S+)", gpus.log()) == ["1->2", "2->3"]
    assert len(gpus.nodes()) == 3


# --- Down.


def test_half_used_node_stays_and_empty_group_grows_from_memory(gpus: Fleet) -> None:
    gpus.add("2xh100-sxm5-80gb", "gpus-0", removable=True)
    gpus.deploy("half", whole())
    gpus.wait_bound("half")
    gpus.autoscale()
    gpus.wait_said("Node gpus-0 is not suitable for removal")
    assert gpus.nodes() == ["gpus-0"]
    gpus.delete("half")
    gpus.wait_nodes()
    gpus.pods("again", TWO)
    gpus.wait_grown("again")


def test_one_of_two_half_used_nodes_goes(gpus: Fleet) -> None:
    gpus.add("2xh100-sxm5-80gb", "gpus-0", "gpus-1", removable=True)
    spread(gpus, whole())
    gpus.autoscale()
    gpus.wait(lambda: None if len(gpus.nodes()) == 1 else f"nodes {gpus.nodes()}: {gpus.log()[-3000:]}")
    (kept,) = gpus.nodes()
    gpus.wait(lambda: None if set(gpus.placed("one", "two").values()) == {kept} else f"{gpus.placed()}")
    gpus.wait_nodes(kept)


def spread(gpus: Fleet, request: Obj) -> None:
    """One movable pod on each of two nodes."""
    gpus.deploy("one", request)
    (node,) = gpus.wait_bound("one")
    cordon(gpus, node, True)
    gpus.deploy("two", request)
    assert gpus.wait_bound("two") != [node]
    cordon(gpus, node, False)


def cordon(gpus: Fleet, node: str, value: bool) -> None:
    gpus.cluster.rest.merge_patch(paths.node(node), {"spec": {"unschedulable": value}})


@pytest.mark.needs(PARTITIONS, SHARES)
@pytest.mark.parametrize(
    ("board", "request_"), [("1xh100-sxm5-80gb", slice_of("1g.10gb")), ("1xl4-24gb", TEN)], ids=["partition", "share"]
)
def test_one_small_claim_keeps_its_node(gpus: Fleet, board: str, request_: Obj) -> None:
    """A partition takes a whole memory slice, and a share its device: the GPU counts as fully used."""
    put_policy(gpus, L4)
    gpus.add(board, "gpus-0", "gpus-1", removable=True)
    spread(gpus, request_)
    gpus.autoscale()
    for node in ("gpus-0", "gpus-1"):
        gpus.wait_said(rf"Node {node} unremovable: .* \(100% of allocatable\) is above the scale-down")
    assert gpus.nodes() == ["gpus-0", "gpus-1"]


@pytest.mark.needs(PARTITIONS)
def test_threshold_one_lets_partitions_move_together(gpus: Fleet) -> None:
    gpus.add("1xh100-sxm5-80gb", "gpus-0", "gpus-1", removable=True)
    spread(gpus, slice_of("1g.10gb"))
    gpus.autoscale(scale_down_utilization_threshold="1")
    gpus.wait(lambda: None if len(gpus.nodes()) == 1 else f"nodes {gpus.nodes()}: {gpus.log()[-3000:]}")
    (kept,) = gpus.nodes()
    gpus.wait_bound("one", "two", count=2)
    gpus.wait_nodes(kept)


@pytest.mark.needs(PARTITIONS)
def test_pods_that_prefer_each_other_leave_a_node_empty(gpus: Fleet) -> None:
    """The packing of docs/autoscalers.md: affinity of GPU pods, so that other nodes become empty and go."""
    gpus.add("1xh100-sxm5-80gb", "gpus-0", "gpus-1", removable=True)
    term = {"labelSelector": {"matchLabels": {"app": "small"}}, "topologyKey": HOSTNAME}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    gpus.deploy("small", slice_of("1g.10gb"), replicas=4, affinity=affinity)
    (kept,) = set(gpus.wait_bound("small", count=4))
    gpus.autoscale()
    gpus.wait_nodes(kept)


# --- Drained.


@pytest.mark.needs(TAINTS)
def test_drain_of_the_only_node_blocks_growth_unless_cordoned_first(gpus: Fleet) -> None:
    gpus.add("1xl4-24gb", "gpus-0")
    gpus.autoscale()
    gpus.scanned()
    dra(gpus.kubeconfig, "drain", "gpus-0", "--no-detach")
    gpus.pods("waits", whole())
    gpus.wait_refused("waits")
    gpus.delete("waits")
    cordon(gpus, "gpus-0", True)
    gpus.scanned()
    gpus.pods("too-late", whole())
    gpus.wait_refused("too-late")
    gpus.delete("too-late")
    dra(gpus.kubeconfig, "undrain", "gpus-0")
    cordon(gpus, "gpus-0", False)
    gpus.scanned()
    dra(gpus.kubeconfig, "drain", "gpus-0", "--no-detach", "--cordon")
    gpus.pods("grows", whole())
    gpus.wait_grown("grows")


@pytest.mark.needs(TAINTS)
def test_drained_node_blocks_no_group_with_another_node(gpus: Fleet) -> None:
    """Each scan takes any schedulable node as the template."""
    gpus.add("1xl4-24gb", "gpus-0", "gpus-1")
    gpus.pods("old", whole())
    (used,) = gpus.wait_bound("old")
    (drained,) = {"gpus-0", "gpus-1"} - {used}
    dra(gpus.kubeconfig, "drain", drained, "--no-detach")
    gpus.autoscale()
    gpus.pods("grows", whole())
    gpus.wait_grown("grows")
