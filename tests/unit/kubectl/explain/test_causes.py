"""Causes other than allocation, each with the object concerned."""

import json
from typing import Any

import pytest

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import claim_subject, explain
from dra_driver.kubectl.explain.evaluation import Holders, scheduler_of
from dra_driver.kubectl.explain.report import Answer
from dra_driver.kubectl.explain.subject import is_reserved_for, subject_of
from dra_driver.scheduler.cel import selector_budget
from tests.fakes.dra_objects import DRIVER, claim, device_class, exactly, gpu, node, resource_slice
from tests.unit.kubectl.explain.clusters import (
    COSTLY,
    A,
    a100,
    allocated_claim,
    cluster,
    codes,
    explained,
    pod,
    template,
)


def _bound(**status: Any) -> dict[str, Any]:
    return pod(claim="c", nodeName="a", status={"phase": "Pending", **status})


def limited(resource: str, count: int) -> dict[str, Any]:
    return pod(containers=[{"name": "main", "resources": {"limits": {resource: str(count)}}}])


def generated(claim: str) -> dict[str, Any]:
    return pod(template="t", status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]})


VOLUMES = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
WITH_TEMPLATE = cluster(templates=[template("t")])


@pytest.mark.parametrize(
    ("state", "wanted", "code"),
    [
        (cluster(), pod(template="t"), "templateMissing"),
        (cluster(), pod(claim="c"), "claimMissing"),
        (cluster(templates=[template("t")], classes=[]), pod(template="t"), "classMissing"),
        (cluster(templates=[template("t")], slices=[]), pod(template="t"), "noSlices"),
        (cluster(templates=[template("t")], nodes=[]), pod(template="t"), "noNodes"),
        (
            cluster(templates=[template("t")], classes=[device_class(expression='device.driver == "other.example"')]),
            pod(template="t"),
            "driverSilent",
        ),
        (cluster(claims=[allocated_claim("c", on="a", deletionTimestamp="now")]), pod(claim="c"), "claimDeleted"),
        (cluster(claims=[allocated_claim("c", "gpu-0", on="a", users=("p",) * 256)]), pod(claim="c"), "claimFull"),
        (cluster(claims=[allocated_claim("c", on="a")]), generated("c"), "claimNotOwned"),
        (cluster(), generated("gone"), "claimMissing"),
        (WITH_TEMPLATE, pod(template="t", schedulingGates=[{"name": "example.com/hold"}]), "schedulingGates"),
        (WITH_TEMPLATE, pod(template="t", volumes=VOLUMES), "volumeWaiting"),
        (cluster(templates=[template("t", exactly("gpu", f"{A}.nosuch == 1"))]), pod(template="t"), "celError"),
        (cluster(templates=[template("t", exactly("gpu", "device.driver =="))]), pod(template="t"), "celError"),
        (cluster(templates=[template("t", exactly(count=33))]), pod(template="t"), "notWeighable"),
        (cluster(), limited("example.com/gpu", 1), "resourceUnknown"),
    ],
)
def test_cause_is_recognised(state: ClusterState, wanted: dict[str, Any], code: str) -> None:
    report = explained(state, wanted)
    assert report.verdict.answer is Answer.CANNOT_FIT
    assert codes(report)[0] == code
    cause = next(cause for cause in report.causes if cause.code == code)
    assert cause.message in report.verdict.sentence


def test_a_compute_instance_as_a_resource_names_the_gpu_instance() -> None:
    (cause,) = explained(cluster(), limited("nvidia.com/mig-1c.3g.20gb", 1)).causes
    assert "request the GPU instance 3g.20gb" in cause.fix


def test_costly_selectors_make_the_answer_unknown() -> None:
    """Neither "fits" nor "does not match"; cheap selectors are always evaluated."""
    state = cluster(templates=[template("t", exactly("gpu", f"{COSTLY} && {A}.productName == 'B200'"))])
    assert explained(state).verdict.answer is Answer.CANNOT_FIT
    with selector_budget(0.0):
        report = explained(state)
        cheap = explained(cluster(templates=[template("t", exactly("gpu", f"{A}.productName == 'A100'"))]))
    assert (report.verdict.answer, codes(report)) == (Answer.UNKNOWN, ["selectorsCostly"])
    assert "selector #0 not evaluated, because costly selectors took 0 s" in report.verdict.sentence
    assert "default/train" in report.verdict.sentence
    assert cheap.verdict.answer is Answer.FITS


