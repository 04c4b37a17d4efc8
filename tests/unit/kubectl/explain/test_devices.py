"""Reasons of rejected devices (whole, partition, share): each of the allocator's reasons, with the found values."""

import re
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.kubectl.explain import explain_pods
from dra_driver.kubectl.explain.evaluation import gates_of, scheduler_of
from dra_driver.kubectl.explain.manifests import MAX_PODS, pods_in
from dra_driver.kubectl.explain.report import Answer, Explanation, render
from tests.fakes.dra_objects import DRIVER, claim, device_class, exactly, gpu, resource_slice
from tests.fakes.published import h100, having, share, slice_name, slices
from tests.unit.kubectl.explain.clusters import (
    MEMORY,
    A,
    a100,
    allocated_claim,
    asked,
    cluster,
    codes,
    explained,
    h100_gpu,
    pod,
    template,
)


def test_the_false_clause_is_named_with_the_value_found() -> None:
    expression = f'{A}.productName == "H100" && {MEMORY}.compareTo(quantity("100Gi")) >= 0'
    report = asked(exactly("gpu", expression))
    (request,) = report.requests
    assert [(reason.code, reason.devices) for reason in request.reasons] == [("requestSelector", n) for n in (4, 2)]
    assert request.reasons[0].message == f'selector, clause 1 of 2: {A}.productName == "H100"'
    assert request.reasons[0].seen == ("productName = A100 (4 devices)",)
    assert request.reasons[1].seen == ("memory = 80Gi (2 devices)",)
    assert report.nearest_miss is not None
    assert (report.nearest_miss.node, report.nearest_miss.device) == ("b", "gpu-0")


def test_class_and_request_selectors_are_reported_separately() -> None:
    other = device_class("mig", expression=f'device.driver == "{DRIVER}" && {A}.type == "mig"')
    report = asked(exactly(deviceClassName="mig"), classes=[other])
    (reason,) = report.requests[0].reasons
    assert (reason.code, reason.seen) == ("classSelector", ("type = gpu (6 devices)",))
    report = asked(exactly("gpu", f'has({A}.fabric) && {A}.fabric == "x"'))
    assert report.requests[0].reasons[0].seen == ("fabric is missing (6 devices)",)


