"""What a GPU may be published as."""

from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.node.slices.build import GpuDevices
from dra_driver.node.slices.forms import Forms, forms_of
from dra_driver.node.slices.gates import ApiServerFeatures
from tests.unit.node.slices.gpus import A100, ALL, H100, NONE, RTX, instance, mig_gpu, snapshot

NO_COUNTERS = replace(ALL, counters=False)
NO_TAINTS = replace(ALL, taints=False)
DRAINING = Taint(key="gpu.dra-driver.io/draining", effect="NoSchedule")
RTX_UNCUT = mig_gpu(RTX, mig_profiles=())
SHARED = GpuTerms(policy="p", sharing=SharingTerms(strategy=Strategy.MPS))


def forms(gpu: Gpu, features: ApiServerFeatures = ALL, **terms: Any) -> Forms:
    return forms_of(gpu, GpuTerms(**{"policy": "p", **terms}), features)


def places(found: Forms) -> set[tuple[str, int]]:
    return {(profile.name, start) for profile, start in found.placements}


@pytest.mark.parametrize(
    ("changes", "whole", "placements"),
    [
        ({}, True, 25),
        ({"mig_enabled": True, "mig_mode_owned": True}, True, 25),
        ({"mig_enabled": True}, False, 25),
        ({"mig_resetless": False}, True, 0),
        ({"mig_resetless": None}, True, 0),
        ({"mig_resetless": False, "mig_enabled": True}, False, 25),
        ({"mig_profiles": ()}, True, 0),
    ],
    ids=["off", "owned", "foreign", "needs a reset", "unknown", "needs a reset but is on", "no profiles"],
)
def test_forms_depend_on_mig_mode_and_who_switched_it(changes: dict[str, Any], whole: bool, placements: int) -> None:
    found = forms(mig_gpu(H100, **changes))
    assert (found.whole, len(found.placements)) == (whole, placements)
    assert len(found.reasons) == (0 if whole else 1)


WIDE = mig_gpu(H100, mig_profiles=(replace(mig_gpu(H100).mig_profiles[0], memory_slices=26, starts=(0,)),))
MIG_ON = mig_gpu(H100, mig_enabled=True)
RESERVED = Taint(key="example.com/reserved", effect="NoSchedule")


@pytest.mark.parametrize(
    ("gpu", "features", "reason"),
    [
        (mig_gpu(H100), replace(NO_COUNTERS, counters_refused=True), "DRAPartitionableDevices is on"),
        (WIDE, ALL, "it has 26 memory slices"),
    ],
    ids=["counters are refused", "more memory slices than counters in a set"],
)
def test_a_gpu_that_cannot_be_partitioned_is_offered_whole(gpu: Gpu, features: ApiServerFeatures, reason: str) -> None:
    found = forms(gpu, features)
    assert (found.whole, found.placements) == (True, ())
    assert reason in found.reasons[0]