def test_the_time_of_costly_selectors_is_bounded() -> None:
    """32 such selectors, which take a second for each device without the limit."""
    ticks = iter(range(10_000))
    texts = [f"{COSTLY} && {A}.productName != '{number}'" for number in range(32)]
    state = cluster(templates=[template("t", exactly("gpu", *texts))])
    with selector_budget(10, clock=lambda: float(next(ticks))):
        assert explained(state).verdict.answer is Answer.UNKNOWN
    assert next(ticks) == 20


@pytest.mark.parametrize("version", ["v1.34.9", "v1.35.6"])
def test_a_function_that_the_version_lacks_is_an_error_there(version: str) -> None:
    """``includes`` is in the schedulers of 1.36 alone."""
    state = cluster(templates=[template("t", exactly("gpu", f'{A}.type.includes("gpu")'))])
    report = explained(state, scheduler=scheduler_of(version, {}))
    assert codes(report)[0] == "celError"
    assert "function 'includes' needs Kubernetes 1.36" in report.verdict.sentence
    assert explained(state, scheduler=scheduler_of("v1.36.2", {})).verdict.answer is Answer.FITS


@pytest.mark.parametrize(("mode", "answer"), [("WaitForFirstConsumer", Answer.FITS), ("Immediate", Answer.CANNOT_FIT)])
def test_a_volume_bound_after_scheduling_does_not_block(mode: str, answer: Answer) -> None:
    state = cluster(
        templates=[template("t")],
        pvcs=[{"metadata": {"name": "data", "namespace": "default"}, "spec": {"storageClassName": "s"}}],
        storage_classes=[{"metadata": {"name": "s"}, "volumeBindingMode": mode}],
    )
    assert explained(state, pod(template="t", volumes=VOLUMES)).verdict.answer is answer


