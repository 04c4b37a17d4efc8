"""Limits, rules, selectors and name formats that the recorded conversations do not cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import InvalidObjectError
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import DAEMON_SETS, EVENTS, JOBS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, SECRETS
from dra_driver.sim.apiserver.rules.workloads import qos_class
from dra_driver.sim.apiserver.selectors import field_match, label_match, object_match
from dra_driver.sim.apiserver.store import Patch, Store
from dra_driver.sim.apiserver.validation import (
    c_identifier,
    dns_1035_label,
    dns_label,
    dns_subdomain,
    generated_name,
    label_key,
    label_value,
    path_segment,
)
from tests.unit.sim_apiserver.builders import Obj, claim, pod, resource_slice


def _patch_status(store: Store, kind: ResourceKind, name: str, status: Obj) -> None:
    store.patch(kind, name, Patch(body={"status": status}), namespace="default", subresource="status")


def _problems(store: Store, kind: ResourceKind, obj: Obj) -> str:
    with pytest.raises(InvalidObjectError) as refused:
        store.create(kind, obj)
    return str(refused.value)


@pytest.mark.parametrize(("extra", "limit"), [({}, 128), ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, 64)])
def test_the_number_of_devices_is_halved_by_taints(extra: Obj, limit: int, store: Store) -> None:
    devices = [{"name": f"gpu-{at}"} for at in range(limit + 1)]
    devices[0] |= extra
    text = _problems(store, RESOURCE_SLICES, resource_slice(devices=devices))
    assert f"Too many: {limit + 1}: must have at most {limit} items" in text
    assert store.create(RESOURCE_SLICES, resource_slice(devices=devices[:-1]))


def test_counters_have_their_limits(store: Store) -> None:
    counters = {f"c{at}": {"value": "1"} for at in range(33)}
    sets = [{"name": f"s{at}", "counters": {"a": {"value": "1"}}} for at in range(9)]
    only_counters = resource_slice(sharedCounters=sets)
    del only_counters["spec"]["devices"]
    assert "sharedCounters: Too many: 9" in _problems(store, RESOURCE_SLICES, only_counters)
    only_counters["spec"]["sharedCounters"] = [{"name": "s", "counters": counters}]
    assert "counters: Too many: 33" in _problems(store, RESOURCE_SLICES, only_counters)
    uses = [{"counterSet": f"s{at}", "counters": {"a": {"value": "1"}}} for at in range(3)]
    device = {"name": "a", "consumesCounters": uses}
    assert "consumesCounters: Too many: 3" in _problems(store, RESOURCE_SLICES, resource_slice(devices=[device]))


def test_attributes_and_capacities_are_counted_together() -> None:
    device = {
        "name": "a",
        "attributes": {f"a{at}": {"int": at} for at in range(20)},
        "capacity": {f"c{at}": {"value": "1"} for at in range(13)},
    }
    text = _problems(Store(), RESOURCE_SLICES, resource_slice(devices=[device]))
    assert "the total number of attributes and capacities must not exceed 32" in text


def test_taints_get_the_time_they_were_added_and_keep_it(store: Store) -> None:
    taint = {"key": "a", "effect": "NoExecute"}
    made = store.create(RESOURCE_SLICES, resource_slice(devices=[{"name": "a", "taints": [taint]}]))
    assert made["spec"]["devices"][0]["taints"][0]["timeAdded"].endswith("Z")


def test_a_step_of_zero_fits_nothing_and_breaks_nothing() -> None:
    """The real server panics on it; the embedded one refuses the slice."""
    policy = {"default": "1", "validRange": {"min": "1", "step": "0"}}
    capacity = {"memory": {"value": "4", "requestPolicy": policy}}
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": capacity}
    assert "not a multiple" in _problems(Store(), RESOURCE_SLICES, resource_slice(devices=[device]))


def test_opaque_parameters_have_at_most_ten_kibibytes() -> None:
    big = claim()
    parameters = {"text": "x" * 10240}
    big["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.example.com", "parameters": parameters}}]
    text = _problems(Store(), RESOURCE_CLAIMS, big)
    assert "parameters: Too long: may not be more than 10240 bytes" in text
    assert "xxx" not in text


def test_results_and_reservations_have_their_limits(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim())
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "p"}
    results = [result | {"device": f"d{at}"} for at in range(33)]
    consumers = [{"resource": "pods", "name": "p", "uid": str(at)} for at in range(257)]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": consumers}
    with pytest.raises(InvalidObjectError) as refused:
        _patch_status(store, RESOURCE_CLAIMS, "c", status)
    assert "reservedFor: Too many: 257" in str(refused.value)
    assert "results: Too many: 33" in str(refused.value)


def test_a_claim_being_deleted_accepts_no_new_consumers(store: Store) -> None:
    held = claim()
    held["metadata"]["finalizers"] = ["a.io/b"]
    store.create(RESOURCE_CLAIMS, held)
    status: Obj = {"allocation": {"devices": {"results": []}}}
    _patch_status(store, RESOURCE_CLAIMS, "c", status)
    store.delete(RESOURCE_CLAIMS, "c", "default")
    status["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    with pytest.raises(InvalidObjectError, match="new entries may not be added"):
        _patch_status(store, RESOURCE_CLAIMS, "c", status)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_quality_of_service_follows_requests_and_limits(resources: Obj, expected: str) -> None:
    assert qos_class({"containers": [{"resources": resources}]}) == expected


def test_claim_statuses_of_pods_go_through_status(store: Store) -> None:
    store.create(PODS, pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]))
    statuses = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]}
    _patch_status(store, PODS, "p", statuses)
    store.patch(PODS, "p", Patch(body={"metadata": {"labels": {"a": "b"}}}), namespace="default")
    assert store.get(PODS, "p", "default")["status"]["resourceClaimStatuses"][0]["resourceClaimName"] == "p-gpu-x"


def test_workloads_are_checked_through_their_templates() -> None:
    template: Obj = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"template": template}}
    assert 'valid values: "OnFailure", "Never"' in _problems(Store(), JOBS, job)
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    daemons = {"metadata": {"name": "d", "namespace": "default"}, "spec": spec}
    assert "spec.template.spec.containers[0].resources.claims[0]: Not found" in _problems(Store(), DAEMON_SETS, daemons)


def test_secrets_hold_base64_and_events_of_cluster_objects_live_in_default() -> None:
    secret = {"metadata": {"name": "s", "namespace": "default"}, "data": {"a": "not base64!"}}
    assert "data[a]" in _problems(Store(), SECRETS, secret)
    event = {"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n1"}}
    assert Store().create(EVENTS, event)
    event["metadata"] = {"name": "e", "namespace": "kube-public"}
    assert "does not match event.namespace" in _problems(Store(), EVENTS, event)


LABELS = {"metadata": {"labels": {"app": "x", "tier": "web", "n": "5"}}}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True), ("app=x", True), ("app==x,tier!=db", True), ("app!=x", False), ("missing!=x", True),
        ("app in (x, y)", True), ("app notin (x),tier", False), ("missing notin (x)", True), ("app,!missing", True),
        ("!app", False), ("n>4,n<6", True), ("app>4", False),
    ],
)  # fmt: skip
def test_label_selectors(selector: str, expected: bool) -> None:
    match = label_match(selector)
    assert (match is None or match(LABELS)) is expected


@pytest.mark.parametrize("selector", ["a b", "=x", "app in x", "app=x y", "-a=b", ","])
def test_invalid_selectors_are_bad_requests(selector: str) -> None:
    with pytest.raises(InvalidObjectError):
        label_match(selector)


def test_selectors_of_objects() -> None:
    assert object_match({"matchLabels": {"app": "x"}})(LABELS)
    expressions = [{"key": "app", "operator": "In", "values": ["x"]}, {"key": "zone", "operator": "DoesNotExist"}]
    assert object_match({"matchExpressions": expressions})(LABELS)
    assert not object_match({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]})(LABELS)
    assert object_match({})(LABELS)
    assert not object_match(None)(LABELS)


def test_field_selectors() -> None:
    slice_ = {"spec": {"nodeName": "n1", "allNodes": True}}
    assert field_match("spec.nodeName=n1,spec.driver!=x,spec.allNodes=true")
    for selector, expected in (("spec.nodeName=n1", True), ("spec.driver=", True), ("spec.nodeName!=n1", False)):
        match = field_match(selector)
        assert match is not None
        assert match(slice_) is expected
    with pytest.raises(InvalidObjectError, match=r"field label not supported: spec\.x"):
        field_match("spec.x=1", ["spec.nodeName"])
    with pytest.raises(InvalidObjectError, match="can't understand"):
        field_match("spec.nodeName")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (dns_label, "gpu-0", ["GPU", "-a", "a-", "a.b", "", "a" * 64, "a\n"]),
        (dns_1035_label, "web", ["0web", "Web"]),
        (dns_subdomain, "gpu.example.com", ["a..b", ".a", "A", "", "a" * 254]),
        (label_key, "example.com/Name_1", ["", "/a", "a/b/c", "-a", "A.com/" + "b" * 64]),
        (label_value, "", ["-", "a b", "a" * 64]),
        (c_identifier, "driverVersion", ["1a", "a-b", "", "a" * 33]),
        (path_segment, "system:node", ["a/b", "..", "50%"]),
    ],
)
def test_name_formats(check: object, good: str, bad: list[str]) -> None:
    assert callable(check)
    assert check(good) == []
    assert [name for name in bad if not check(name)] == []


@given(st.from_regex(r"[a-z]([-a-z0-9]*[a-z0-9])?-?", fullmatch=True))
def test_generated_names_are_names(base: str) -> None:
    assert dns_label(generated_name(base)) == []