@pytest.mark.parametrize(
    ("gpu", "features", "terms", "reason"),
    [
        (mig_gpu(A100, mig_resetless=False), ALL, {"whole": False}, "its MIG mode is off, and switching it on takes"),
        (mig_gpu(H100), ALL, {"whole": False, "profiles": frozenset()}, "it has 7g.80gb, 4g.40gb"),
        (RTX_UNCUT, ALL, {"whole": False}, "partitions only, and no MIG profile that it has; it has none"),
        (replace(MIG_ON, mig_instances=(instance(MIG_ON, 0, 0),)), ALL, {"whole": False, "profiles": frozenset({9})},
         "nothing of gpu-0 is offered: policy p allows MIG partitions only, and MIG instances of another manager"),
        (mig_gpu(H100), NO_TAINTS, {"taints": (DRAINING,), "waiting": "the GPU stays exclusive"},
         "gpu-0 is not offered until it is free (the GPU stays exclusive)"),
        (mig_gpu(H100), ALL, {"policy": "", "offered": False},
         "gpu-0 is not offered, because its policies cannot be used; the log says why"),
        (mig_gpu(H100), NONE, {"taints": (RESERVED,)}, "policy p taints it, and the API server does not keep taints"),
        (mig_gpu(H100), NO_TAINTS, {"taints": (Taint(key=DETACHED_TAINT, value="x", effect="NoSchedule"),)},
         "while this driver has no NVIDIA driver to prepare claims with"),
        (mig_gpu(H100), ALL, {"taints": (replace(RESERVED, key="not a key"),)}, "policy p gives it the taint"),
        (mig_gpu(H100), ALL, {"taints": (replace(RESERVED, value="a b"),)}, "policy p gives it the taint"),
        (mig_gpu(H100), ALL, {"taints": tuple(replace(RESERVED, key=f"k{number}") for number in range(17))},
         "policy p gives it 17 taints"),
    ],
    ids=["needs a reset", "no such profile", "cannot be cut", "foreign instances in the way", "in use", "bad policies",
         "dropped taint", "detached", "bad key", "bad value", "too many taints"],
)  # fmt: skip
def test_a_gpu_of_which_nothing_is_offered_has_one_reason(
    gpu: Gpu, features: ApiServerFeatures, terms: dict[str, Any], reason: str
) -> None:
    """Otherwise it would disappear without an explanation, or its taint would."""
    found = forms(gpu, features, **terms)
    assert (found.whole, found.foreign_instances, found.placements) == (False, (), ())
    (said,) = found.reasons
    assert reason in said


def test_a_taint_of_effect_none_withholds_no_gpu() -> None:
    assert forms(mig_gpu(H100), ALL, taints=(RESERVED,)).whole
    assert forms(mig_gpu(H100), NONE, taints=(replace(RESERVED, effect="None"),)).whole


def test_a_foreign_instance_excludes_its_placement_and_the_whole_gpu() -> None:
    gpu = mig_gpu(H100, mig_enabled=True, mig_mode_owned=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 9, 4),)))
    assert [(one.profile_name, one.start) for one in found.foreign_instances] == [("3g.40gb", 4)]
    assert not found.whole
    assert places(found) == {
        *(("1g.10gb", start) for start in range(4)), *(("1g.10gb+me", start) for start in range(4)),
        ("1g.20gb", 0), ("1g.20gb", 2), ("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 0), ("4g.40gb", 0),
    }  # fmt: skip
    assert "not offered whole while it has 1 MIG instances" in found.reasons[0]


def test_an_incomplete_foreign_instance_is_left_out_with_a_reason() -> None:
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 14, 0, whole=False),)))
    assert found.foreign_instances == ()
    assert ("1g.10gb", 1) not in places(found)
    assert any("2g.20gb at memory slice 0 of gpu-0 is not published" in reason for reason in found.reasons)


def test_an_engine_of_a_foreign_instance_is_not_offered_again() -> None:
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 20, 0),)))
    assert not [name for name, _ in places(found) if name.endswith("+me")]
    assert ("1g.10gb", 1) in places(found)


def test_in_1_34_the_counters_of_all_devices_of_a_gpu_fit_into_a_slice() -> None:
    """One too many would make the slice invalid, with every partition of the GPU in it."""
    gpu = mig_gpu(H100)
    large = replace(gpu.mig_profiles[0], memory_slices=24, starts=(0,))
    many = replace(gpu, mig_profiles=tuple(replace(large, profile_id=number) for number in range(50)))
    beside = replace(ALL, counters_beside_devices=True)
    found = forms(many, beside)
    devices = GpuDevices(many, snapshot(many), GpuTerms(), found, beside).build()
    used = [len(device.consumes_counters[0].counters) for device in devices]
    assert 1024 - max(used) < sum(used) <= 1024
    assert "has room for 1024 counters" in found.reasons[0]
    assert forms(gpu, beside).placements == forms(gpu, ALL).placements