def test_missing_cpu_is_not_caused_by_devices() -> None:
    big = [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]
    nodes = [{**node("a"), "status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "110"}}}]
    others = [pod("other", nodeName="a", containers=big, status={"phase": "Running"})]
    state = cluster(nodes=nodes, templates=[template("t")], pods=others)
    report = explained(state, pod(template="t", containers=big))
    assert report.verdict.sentence.startswith("cannot fit: not caused by devices: 1 Insufficient cpu")
    others[0]["status"] = {"phase": "Succeeded"}
    assert explained(state, pod(template="t", containers=big)).verdict.answer is Answer.FITS


def test_unused_claim_is_reallocated_and_used_claim_binds_pod() -> None:
    state = cluster(claims=[allocated_claim("c", "gpu-0", on="a", users=("other",))])
    report = explained(state, pod(claim="c", nodeSelector={"kubernetes.io/hostname": "b"}))
    assert report.verdict.answer is Answer.CANNOT_FIT
    assert explained(state, pod(claim="c")).fitting_nodes == ("a",)
    # The scheduler deallocates an unused claim that keeps its pod from every node.
    state = cluster(claims=[allocated_claim("c", "gpu-0", on="a")])
    state.nodes[0]["spec"] = {"unschedulable": True}  # type: ignore[index]
    report = explained(state, pod(claim="c"))
    assert report.fitting_nodes == ("b",)
    assert "the scheduler will reallocate it" in report.notes[0]


def test_extended_resources_are_evaluated_as_a_claim() -> None:
    state = cluster(classes=[device_class("gpu")])
    state.classes[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    for resource in ("example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"):
        assert explained(state, limited(resource, 2)).verdict.nodes_fit == 2
        assert explained(state, limited(resource, 5)).requests[0].request == "container-0-request-0"
    # A device plugin on the node takes precedence.
    state = cluster(nodes=[{**node("a"), "status": {"allocatable": {"example.com/gpu": "1", "pods": "9"}}}])
    state.classes[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    assert explained(state, limited("example.com/gpu", 2)).nodes[0].message == "Insufficient example.com/gpu"


def test_a_field_that_the_api_server_dropped_is_named_with_its_gate() -> None:
    applied = template("t", exactly(capacity={"requests": {"memory": "1Gi"}}))
    stored = template("t", exactly())
    stored["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    report = explained(cluster(templates=[stored]))
    (cause,) = report.causes
    assert cause.code == "gateOff"
    assert "spec.spec.devices.requests[0].exactly.capacity" in cause.message
    assert "DRAConsumableCapacity" in cause.message


def test_a_dropped_extended_resource_is_named_with_its_gate() -> None:
    state = cluster()
    applied = {"spec": {**state.classes[0]["spec"], "extendedResourceName": "example.com/gpu"}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    state.classes[0]["metadata"]["annotations"] = annotations
    (cause,) = explained(state, limited("example.com/gpu", 1)).causes
    assert (cause.code, cause.blocks) == ("gateOff", True)
    assert "DRAExtendedResource" in cause.message
    other = explained(state, limited("example.com/other", 1)).causes
    assert [each.code for each in other] == ["resourceUnknown"]


HELD = allocated_claim("c", "gpu-0", on="a", users=("train",))
UNPREPARED = {
    "reason": "FailedPrepareDynamicResources",
    "message": "DRA driver gpu.nvidia.com is not registered",
    "involvedObject": {"kind": "Pod", "name": "train", "namespace": "default"},
}


@pytest.mark.parametrize(
    ("state", "wanted", "code"),
    [
        (cluster(claims=[claim("c")]), _bound(), "claimNotAllocated"),
        (cluster(claims=[allocated_claim("c", "gpu-0", on="a", users=("other",))]), _bound(), "claimNotReserved"),
        (cluster(claims=[HELD], events=[UNPREPARED]), _bound(), "prepareFailing"),
        (cluster(claims=[HELD], slices=[resource_slice("b", a100(0))]), _bound(), "driverNotOnNode"),
    ],
)
def test_a_placed_pod_that_does_not_start_has_a_cause(state: ClusterState, wanted: dict[str, Any], code: str) -> None:
    report = explained(state, wanted)
    assert report.verdict.answer is Answer.PLACED
    assert [str(cause.code) for cause in report.causes] == [code]
    assert codes(report) == [code] * (code != "driverNotOnNode"), "which blocks nothing"


@pytest.mark.parametrize(
    ("phase", "answer"), [("Running", Answer.RUNNING), ("Succeeded", Answer.FINISHED), ("Pending", Answer.PLACED)]
)
def test_pods_past_scheduling_are_not_evaluated(phase: str, answer: Answer) -> None:
    assert explained(cluster(claims=[HELD]), _bound(phase=phase)).verdict.answer is answer


def test_a_single_claim_is_evaluated_or_shows_its_devices() -> None:
    state = cluster(claims=[claim("waits"), allocated_claim("has", "gpu-0", on="a", users=("p",))])
    assert explain(state, claim_subject(state, "default", "waits")).verdict.answer is Answer.FITS
    report = explain(state, claim_subject(state, "default", "has"))
    assert report.verdict.sentence == f"has gpu-0 of a/{DRIVER}; reserved for p"


def test_scheduler_message_covers_unchecked_rules() -> None:
    message = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
    waits = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    report = explained(cluster(templates=[template("t")]), pod(template="t", status=waits))
    assert codes(report) == ["notWeighed"]
    assert message in report.verdict.sentence
    assert report.scheduler == message
    # A list that could not be read is not reported as empty.
    state = cluster(gaps=["resourceslices: forbidden"], slices=[], templates=[template("t")])
    assert "resourceslices: forbidden" in explained(state).verdict.sentence


def test_a_pod_that_fits_now_waits_for_the_next_attempt() -> None:
    """kube-scheduler tries an unschedulable pod again after 5 minutes if nothing changes before."""
    waits = {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: cannot allocate all claims"}]
    }
    report = explained(cluster(templates=[template("t")]), pod(template="t", status=waits))
    assert report.verdict.answer is Answer.FITS
    assert report.notes == ("it fits now; the scheduler tries again after a change, at the latest after 5 minutes",)
    assert explained(cluster(templates=[template("t")]), pod(template="t")).notes == ()


WHOLE = {**gpu("gpu-0"), "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
MIG = f'device.driver == "{DRIVER}" && {A}.type == "mig"'
SHARED = f'device.driver == "{DRIVER}" && {A}.sharingStrategy == "MPS"'


def messages(selector: str, version: str, *devices: Any, gates: dict[str, bool] | None = None) -> list[str]:
    state = cluster(
        classes=[device_class("wanted", expression=selector)],
        slices=[resource_slice("a", *(devices or (WHOLE,)))],
        claims=[claim("c", exactly(deviceClassName="wanted"))],
    )
    waiting = pod(claim="c")
    report = explain(state, subject_of(state, waiting), scheduler=scheduler_of(version, gates or {}, state.slices))
    return [f"{cause.message}; {cause.fix}" for cause in report.causes if cause.code == "gateOff"]


@pytest.mark.parametrize(("selector", "gate"), [(MIG, "DRAPartitionableDevices"), (SHARED, "DRAConsumableCapacity")])
def test_a_class_of_unpublished_devices_names_the_gate(selector: str, gate: str) -> None:
    (message,) = messages(selector, "v1.35.6")
    assert "DeviceClass wanted matches no published device" in message
    assert f"enable {gate} in the API server" in message
    assert messages(selector, "v1.36.2") == []
    assert messages(selector, "v1.36.2", gates={gate: False}) != []


def test_gate_is_blamed_only_for_classes_that_need_it() -> None:
    instance = {**gpu("gpu-0-mig-1"), "attributes": {"type": {"string": "mig"}, "uuid": {"string": "MIG-1"}}}
    assert messages(MIG, "v1.35.6", WHOLE, instance) == []
    assert messages('device.driver == "other.example.com"', "v1.35.6") == []


def test_fields_that_the_api_server_kept_show_gates_that_are_on() -> None:
    tainted = {**WHOLE, "taints": [{"key": "x", "effect": "NoSchedule"}]}
    counted = {**resource_slice("a"), "spec": {"sharedCounters": [{"name": "s", "counters": {}}]}}
    found = scheduler_of("v1.35.6", {}, [resource_slice("a", tainted), counted]).features
    assert (found.device_taints, found.partitionable_devices) == (True, True)
    assert (found.consumable_capacity, found.binding_conditions) == (False, False)
    off = {"DRADeviceTaints": False}
    assert not scheduler_of("v1.35.6", off, [resource_slice("a", tainted)]).features.device_taints


IN_GROUP = pod(template="t", schedulingGroup={"podGroupName": "pair"})


def group_claim(**changes: Any) -> dict[str, Any]:
    """The claim that Kubernetes generates for a PodGroup (KEP-5729): the group owns it and has it reserved."""
    claim = allocated_claim("pair-gpu-x", "gpu-0", on="a")
    claim["metadata"] |= {
        "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
        "ownerReferences": [{"kind": "PodGroup", "name": "pair", "uid": "uid-of-pair"}],
        **changes,
    }
    user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "pair", "uid": "uid-of-pair"}
    claim["status"]["reservedFor"] = [user]
    return claim


def test_claim_of_a_pod_group_belongs_to_each_of_its_pods() -> None:
    """The pod's status does not name it."""
    state = cluster(templates=[template("t")], claims=[group_claim()])
    (found,) = subject_of(state, IN_GROUP).claims
    assert (found.exists, found.problem) == (True, None)
    assert found.label == "claim gpu (of template t, for PodGroup pair)"
    assert is_reserved_for(group_claim(), IN_GROUP)
    assert Holders([group_claim()]).label_with_pods("default/pair-gpu-x").endswith("(pod podgroups/pair)")


@pytest.mark.parametrize(
    "other",
    [{"ownerReferences": [{"kind": "PodGroup", "name": "other", "uid": "u"}]},
     {"ownerReferences": [{"kind": "Pod", "name": "pair", "uid": "u"}]},
     {"annotations": {"resource.kubernetes.io/pod-claim-name": "nic"}}],
    ids=["other group", "pod of that name", "other entry"],
)  # fmt: skip
def test_claim_of_another_owner_or_entry_is_not_the_claim_of_the_group(other: dict[str, Any]) -> None:
    state = cluster(templates=[template("t")], claims=[group_claim(**other)])
    (found,) = subject_of(state, IN_GROUP).claims
    assert not found.exists


def test_claim_of_a_pod_group_is_not_reserved_for_other_pods() -> None:
    assert not is_reserved_for(group_claim(), pod(template="t"))
    assert not is_reserved_for(group_claim(), pod(template="t", schedulingGroup={"podGroupName": "other"}))
