"""Who has to go, and when: slices and claims in, cases out."""

from typing import Any

import pytest

from dra_driver.controller.pending_evictions import (
    Fleet,
    SpecialClaim,
    fleet_of,
    pending_evictions,
    slice_view,
    special_claim,
)
from tests.fakes.stand_in import present
from tests.unit.controller.objects import DRIVER, POOL, at, device, resource_slice, special_claim_object, taint


def fleet(*slices: dict[str, Any]) -> Fleet:
    return fleet_of([view for item in slices if (view := slice_view(item)) is not None])


def claim(*numbers: int, **options: Any) -> SpecialClaim:
    return present(special_claim(special_claim_object(*numbers, **options), DRIVER))


def test_a_pod_is_due_a_grace_time_after_the_taint_of_its_device() -> None:
    cases = pending_evictions(
        fleet(resource_slice(device(0, taint()), device(1))), [claim(0), claim(1, pod="pod-b")], 60
    )
    assert [(str(case.pod), case.due, str(case.taint)) for case in cases] == [
        ("team/pod-a", at(60), "gpu.nvidia.com/xid=79:NoExecute")
    ]


def test_only_pods_are_evicted_of_all_that_a_claim_is_reserved_for() -> None:
    wire = special_claim_object(0)
    wire["status"]["reservedFor"] += [
        {"resource": "pods", "name": "x", "uid": "u", "apiGroup": "other.example.com"},
        {"resource": "jobs", "name": "y", "uid": "v"},
    ]
    assert [pod.name for pod in present(special_claim(wire, DRIVER)).pods] == ["pod-a"]


@pytest.mark.parametrize("effect", ["NoSchedule", "None", "Later"])
def test_other_effects_evict_no_pod(effect: str) -> None:
    assert pending_evictions(fleet(resource_slice(device(0, taint(effect=effect)))), [claim(0)], 60) == []


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-11-22T12:00:00", 5])
def test_a_taint_without_a_time_that_can_be_read_evicts_no_pod(text: Any) -> None:
    broken = {**taint(), "timeAdded": text}
    assert pending_evictions(fleet(resource_slice(device(0, broken))), [claim(0)], 60) == []


def test_the_earliest_of_several_taints_and_devices_counts() -> None:
    slices = fleet(resource_slice(device(0, taint(50), taint(20, key="k")), device(1, taint(30))))
    (case,) = pending_evictions(slices, [claim(0, 1)], 60)
    assert (case.due, case.taint.key) == (at(80), "k")


def test_a_device_of_another_pool_with_the_same_name_is_another_device() -> None:
    other = resource_slice(device(0, taint()), pool=f"gpu-b/{DRIVER}")
    assert pending_evictions(fleet(other), [claim(0)], 60) == []


def test_slices_of_an_older_generation_do_not_count() -> None:
    old = resource_slice(device(0, taint()), name="old")
    new = resource_slice(device(0), generation=2, name="new")
    assert pending_evictions(fleet(old, new), [claim(0)], 60) == []


@pytest.mark.parametrize(
    ("toleration", "due"),
    [
        ({"operator": "Exists"}, None),
        ({"key": "gpu.nvidia.com/xid", "operator": "Exists", "effect": "NoExecute"}, None),
        ({"key": "gpu.nvidia.com/xid", "value": "79"}, None),
        ({"key": "gpu.nvidia.com/xid", "value": "48"}, 60),
        ({"key": "other", "operator": "Exists"}, 60),
        ({"operator": "Exists", "effect": "NoSchedule"}, 60),
        ({"operator": "Like"}, 60),
        ({"operator": "Exists", "tolerationSeconds": 300}, 300),
        ({"operator": "Exists", "tolerationSeconds": 10}, 60),
        ({"operator": "Exists", "tolerationSeconds": -5}, 60),
    ],
)
def test_tolerations_of_the_claim(toleration: dict[str, Any], due: float | None) -> None:
    cases = pending_evictions(fleet(resource_slice(device(0, taint()))), [claim(0, tolerations=[toleration])], 60)
    assert [case.due for case in cases] == ([] if due is None else [at(due)])


def test_claims_that_pods_ask_for_themselves_are_left_to_kubernetes() -> None:
    obj = special_claim_object(0)
    obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert special_claim(obj, DRIVER) is None


def test_devices_of_other_drivers_do_not_count() -> None:
    assert special_claim(special_claim_object(0), "nic.example") is None


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"allocation": {"devices": {"results": [{"pool": "p"}]}}},
        {"allocation": "x"},
        {"allocation": {"devices": {"results": [{"driver": DRIVER, "pool": "p", "device": "d"}]}}, "reservedFor": [5]},
    ],
)
def test_malformed_claims_are_left_out(status: Any) -> None:
    assert special_claim({**special_claim_object(0), "status": status}, DRIVER) is None


@pytest.mark.parametrize(
    "spec", [None, {}, {"pool": {"generation": 1}}, {"pool": {"name": "p"}, "devices": [{"taints": [5]}]}]
)
def test_malformed_slices_are_left_out(spec: Any) -> None:
    assert slice_view({"metadata": {"name": "x"}, "spec": spec}) is None


def test_gpus_are_counted_once_with_all_their_forms() -> None:
    found = fleet(resource_slice(device(0), device(0, part="-mig-1"), device(1)), resource_slice(device(2), name="b"))
    assert found.gpus == {POOL: {"GPU-0", "GPU-1", "GPU-2"}}
    bare = fleet(resource_slice({"name": "x"}, {"name": "y"}))
    assert len(bare.gpus[POOL]) == 2


@pytest.mark.parametrize(("seconds", "due"), [(0, 0), (5, 5), (3600, 3600), (10**9, 3600), (-1, 60)])
def test_the_grace_time_of_the_gpus_policy_goes_before_the_setting(seconds: Any, due: float) -> None:
    """It is published as an attribute, bounded: a slice may come from anywhere."""
    sick = device(0, taint())
    sick["attributes"]["gpu.dra-driver.io/evictionGraceSeconds"] = {"int": seconds}
    (case,) = pending_evictions(fleet(resource_slice(sick)), [claim(0)], 60)
    assert case.due == at(due)


def test_a_partition_that_another_manager_made_counts_for_its_gpu() -> None:
    """Such a partition has a UUID of its own as well."""
    part = device(0, part="-mig-1")
    part["attributes"]["uuid"] = {"string": "MIG-1"}
    assert fleet(resource_slice(device(0), part)).gpus == {POOL: {"GPU-0"}}