def test_without_counters_a_partitioned_gpu_offers_existing_partitions() -> None:
    gpu = mig_gpu(H100, mig_enabled=True)
    foreign = forms(replace(gpu, mig_instances=(instance(gpu, 19, 0), instance(gpu, 19, 1))), NO_COUNTERS)
    assert (foreign.whole, len(foreign.foreign_instances), foreign.placements) == (False, 2, ())
    owned_mode = replace(gpu, mig_mode_owned=True, mig_instances=(instance(gpu, 19, 0, owned=True),))
    assert (forms(owned_mode, NO_COUNTERS).whole, forms(owned_mode, NO_COUNTERS).foreign_instances) == (False, ())
    assert forms(replace(owned_mode, mig_instances=()), NO_COUNTERS).whole


def test_terms_exclude_forms_without_a_reason() -> None:
    gpu = mig_gpu(H100)
    only_small = forms(gpu, profiles=frozenset({19}), whole=False)
    assert (only_small.whole, {name for name, _ in places(only_small)}) == (False, {"1g.10gb"})
    assert only_small.reasons == ()
    only_whole = forms(gpu, profiles=frozenset())
    assert (only_whole.whole, only_whole.placements, only_whole.left) == (True, (), {})


def test_a_partition_in_use_stays_although_the_terms_changed() -> None:
    gpu = mig_gpu(H100)
    found = forms(gpu, profiles=frozenset(), kept=frozenset({PartitionId(gpu.uuid, 9, 4)}))
    assert places(found) == {("3g.40gb", 4)}


