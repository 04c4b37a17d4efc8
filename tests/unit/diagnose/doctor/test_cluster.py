"""Reading and judging a cluster: time limit, missing permissions, narrowed scope, and every broken set-up."""

import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, ServerBusyError
from dra_driver.core.finding import Layer, Status
from dra_driver.core.model.gpu_node import HealthWord, NodeProblem
from dra_driver.diagnose.doctor import check_policies
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.cluster import CHECKS, DoctorScope, diagnose, narrowed
from dra_driver.diagnose.doctor.facts import facts_of_state
from dra_driver.diagnose.doctor.node import NODE_CHECKS
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump, load
from dra_driver.scheduler.cel import selector_budget
from tests.doctor_faults import ROWS
from tests.doctor_faults.__main__ import DATA, name_of
from tests.doctor_faults.cluster import (
    SERVER,
    BrokenSetup,
    Cluster,
    by_template,
    devices,
    event,
    examined,
    first_of,
    gpu_node,
    named,
    template,
    told,
    workload,
)
from tests.fakes.dra_objects import DRIVER, Obj, allocated, claim, device_class, exactly, resource_slice
from tests.fakes.node_faults import FAULTS
from tests.harness.raising import fails
from tests.unit.kubectl.explain.clusters import COSTLY


class SlowCluster(Cluster):
    """Each list takes ten seconds of a clock that only it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.allowed_s: list[float] = []

    def list(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> Obj:
        self.allowed_s.append(within_s or 0.0)
        self.now_s += 10.0
        return super().list(path, query)


def judged(cluster: Cluster, **scope: Any) -> DoctorReport:
    return diagnose(read_facts(cluster, server=SERVER), DoctorScope(**scope), clock=time.monotonic)


def test_all_questions_end_within_the_time() -> None:
    """A slow API server is asked what fits; the rest is said to be open, and the answers that came are used."""
    cluster = SlowCluster()
    facts = read_facts(cluster, server=SERVER, total_s=35.0, clock=lambda: cluster.now_s)
    assert cluster.allowed_s == [35.0, 25.0, 15.0, 5.0]
    assert facts.knows(fact.DAEMONSETS)
    assert "--timeout" in facts.unanswered["slices"].fix


def test_after_an_api_server_that_is_down_nothing_is_asked() -> None:
    """Each further question would wait again."""
    cluster = Cluster()
    cluster.version = ServerBusyError("GET /version failed: 503", status=503)
    read_facts(cluster, server=SERVER)
    assert len(cluster.asked) > 10, "an error of one question stops no other"
    cluster = Cluster()
    cluster.version = ApiUnreachableError("GET /version: refused")
    facts = read_facts(cluster, server=SERVER)
    assert cluster.asked == ["/version"]
    assert set(facts.unanswered) == set(facts.answers) - {fact.SERVER}


def test_where_not_all_namespaces_may_be_read_the_named_one_is() -> None:
    cluster = Cluster()
    cluster.pods.append(workload())
    cluster.refused = {"list pods in all namespaces", "list events in all namespaces"}
    facts = read_facts(cluster, server=SERVER, namespace="team-a")
    assert [pod["metadata"]["name"] for pod in facts.items("pods")] == ["train"]
    found = diagnose(facts, DoctorScope(), clock=time.monotonic)
    said = [item.seen for item in found.findings if item.reason == "NamespaceOnly"]
    words = ("list pods in all namespaces", "/namespaces/team-a/pods")
    assert any(all(each in text for each in words) for text in said)


def test_a_node_is_judged_without_the_others() -> None:
    cluster = Cluster()
    cluster.slices = cluster.slices[:1]
    good, bad = (judged(cluster, kind="node", name=name) for name in ("gpu-a", "gpu-b"))
    assert (good.exit_status, good.target) == (0, "node/gpu-a")
    assert bad.first_broken is not None
    assert bad.first_broken.layer is Layer.SLICES
    # Nor with claims of other nodes: their pods are elsewhere, and not gone. One in the pool of no node belongs to all.
    cluster = Cluster()
    for name, node in (("here", "gpu-a"), ("there", "gpu-b")):
        cluster.pods.append(workload(f"pod-{name}", node=node))
        cluster.claims.append(_ending(name, node))
    cluster.claims.append(_ending("fabric", "gpu-b"))
    cluster.claims[-1]["status"]["allocation"]["devices"]["results"][0]["pool"] = "rack-1"
    cluster.claims[-1]["status"]["reservedFor"] = []
    facts = narrowed(read_facts(cluster, server=SERVER), DoctorScope(kind="node", name="gpu-a"))
    assert [item["metadata"]["name"] for item in facts.items("claims")] == ["here", "fabric"]
    report = judged(cluster, kind="node", name="gpu-b")
    assert "claims-end" not in {finding.check for finding in report.findings}


def _without_partitions(cluster: Cluster, *nodes: str, product: str = "NVIDIA H100 80GB HBM3") -> Cluster:
    """The cluster whose ``nodes`` publish whole GPUs only, and a claim that waits for a partition."""
    cluster.claims.append(claim("part", exactly(deviceClassName="mig.nvidia.com"), namespace="team-a"))
    for item in cluster.slices:
        if item["spec"]["nodeName"] in nodes:
            item["spec"]["devices"] = [each for each in item["spec"]["devices"] if "-mig-" not in each["name"]]
            for each in item["spec"]["devices"]:
                each["attributes"]["productName"] = {"string": product}
    for item in cluster.gpu_nodes:
        if item["metadata"]["name"] in nodes:
            for each in item["status"]["gpus"]:
                each["offeredAs"] = ["Whole"]
    return cluster


@pytest.mark.parametrize("scope", [{"kind": "node", "name": "gpu-a"}, {}])
def test_classes_are_judged_by_the_devices_of_the_whole_cluster(scope: dict[str, str]) -> None:
    report = judged(_without_partitions(Cluster(), "gpu-a"), **scope)
    assert [str(each) for each in report.findings if each.status is not Status.OK] == []


@pytest.mark.parametrize(
    ("gate", "product", "reason"),
    [
        (True, "NVIDIA A100-SXM4-40GB", "MigModeOff"),
        (None, "NVIDIA A30", "MigModeOff"),
        (None, "NVIDIA L4", "NoPartitions"),
        (False, "NVIDIA A100-SXM4-40GB", "FeatureGateOff"),
    ],
)
def test_why_no_partition_is_published(gate: bool | None, product: str, reason: str) -> None:
    """A gate that the API server does not list is unknown, not off."""
    cluster = _without_partitions(Cluster(), "gpu-a", "gpu-b", product=product)
    del cluster.gates["DRAPartitionableDevices"]
    cluster.gates |= {} if gate is None else {"DRAPartitionableDevices": gate}
    first = judged(cluster).first_broken
    assert first is not None
    assert (first.object, first.reason) == ("class/mig.nvidia.com", reason), first.seen
    assert ("kubectl dra gpu mig-mode gpu-a/gpu-0 on" in first.fix) is (reason == "MigModeOff")


def test_mig_mode_is_named_for_a_gpu_without_published_devices() -> None:
    """A policy allows partitions only, and MIG mode is off: nothing is left to publish."""
    cluster = _without_partitions(Cluster(), "gpu-a", "gpu-b")
    for item in cluster.slices:
        item["spec"]["devices"] = []
    for item in cluster.gpu_nodes:
        for each in item["status"]["gpus"]:
            each |= {"offeredAs": [], "policy": "sevenths", "productName": "NVIDIA A100-SXM4-40GB"}
    uuid = cluster.gpu_nodes[0]["status"]["gpus"][0]["uuid"]
    waits = f"switching MIG mode on of {uuid}: the GPU is open in nv-hostengine (process 7)"
    cluster.gpu_nodes[0]["status"]["problems"] = [{"reason": "Degraded", "message": waits}]
    (found,) = [each for each in judged(cluster).findings if each.reason == "MigModeOff"]
    assert found.object == "class/mig.nvidia.com"
    assert "publish no devices" in found.seen
    assert waits in found.seen
    assert f"kubectl dra gpu mig-mode gpu-a/{uuid} on" in found.fix


def test_of_too_many_devices_no_match_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_policies, "MOST_DEVICES", 2)
    cluster = _without_partitions(Cluster(), "gpu-a")
    found = next(each for each in judged(cluster).findings if each.reason == "NoneOfFirstDevicesMatch")
    assert (found.status, found.object) == (Status.UNKNOWN, "class/mig.nvidia.com")


_TAINTED = {"taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]}
_FALLEN = "The GPU reported XID 79. Drain the node and reboot it."


@pytest.mark.parametrize("by", ["slices", "GpuNode", "both"])
@pytest.mark.parametrize("held", [True, False])
def test_a_pod_on_an_unhealthy_gpu_is_not_fine(by: str, held: bool) -> None:
    """The taint is published some moments before the GpuNode is written. A GPU that others hold is a warning."""
    cluster = Cluster()
    if by != "slices":
        problem = NodeProblem(reason="Degraded", message=f"gpu-0 is unhealthy: {_FALLEN}")
        sick: dict[str, Any] = {"health": HealthWord.UNHEALTHY, "causes": ("xid",), "message": _FALLEN}
        cluster.gpu_nodes[0] = told("gpu-a", problems=(problem,), **sick)
    if by != "GpuNode":
        cluster.slices[0]["spec"]["devices"][0] |= _TAINTED
    cluster.pods.append(workload(node="gpu-a", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}]))
    cluster.claims.append(allocated(claim("c", namespace="team-a"), "gpu-0" if held else "gpu-1", node_name="gpu-a"))
    report = judged(cluster, kind="pod", namespace="team-a", name="train")
    (found,) = [each for each in report.findings if each.status in (Status.FAIL, Status.WARN)]
    assert (found.object, found.status) == ("gpu/gpu-a/gpu-0", Status.FAIL if held else Status.WARN)
    assert "reset (" not in found.fix
    assert judged(cluster).exit_status == 1


@pytest.mark.parametrize("scope", ["pod/team-a/pod-lost", "claim/team-a/lost"])
def test_a_pod_or_claim_whose_node_is_gone_is_judged(scope: str) -> None:
    cluster = Cluster()
    cluster.pods.append(workload("pod-lost", node="gpu-z", resourceClaims=[{"name": "g", "resourceClaimName": "lost"}]))
    cluster.claims.append(_ending("lost", "gpu-z"))
    kind, namespace, name = scope.split("/")
    first = judged(cluster, kind=kind, namespace=namespace, name=name).first_broken
    assert first is not None
    assert (first.layer, first.object, first.reason) == (Layer.NODE, "node/gpu-z", "NodeExists")


def _ending(name: str, node: str) -> Obj:
    """A claim on the node that is being deleted and reserved for its pod."""
    item = allocated(claim(name, namespace="team-a"), "gpu-0", node_name=node)
    item["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    item["status"]["reservedFor"] = [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-of-pod-{name}"}]
    return item


def test_a_pod_is_judged_with_its_claims_and_its_node_alone() -> None:
    cluster = Cluster()
    cluster.templates.append(template("gpus"))
    cluster.pods += [workload(**by_template("gpus")), workload("other", **by_template("missing"))]
    chosen = narrowed(read_facts(cluster, server=SERVER), DoctorScope(kind="pod", namespace="team-a", name="train"))
    assert [pod["metadata"]["name"] for pod in chosen.items("pods")] == ["train"]
    assert judged(cluster, kind="pod", namespace="team-a", name="train").exit_status == 0


@pytest.mark.parametrize(
    ("scope", "name", "existing"),
    [
        (DoctorScope(kind="node", name="gpu-z"), "gpu-z", "cpu-a, gpu-a, gpu-b"),
        (DoctorScope(kind="pod", namespace="team-a", name="x"), "x", "train"),
        (DoctorScope(kind="claim", namespace="team-a", name="x"), "x", "shared"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(scope: DoctorScope, name: str, existing: str) -> None:
    cluster = Cluster()
    cluster.pods.append(workload())
    cluster.claims.append(claim("shared", namespace="team-a"))
    with fails(ConfigurationError, "TargetNotFound", name=name, existing=existing):
        narrowed(read_facts(cluster, server=SERVER), scope)


def test_a_class_whose_selector_costs_too_much_is_named() -> None:
    cluster = Cluster()
    cluster.classes.append(device_class("costly", expression=f'device.driver == "{DRIVER}" && {COSTLY}'))
    with selector_budget(0.0):
        (found,) = (each for each in judged(cluster).findings if each.object == "class/costly")
    assert (found.status, found.reason) == (Status.WARN, "SelectorTooCostly")


def test_a_snapshot_leaves_open_what_it_does_not_have() -> None:
    """It has no DaemonSets and no GpuNodes: that is no failure."""
    cluster = Cluster()
    state = ClusterState(
        nodes=cluster.nodes, slices=cluster.slices, classes=cluster.classes, server_version="v1.36.2", source="s.json"
    )
    report = diagnose(facts_of_state(state), DoctorScope(), clock=time.monotonic)
    assert report.first_broken is None
    assert report.exit_status == 2
    assert any("a snapshot has no DaemonSets" in finding.seen for finding in report.unknown)
    good = {finding.check for finding in report.findings if finding.status is Status.OK}
    assert {"kubernetes-version", "classes-present", "classes-match"} <= good


def test_objects_of_any_shape_end_no_report() -> None:
    cluster = Cluster()
    for items in (cluster.nodes, cluster.pods, cluster.slices, cluster.gpu_nodes, cluster.daemonsets, cluster.events):
        items.append({"metadata": {"name": "odd", "labels": [], "namespace": "team-a"}, "spec": 1, "status": ["x"]})
    report = judged(cluster)
    assert len(report.findings) > 10
    assert not [finding for finding in report.findings if "check failed" in finding.seen]


def test_a_snapshot_with_templates_is_judged_like_its_objects(tmp_path: Path) -> None:
    """A large snapshot stores equal slices once."""
    cluster = Cluster()
    names = [f"gpu-{number}" for number in range(4)]
    slices = [resource_slice(name, *devices(name)) for name in names]
    for number, device in enumerate(each for item in slices for each in item["spec"]["devices"]):
        for name in ("uuid", "parentUUID"):
            if name in device["attributes"]:
                device["attributes"][name] = {"string": f"GPU-{number:08x}-0000-4000-8000-000000000000"}
    for item in list(slices):  # the same GPUs once more, by another driver
        other = {**item["spec"], "driver": "gpu.example.com", "pool": {**item["spec"]["pool"], "name": "other"}}
        slices.append({"metadata": {"name": f"other-{item['metadata']['name']}"}, "spec": other})
    state = ClusterState(
        nodes=[gpu_node(name) for name in names], slices=slices, classes=cluster.classes, server_version="v1.36.2"
    )
    dump(state, tmp_path / "s.json")
    assert '"templates"' in (tmp_path / "s.json").read_text()
    states = (state, load(tmp_path / "s.json"))
    first, second = (diagnose(facts_of_state(each), DoctorScope(), clock=time.monotonic).findings for each in states)
    assert first == second
    assert any("16 devices of 4 nodes" in finding.seen for finding in first)
    assert any(finding.reason == "GpusPublishedTwice" and "2 GPUs" in finding.seen for finding in second)


@cache
def seen(row: BrokenSetup) -> DoctorReport:
    return examined(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_broken_setup_is_named_first(row: BrokenSetup) -> None:
    report = seen(row)
    first = first_of(report)
    assert first is not None
    said = f"{first.object} {first.seen} {first.expected} {first.fix}"
    assert (first.layer, first.status, first.reason) == (row.layer, row.status, row.reason), said
    assert not [words for words in row.says if words not in said], said
    assert first.expected or first.status is Status.UNKNOWN
    assert first.fix


def test_a_healthy_cluster_has_no_finding_but_good_ones() -> None:
    report = judged(Cluster())
    assert [finding for finding in report.findings if finding.status is not Status.OK] == []
    assert report.exit_status == 0


def test_devices_and_pods_of_other_drivers_are_no_concern() -> None:
    """A card that is not ready, a pod that is not scheduled, and one that is not prepared: with a network driver's
    claim alone."""
    cluster = Cluster()
    condition = {"type": "Ready", "status": "False", "reason": "NoLink", "message": "no link"}
    device = {"driver": "net.example.com", "pool": "p", "device": "eth0", "conditions": [condition]}
    card = claim("card", namespace="team-a")
    card["status"] = {"devices": [device]}
    cluster.claims.append(card)
    assert judged(cluster).first_broken is None
    cluster = Cluster()
    guard = 'device.driver == "net.example.com"'
    cluster.classes.append(named("nets", spec={"selectors": [{"cel": {"expression": guard}}]}))
    cluster.templates.append(template("cards", device_class="nets"))
    waiting, failing = (workload(name, node=node, **by_template("cards")) for name, node in (("w", ""), ("f", "gpu-a")))
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "no card"}]
    cluster.pods += [waiting, failing]
    said = "Failed to prepare dynamic resources: DRA driver net.example.com is not registered"
    cluster.events.append(event("FailedPrepareDynamicResources", failing, said))
    report = judged(cluster)
    assert [str(each) for each in report.findings if each.status is not Status.OK] == []


@pytest.mark.parametrize("order", [1, -1])
def test_the_newest_event_of_a_failed_prepare_is_shown(order: int) -> None:
    cluster, pod = Cluster(), workload(node="gpu-a", **by_template("cards"))
    cluster.pods.append(pod)
    told = [
        event("FailedPrepareDynamicResources", pod, text) | {"lastTimestamp": f"2026-11-22T1{hour}:00:00Z"}
        for hour, text in enumerate(("gpu.nvidia.com: older", "gpu.nvidia.com: newer"))
    ]
    cluster.events += told[::order]
    (found,) = (each for each in judged(cluster).findings if each.check == "prepare-errors")
    assert found.seen.endswith("newer")


@pytest.mark.parametrize(
    ("deleted", "gone", "warned"), [(True, "ab", True), (True, "a", False), (False, "ab", False), (True, "", False)]
)
def test_only_a_deleted_claim_whose_pods_are_all_gone_is_stuck(deleted: bool, gone: str, warned: bool) -> None:
    cluster, held = Cluster(), claim("held", namespace="team-a")
    held["metadata"] |= {"deletionTimestamp": "2026-11-22T10:00:00Z"} if deleted else {}
    held["status"] = {"reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-of-{name}"} for name in "ab"]}
    cluster.claims.append(held)
    cluster.pods += [workload(name) for name in "ab" if name not in gone]
    assert ("claims-end" in {each.check for each in judged(cluster).findings if each.status is Status.WARN}) is warned


def test_what_a_pod_of_unknown_purpose_lacks_is_a_warning_of_the_cluster() -> None:
    """A network driver's pod whose claim is missing breaks no GPU; who asks about the pod or claim is told it fails."""
    cluster = Cluster()
    cluster.pods.append(workload(resourceClaims=[{"name": "card", "resourceClaimName": "card"}]))
    cluster.claims.append(claim("uplink", exactly(deviceClassName="nets"), namespace="team-a"))
    of_all = judged(cluster)
    warned = [each.check for each in of_all.findings if each.status is Status.WARN]
    assert (of_all.exit_status, sorted(warned)) == (0, ["claims-and-templates-exist", "classes-of-claims-exist"])
    for scope in (("pod", "train"), ("claim", "uplink")):
        assert judged(cluster, kind=scope[0], namespace="team-a", name=scope[1]).exit_status == 1, scope


def test_names_are_unique_and_every_check_that_can_fail_speaks_in_some_row() -> None:
    """A check that no broken set-up needs is not known to work."""
    for rows in (ROWS, CHECKS, NODE_CHECKS):
        assert len({each.name for each in rows}) == len(rows)
    spoke = {finding.check for row in ROWS for finding in seen(row).findings if finding.status is not Status.OK}
    assert {check.name for check in CHECKS} - spoke == set()


def test_every_broken_set_up_is_recorded_with_its_layer() -> None:
    """The page is made from the record; a new or changed set-up needs `python -m tests.doctor_faults --write`."""
    found = json.loads(DATA.read_text())
    assert [(row["name"], row["layer"], row["status"]) for row in found["cluster"]] == [
        (row.name, row.layer, row.status) for row in ROWS
    ]
    assert [(row["name"], row["layer"]) for row in found["node"]] == [(name_of(each), each.layer) for each in FAULTS]