def test_devices_in_use_name_the_claim_and_its_pods() -> None:
    claims = [allocated_claim("one", "gpu-0", on="b", users=("p",)), allocated_claim("two", "gpu-1", on="b")]
    looks = allocated_claim("looks", "gpu-0", on="b")  # admin access does not hold a device
    looks["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    report = asked(exactly("gpu", f'{A}.productName == "H100"'), claims=[looks, *claims])
    assert "default/looks" not in repr(report)
    reason = report.requests[0].reasons[1]
    assert (reason.code, reason.devices) == ("inUse", 2)
    assert reason.seen == ("default/one (pod p)", "default/two (no pod)")
    assert report.verdict.answer is Answer.CANNOT_FIT
    claims = [allocated_claim("one", "gpu-0", on="a")]  # does not match: counts under its selector
    assert codes(asked(exactly("gpu", f'{A}.productName == "H900"'), claims=claims)) == ["requestSelector"]


def test_taints_are_shown_and_tolerated() -> None:
    bad = {"key": "xid", "value": "79", "effect": "NoSchedule"}
    slices = [resource_slice("a", a100(0, taints=[bad]))]
    refused = asked(slices=slices)
    assert (refused.requests[0].reasons[0].code, codes(refused)) == ("tainted", ["tainted"])
    assert "xid=79:NoSchedule" in refused.requests[0].reasons[0].message
    wanted = exactly(tolerations=[{"key": "xid", "operator": "Exists"}])
    assert asked(wanted, slices=slices).verdict.answer is Answer.FITS
    # Taints of rules count like taints of devices.
    selector, taint = {"driver": DRIVER, "device": "gpu-0"}, {"key": "k", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}
    report = asked(exactly(count=2), slices=[resource_slice("a", a100(0), a100(1))], taint_rules=[rule])
    assert [(reason.code, reason.devices) for reason in report.requests[0].reasons] == [("tainted", 1)]


def test_constraints_name_attribute_and_values() -> None:
    apart = [a100(index) for index in range(2)]
    for index, device in enumerate(apart):
        device["attributes"]["root"] = {"string": f"r{index}"}
    wanted = template("t", exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/root"}])
    report = explained(cluster(slices=[resource_slice("a", *apart)], templates=[wanted]))
    (reason,) = report.requests[0].reasons
    assert reason.code == "constraint"
    assert f"matchAttribute {DRIVER}/root" in reason.message
    assert all(value in reason.seen[0] for value in ("r0", "r1"))
    # Ignored pools are named, too.
    report = asked(slices=[resource_slice("a", a100(0), count=2)])
    assert report.verdict.answer is Answer.CANNOT_FIT
    (cause,) = report.causes
    assert cause.code == "poolUnusable"
    assert "incomplete: 1 of 2 slices" in cause.message


def test_too_few_on_each_node_although_the_sum_suffices() -> None:
    report = asked(exactly(count=5))
    assert report.requests[0].nodes_short == 2
    assert {"6", "5"} <= set(re.findall(r"\d+", report.verdict.sentence))
    # Requests that fit alone but not together.
    report = asked(exactly("one", count=3), exactly("two", count=3))
    assert report.verdict.answer is Answer.CANNOT_FIT
    assert {request.request for request in report.requests} <= {"one", "two"}


def test_every_alternative_of_first_available_is_reported() -> None:
    alternatives = [
        {"name": name, **exactly(name, f'{A}.productName == "{name}"')["exactly"]} for name in ("B200", "B300")
    ]
    report = asked({"name": "gpu", "firstAvailable": alternatives})
    assert [request.request for request in report.requests] == ["gpu/B200", "gpu/B300"]


def test_the_nearest_miss_has_as_many_devices_as_are_missing() -> None:
    claims = [allocated_claim("one", "gpu-0", "gpu-1", on="a"), allocated_claim("two", "gpu-0", on="b")]
    assert asked(exactly(count=2), claims=claims).verdict.answer is Answer.FITS  # two are free on a
    report = asked(exactly(count=4), claims=claims)
    assert report.nearest_miss is not None
    assert (report.nearest_miss.node, report.nearest_miss.device) == ("a", "gpu-0, gpu-1")
    # A node whose devices fit is nearer than one where some are missing.
    state = cluster(templates=[template("t", exactly("gpu", f'{A}.productName == "H100"'))])
    state.nodes[1]["spec"] = {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}  # type: ignore[index]
    report = explained(state)
    assert report.nearest_miss is not None
    assert report.nearest_miss.node == "b"
    assert [reason.by_devices for reason in report.nodes] == [False, True]


def test_one_node_in_detail_lists_every_device() -> None:
    report = asked(claims=[allocated_claim("one", "gpu-0", on="b")], node="b")
    assert report.node is not None
    assert [(line.device, line.code) for line in report.node.devices] == [("gpu-0", "inUse"), ("gpu-1", "given")]
    assert report.node.allocation == ("gpu=gpu-1",)


def test_report_is_short_and_escapes_object_text() -> None:
    count = 20
    devices = [h100_gpu(index) for index in range(64)]
    slices = [resource_slice(f"n{number}", *devices) for number in range(count)]
    nodes = [{"metadata": {"name": f"n{number}"}} for number in range(count)]
    wanted = exactly("gpu", f'{A}.productName == "A100"')
    text = render(asked(wanted, nodes=nodes, slices=slices))
    assert len(text.splitlines()) < 30
    assert f"{count * 64} devices checked" in text
    state = cluster(templates=[template("t")], slices=[])
    assert "\x1b" not in render(explained(state, pod("evil\x1b[2J", template="t")))


MPS = SharingTerms(strategy=Strategy.MPS, max_shares=3)


def whole(**fields: Any) -> dict[str, Any]:
    return exactly(deviceClassName="gpu.nvidia.com", **fields)


def part(profile: str = "1g.10gb", name: str = "gpu") -> dict[str, Any]:
    return exactly(name, f'{A}.profile == "{profile}"', deviceClassName="mig.nvidia.com")


def asking(**amounts: str) -> dict[str, Any]:
    return whole(capacity={"requests": amounts})


def asked_of_h100(*requests: dict[str, Any], **parts: Any) -> Explanation:
    return explained(h100(templates=[template("t", *requests)], **parts))


def fix(report: Explanation) -> str:
    assert report.nearest_miss is not None
    return report.nearest_miss.fix


def seen(report: Explanation) -> str:
    return report.requests[0].reasons[-1].seen[0]


def test_partitions_in_use_that_are_equally_near_are_named() -> None:
    claims = [having(f"c{start}", slice_name(start), users=(f"p{start}",)) for start in range(7)]
    report = asked_of_h100(part(), claims=claims)
    assert (report.requests[0].reasons[-1].code, report.requests[0].reasons[-1].devices) == ("inUse", 7)
    assert "; equally near: gpu-0-mig-1g10gb-19-5 (default/c5 (pod p5)), " in fix(report)
    assert all(f"default/c{start} (pod p{start})" in fix(report) for start in range(7))
    assert report.causes == ()


def test_a_whole_gpu_waits_for_all_claims_with_parts_of_it() -> None:
    claims = [having(f"c{start}", slice_name(start), users=(f"p{start}",)) for start in range(2)]
    report = asked_of_h100(whole(), claims=claims)
    assert seen(report).startswith("gpu-0-counter-set: multiprocessors short by 32 (132 needed, 100 left), used by ")
    assert report.requests[0].reasons[-1].code == "counterShort"
    assert all(f"default/c{start} (pod p{start})" in fix(report) for start in range(2))


def test_a_partition_waits_only_for_claims_that_use_its_counters() -> None:
    """A slice in the lower half blocks a 4g partition there; a slice in the upper half does not."""
    claims = [having("low", slice_name(0), users=("p",)), having("high", slice_name(6), users=("q",))]
    report = asked_of_h100(part("4g.40gb"), claims=claims)
    assert "memory-slice-0 short by 1" in seen(report)
    assert "default/low (pod p)" in fix(report)
    assert "default/high" not in fix(report)


def test_too_large_share_lists_free_amount_and_users() -> None:
    claims = [share("one", memory="50Gi", percent="70", users=("p",))]
    report = asked_of_h100(asking(memory="40Gi", computePercent="5"), sharing=MPS, claims=claims)
    assert report.requests[0].reasons[-1].message == "not enough memory: 40Gi requested"
    assert seen(report) == "gpu-0 has 29744Mi of 80944Mi free: default/one (pod p) has 50Gi"
    assert all(value in fix(report) for value in ("29744Mi", "default/one (pod p)"))


def test_a_claim_with_admin_access_is_not_named_as_a_user_of_a_share() -> None:
    """Admin access reserves nothing, so to end its workload would not help."""
    looks = share("looks", memory="50Gi", percent="70", users=("q",))
    looks["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    claims = [looks, share("one", memory="50Gi", percent="70", users=("p",))]
    report = asked_of_h100(asking(memory="40Gi", computePercent="5"), sharing=MPS, claims=claims)
    assert seen(report) == "gpu-0 has 29744Mi of 80944Mi free: default/one (pod p) has 50Gi"
    assert "default/one (pod p)" in fix(report)
    assert "default/looks" not in fix(report)


def test_the_default_of_a_capacity_that_is_not_requested_is_named() -> None:
    """A share that requests only memory also needs all of the compute."""
    claims = [share("one", memory="50Gi", percent="70")]
    report = asked_of_h100(asking(memory="10Gi"), sharing=MPS, claims=claims)
    message = "not enough computePercent: 100 requested (default of a request without it)"
    assert report.requests[0].reasons[-1].message == message
    less = "request capacity.requests.computePercent: 30 or less"
    assert fix(report).startswith(f"{less}; or end the workload that uses it")
    # Every capacity that a share lacks is named.
    report = asked_of_h100(whole(), sharing=MPS, claims=claims)
    assert all(value in fix(report) for value in ("requests.computePercent: 30", "requests.memory: 29744Mi"))


def test_without_a_free_share_a_smaller_request_is_not_suggested() -> None:
    claims = [share(f"c{number}", memory="1Gi", percent="1") for number in range(3)]
    wanted = asking(memory="1Gi", computePercent="1")
    report = asked_of_h100(wanted, sharing=MPS, claims=claims)
    assert seen(report).startswith("gpu-0 has 0 of 3 free: default/c0 (no pod) has 1, ")
    assert fix(report).startswith("end one of these workloads: default/c0 (no pod), default/c1")
    assert "capacity.requests" not in fix(report)


def test_without_one_sufficient_workload_all_are_named() -> None:
    claims = [share(f"c{number}", memory="30Gi", percent="1") for number in range(2)]
    report = asked_of_h100(asking(memory="60Gi", computePercent="1"), sharing=MPS, claims=claims)
    assert "end the workload that uses it: default/c0 (no pod), default/c1 (no pod)" in fix(report)


def test_a_pod_with_an_extended_resource_is_not_told_to_request_less() -> None:
    """It has no amounts. Several in one container are different GPUs."""
    shared = device_class("s", expression=f'device.driver == "{DRIVER}" && device.allowMultipleAllocations')
    shared["spec"]["extendedResourceName"] = "example.com/share"
    claims = [share("one", memory="50Gi", percent="70"), share("two", memory="20Gi", percent="30")]
    limits = {"name": "c", "resources": {"limits": {"example.com/share": "2"}}}
    state = h100(sharing=MPS, classes=[shared], claims=claims)
    report = explained(state, {**pod(), "spec": {"containers": [limits]}})
    assert "capacity.requests" not in fix(report)
    assert any("2 in one container requests shares of 2 different GPUs" in note for note in report.notes)
    shared["spec"]["selectors"][0]["cel"]["expression"] += " == false"
    report = explained(state, {**pod(), "spec": {"containers": [limits]}})
    assert report.notes == (), "the class selects exclusive devices"


def test_an_amount_that_the_policy_refuses_names_the_bounds() -> None:
    report = asked_of_h100(asking(memory="1Gi", computePercent="150"), sharing=MPS)
    assert fix(report) == "request at least 1, at most 100, in steps of 1"
    # A share of an exclusive GPU points to a policy.
    report = asked_of_h100(asking(memory="1Gi", computePercent="10"))
    message = report.requests[0].reasons[-1].message
    assert "computePercent (10 requested)" in message
    assert "GpuPolicy" in fix(report)


def test_admin_access_to_a_gpu_in_use_names_the_counters() -> None:
    claims = [having("one", "gpu-0", users=("p",))]
    report = asked_of_h100(whole(adminAccess=True), claims=claims)
    assert "admin access" in report.requests[0].reasons[-1].message
    assert "forms: {monitor: true}" in fix(report)


def test_a_scheduler_defect_is_explained_with_its_workaround() -> None:
    """Two parts of one parent beside a partly used GPU: 1.36 refuses them, and a selector on the free GPU helps."""
    both = [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
    claims = [having("one", "gpu-0-mig-3g40gb-9-4", users=("p",))]
    state = h100(
        2, claims=claims, templates=[template("t", part("3g.40gb", "a"), part("3g.40gb", "b"), constraints=both)]
    )
    report = explained(state, scheduler=scheduler_of("v1.36.2", {}))
    (fault,) = [cause for cause in report.causes if cause.code == "schedulerFault"]
    assert "a=gpu-1-mig-3g40gb-9-4, b=gpu-1-mig-3g40gb-9-0" in fault.message
    assert "stays charged" in fault.message
    clause = fault.fix.removeprefix("add ").partition(" to the selectors")[0]
    pinned = [exactly(name, f'{A}.profile == "3g.40gb" && {clause}', deviceClassName="mig.nvidia.com") for name in "ab"]
    helped = h100(2, claims=claims, templates=[template("t", *pinned, constraints=both)])
    assert explained(helped, scheduler=scheduler_of("v1.36.2", {})).verdict.answer is Answer.FITS
    assert explained(state, scheduler=scheduler_of("v1.37.0", {})).verdict.answer is Answer.FITS


def test_defect_of_1_34_excludes_share_behind_whole_gpu() -> None:
    whole, capacity = gpu("gpu-0", memory="24Gi"), {"memory": {"value": "24Gi"}, "computePercent": {"value": "100"}}
    shared = {**gpu("gpu-1"), "allowMultipleAllocations": True, "capacity": capacity}
    wanted = exactly(capacity={"requests": {"computePercent": "10"}})
    state = cluster(slices=[resource_slice("a", whole, shared)], templates=[template("t", wanted)])
    gates = {"DRAConsumableCapacity": True}
    report = explained(state, scheduler=scheduler_of("v1.34.9", gates, state.slices))
    (fault,) = [cause for cause in report.causes if cause.code == "schedulerFault"]
    assert "1.35" in fault.message
    assert "share all GPUs of the node" in fault.fix
    assert explained(state, scheduler=scheduler_of("v1.35.6", gates, state.slices)).verdict.answer is Answer.FITS


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("reserved", "team-a", "value: team-a, effect: NoSchedule}]; add it"),
        ("draining", "team-a", "wait: GpuPolicy team-a reconfigures the GPU"),
        ("drained", "team-a", "until kubectl dra undrain"),
        ("detached", "team-a", "events DriverDetached and SecondPublisher"),
        # Conditions of the hardware that pass.
        ("fabric-not-ready", "probing", "wait: Fabric Manager has not registered the GPU"),
        ("creation-refused", "in-use", "see the Node's event PartitionsWithheld"),
    ],
)
def test_a_taint_of_the_driver_says_what_to_do(key: str, value: str, expected: str) -> None:
    taints = (Taint(key=f"gpu.dra-driver.io/{key}", value=value, effect="NoSchedule"),)
    terms = GpuTerms(policy="team-a", taints=taints)
    if value != "team-a":
        terms = GpuTerms(whole_taints=taints, profiles=frozenset())
    assert expected in fix(asked_of_h100(whole(), slices=slices(terms=terms)))


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
def test_malformed_workload_is_rejected_with_its_field(document: Obj, count: int) -> None:
    assert len(pods_in([document], "team", "x.yaml")) == count
    with pytest.raises(ConfigurationError, match=r"x\.yaml: Pod p: spec\.containers: expected a list"):
        pods_in([{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": {}}}], "d", "x.yaml")


def test_each_pod_sees_the_earlier_ones_placed() -> None:
    state = cluster(templates=[template("t", exactly(count=2))])
    pods = [pod(f"p{index}", template="t") for index in range(4)]
    answers = [report.verdict.answer for report in explain_pods(state, pods)]
    assert answers == [Answer.FITS] * 3 + [Answer.CANNOT_FIT]
    # Pods that share a claim go to the same node.
    shared = claim("c", exactly(count=4))
    reports = explain_pods(cluster(claims=[shared]), [pod("p", claim="c"), pod("q", claim="c")])
    assert [report.fitting_nodes for report in reports] == [("a",), ("a",)]


def test_a_placed_replica_is_not_taken_for_a_running_pod_of_the_workload() -> None:
    reports = explain_pods(
        cluster(templates=[template("t", exactly(count=2))]), pods_in([workload("Job", parallelism=4)], "default", "x")
    )
    assert [(report.name, report.verdict.answer) for report in reports] == [
        *((f"w-{index}", Answer.FITS) for index in range(3)),
        ("w-3", Answer.CANNOT_FIT),
    ]


def test_defaults_of_manifests_are_filled_in() -> None:
    exact = {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": 1024}}}
    request = {"name": "gpu", "exactly": exact}
    (report,) = explain_pods(cluster(templates=[template("t", request)]), [pod(template="t")])
    assert report.verdict.answer is Answer.FITS


LISTED = resource_slice("a", {"name": "gpu-0", "attributes": {"numaNode": {"ints": [0]}}})
OTHER = {**resource_slice("b", {"name": "nic-0"})}
OTHER["spec"] = {**OTHER["spec"], "driver": "nic.example.com"}


@pytest.mark.parametrize(
    ("version", "gates", "found", "feature", "on"),
    [
        ("v1.34.1", {}, [], "consumable_capacity", False),
        ("v1.34.1", {"DRAConsumableCapacity": True}, [], "consumable_capacity", True),
        ("", {}, [], "consumable_capacity", True),
        ("v1.36.2", {}, [LISTED], "list_attributes", True),
        ("v1.36.2", {"DRAListTypeAttributes": False}, [LISTED], "list_attributes", False),
        ("v1.36.2", {}, [OTHER] * 100 + [LISTED], "list_attributes", True),  # another driver's come first
    ],
)
def test_features_follow_version_gates_and_slices(
    version: str, gates: dict[str, bool], found: list[Obj], feature: str, on: bool
) -> None:
    assert getattr(scheduler_of(version, gates, found).features, feature) is on


def test_quirks_follow_the_version_and_gates_are_parsed() -> None:
    assert scheduler_of("v1.36.2+k3s1", {}).quirks.counters_by_pool_name
    assert not scheduler_of("v1.37.0", {}).quirks.counters_by_pool_name
    assert gates_of("A=true, B=FALSE,") == {"A": True, "B": False}
    with pytest.raises(ConfigurationError, match="'A=1'"):
        gates_of("A=1")