def test_foreign_instances_of_a_profile_that_the_terms_exclude_are_not_published() -> None:
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 9, 0),)), profiles=frozenset({19}))
    assert found.foreign_instances == ()
    assert places(found) == {("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)}


def test_sharing_needs_the_whole_gpu() -> None:
    assert forms_of(mig_gpu(H100), replace(SHARED, whole=False), ALL).sharing is None


@pytest.mark.parametrize("counters", [True, False])
def test_a_gpu_with_shares_in_use_is_not_published_as_exclusive(counters: bool) -> None:
    """A scheduler whose gate is still on counts shares of shared devices only: it would allocate the GPU a second time,
    whole or in partitions.
    """
    features = ApiServerFeatures(counters=counters, taints=True)
    found = forms_of(mig_gpu(H100), replace(SHARED, shares_in_use=True), features)
    assert (found.whole, found.foreign_instances, found.placements) == (False, (), ())
    (reason,) = found.reasons
    assert reason.startswith("gpu-0 is not offered until its last share is released")
    assert "DRAConsumableCapacity" in reason
    assert forms_of(mig_gpu(H100), SHARED, features).whole


def test_shares_in_use_change_nothing_while_they_are_kept() -> None:
    assert forms_of(mig_gpu(H100), replace(SHARED, shares_in_use=True), ALL) == forms_of(mig_gpu(H100), SHARED, ALL)


def test_partitions_are_not_offered_beside_shares_that_the_scheduler_does_not_charge() -> None:
    """Kubernetes 1.35 would allocate both; afterwards, and without shares, the GPU is what it is elsewhere."""
    features = replace(ALL, shares_hide_counters=True)
    found = forms_of(mig_gpu(H100), replace(SHARED, shares_in_use=True), features)
    assert (found.whole, found.sharing, found.placements, found.left) == (True, SHARED.sharing, (), {})
    (reason,) = found.reasons
    assert reason.startswith("MIG partitions of gpu-0 are not offered until its last share is released")
    assert forms_of(mig_gpu(H100), SHARED, features) == forms_of(mig_gpu(H100), SHARED, ALL)


def test_more_than_64_devices_are_left_out_with_a_reason() -> None:
    gpu = mig_gpu(RTX)
    profiles = tuple(
        replace(profile, profile_id=profile.profile_id + 1000 * turn)
        for turn in range(3)
        for profile in gpu.mig_profiles
    )
    found = forms(replace(gpu, mig_profiles=profiles))
    assert (found.whole, len(found.placements), found.max_devices) == (True, 63, 64)
    assert "the first 63 are offered" in found.reasons[0]


def test_max_devices_depends_on_the_terms_only() -> None:
    gpu = mig_gpu(H100)
    cut = replace(gpu, mig_enabled=True, mig_instances=(instance(gpu, 9, 4),))
    assert forms(gpu).max_devices == forms(cut).max_devices == 26
    assert forms(gpu, NO_COUNTERS).max_devices == 8
    assert forms(mig_gpu(A100)).max_devices == 1


def test_monitor_consumes_no_counters_and_has_the_guarding_taint() -> None:
    """The taint is first: the API server's limit of taints must not cut it."""
    gpu = mig_gpu(H100)
    asked = tuple(Taint(key=f"example.com/{number}", effect="NoSchedule") for number in range(16))
    terms = GpuTerms(policy="p", monitor=True, taints=asked)
    found = forms_of(gpu, terms, ALL)
    *others, last = GpuDevices(gpu, snapshot(gpu), terms, found, ALL).build()
    assert (last.name, last.consumes_counters, last.allow_multiple_allocations) == ("gpu-0-monitor", (), False)
    assert (last.taints[0].key, last.taints[0].effect) == ("gpu.dra-driver.io/monitor", "NoSchedule")
    whole = next(each for each in others if each.name == "gpu-0")
    changed = {key for key in last.attributes if whole.attributes.get(key) != last.attributes[key]}
    assert (changed, last.capacity) == ({"type", "parentUUID"}, whole.capacity)
    assert found.max_devices == len(others) + 1


def test_monitor_needs_a_policy_and_an_api_server_that_keeps_taints() -> None:
    """Without its taint, any claim whose class selects by driver would get it."""
    assert not forms(mig_gpu(H100)).monitor
    withheld = forms(mig_gpu(H100), NO_TAINTS, monitor=True)
    assert not withheld.monitor
    assert "gpu-0-monitor is not published" in withheld.reasons[0]


def test_host_memory_is_an_overhead_per_pod_where_the_api_server_keeps_it() -> None:
    """The mapping of 1.36 is never published: with it, the scheduler gives a claim to one pod only."""
    gpu = mig_gpu(H100)
    terms = GpuTerms(policy="p", monitor=True, host_memory_bytes=600 * 2**20)
    for features in (ALL, replace(ALL, node_overhead=True)):
        built = GpuDevices(gpu, snapshot(gpu), terms, forms_of(gpu, terms, features), features)
        *others, monitor = [to_builtins(device) for device in built.build()]
        wanted = {"memory": {"overhead": {"perPod": "600Mi"}}} if features.node_overhead else None
        assert {str(device.get("nodeAllocatableResources")) for device in others} == {str(wanted)}
        assert not any("nodeAllocatableResourceMappings" in device for device in others)
        assert "nodeAllocatableResources" not in monitor
        assert bool(built.notes) is not features.node_overhead


def test_no_attribute_groups_partitions_of_equal_cost() -> None:
    """So the driver publishes no partitionTypeAttribute: its values must mean equal consumption of counters."""
    gpu = mig_gpu(H100)
    terms = GpuTerms()
    built = GpuDevices(gpu, snapshot(gpu), terms, forms_of(gpu, terms, ALL), ALL).build()
    costs: dict[str, set[str]] = {}
    for device in (device for device in built if "profile" in device.attributes):
        costs.setdefault(str(device.attributes["profile"].string), set()).add(str(device.consumes_counters))
    assert (len(costs["1g.10gb"]), len(costs["7g.80gb"])) == (7, 1)
    assert any("profile" not in device.attributes and device.consumes_counters for device in built)
