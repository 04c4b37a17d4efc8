"""What a GPU may be published as."""

from typing import Any

import pytest
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
RTX_UNCUT = mig_gpu(RTX, mig_profiles=())
SHARED = GpuTerms(policy="p", sharing=SharingTerms(strategy=Strategy.MPS))


def forms(gpu: Gpu, features: ApiServerFeatures = ALL, **terms: Any) -> Forms:
    return forms_of(gpu, GpuTerms(policy="p", **terms), features)


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
    """Both forms are offered only where this driver can switch the mode; switching it on changes nothing that is
    published.
    """
    found = forms(mig_gpu(H100, **changes))
    assert (found.whole, len(found.placements)) == (whole, placements)
    assert len(found.reasons) == (0 if whole else 1)


def test_a_foreign_instance_excludes_its_placement_and_the_whole_gpu() -> None:
    """Another manager uses it; what does not overlap is still offered."""
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
    """It has no device to allocate, and its placement is in use."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 14, 0, whole=False),)))
    assert found.foreign_instances == ()
    assert ("1g.10gb", 1) not in places(found)
    assert any("2g.20gb at memory slice 0 of gpu-0 is not offered" in reason for reason in found.reasons)


def test_an_engine_of_a_foreign_instance_is_not_offered_again() -> None:
    """The OFA exists once: beside a foreign +me instance no other +me instance can be created."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 20, 0),)))
    assert not [name for name, _ in places(found) if name.endswith("+me")]
    assert ("1g.10gb", 1) in places(found)


def test_counters_that_are_refused_are_no_gate_that_is_off() -> None:
    """The reader of the reason must not look for a gate that is on."""
    found = forms(mig_gpu(H100), replace(NO_COUNTERS, counters_refused=True))
    assert (found.whole, found.placements) == (True, ())
    assert "DRAPartitionableDevices is on" in found.reasons[0]


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
    """Never the whole GPU, also while claims still have partitions from before."""
    gpu = mig_gpu(H100, mig_enabled=True)
    foreign = forms(replace(gpu, mig_instances=(instance(gpu, 19, 0), instance(gpu, 19, 1))), NO_COUNTERS)
    assert (foreign.whole, len(foreign.foreign_instances), foreign.placements) == (False, 2, ())
    owned_mode = replace(gpu, mig_mode_owned=True, mig_instances=(instance(gpu, 19, 0, owned=True),))
    assert (forms(owned_mode, NO_COUNTERS).whole, forms(owned_mode, NO_COUNTERS).foreign_instances) == (False, ())
    assert forms(replace(owned_mode, mig_instances=()), NO_COUNTERS).whole


def test_terms_exclude_forms_without_a_reason() -> None:
    """The author of the policy knows."""
    gpu = mig_gpu(H100)
    only_small = forms(gpu, profiles=frozenset({19}), whole=False)
    assert (only_small.whole, {name for name, _ in places(only_small)}) == (False, {"1g.10gb"})
    assert only_small.reasons == ()
    only_whole = forms(gpu, profiles=frozenset())
    assert (only_whole.whole, only_whole.placements, only_whole.left) == (True, (), {})


@pytest.mark.parametrize(
    ("gpu", "profiles", "reason"),
    [
        (mig_gpu(A100, mig_resetless=False), None, "its MIG mode is off, and switching it on takes a reset"),
        (mig_gpu(H100), frozenset[int](), "it has 7g.80gb, 4g.40gb"),
        (RTX_UNCUT, None, "it has none"),
    ],
    ids=["needs a reset", "no such profile", "cannot be cut"],
)
def test_terms_that_leave_nothing_of_a_gpu_have_a_reason(
    gpu: Gpu, profiles: frozenset[int] | None, reason: str
) -> None:
    """A wrong pattern, or a policy for other boards: the GPU would disappear without an explanation."""
    found = forms(gpu, whole=False, profiles=profiles)
    assert (found.whole, found.foreign_instances, found.placements) == (False, (), ())
    (said,) = found.reasons
    assert said.startswith("nothing of gpu-0 is offered: policy p allows MIG partitions only")
    assert reason in said


def test_terms_whose_placements_foreign_instances_take_have_a_reason() -> None:
    """It differs from that of a pattern that matches nothing, and so does the remedy."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 0, 0),)), whole=False, profiles=frozenset({9}))
    (said,) = found.reasons
    assert said.endswith("MIG instances of another manager take their place")


def test_a_gpu_in_use_that_cannot_be_tainted_reports_what_it_waits_for() -> None:
    """The taint is the driver's own: a reason that blames the policy would mislead its author."""
    draining = (Taint(key="gpu.dra-driver.io/draining", effect="NoSchedule"),)
    (said,) = forms(mig_gpu(H100), NO_TAINTS, taints=draining, waiting="the GPU stays exclusive").reasons
    assert said.startswith("gpu-0 is not offered until it is free (the GPU stays exclusive)")
    assert "policy p taints it" not in said


def test_a_partition_in_use_stays_although_the_terms_changed() -> None:
    """Its claim uses it; the rest of the profile is withdrawn."""
    gpu = mig_gpu(H100)
    found = forms(gpu, profiles=frozenset(), kept=frozenset({PartitionId(gpu.uuid, 9, 4)}))
    assert places(found) == {("3g.40gb", 4)}


def test_foreign_instances_of_a_profile_that_the_terms_exclude_are_not_published() -> None:
    """They still exclude what overlaps them."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 9, 0),)), profiles=frozenset({19}))
    assert found.foreign_instances == ()
    assert places(found) == {("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)}


def test_a_gpu_whose_policies_are_invalid_reports_that() -> None:
    """No policy hides it: the policy files must be corrected."""
    (reason,) = forms_of(mig_gpu(H100), GpuTerms(offered=False), ALL).reasons
    assert reason == "gpu-0 is not offered, because its policies cannot be used; the log says why"


def test_a_taint_that_would_be_dropped_withholds_the_gpu() -> None:
    """Without its taint any claim could get it. The effect None keeps no claim away."""
    taint = Taint(key="example.com/reserved", effect="NoSchedule")
    withheld = forms(mig_gpu(H100), NONE, taints=(taint,))
    assert not withheld.whole
    assert "DRADeviceTaints" in withheld.reasons[0]
    assert forms(mig_gpu(H100), ALL, taints=(taint,)).whole
    assert forms(mig_gpu(H100), NONE, taints=(replace(taint, effect="None"),)).whole


def test_a_detached_node_whose_taint_would_be_dropped_offers_nothing() -> None:
    """New claims would be allocated and then wait for the driver."""
    taint = Taint(key=DETACHED_TAINT, value="requested", effect="NoSchedule")
    found = forms(mig_gpu(H100), NO_TAINTS, taints=(taint,))
    assert (found.whole, found.placements) == (False, ())
    (reason,) = found.reasons
    assert "while this driver has no NVIDIA driver to prepare claims with" in reason


@pytest.mark.parametrize(
    "taints",
    [(Taint(key="not a key", effect="NoSchedule"),), (Taint(key="k", value="a b", effect="NoSchedule"),),
     tuple(Taint(key=f"k{number}", effect="NoSchedule") for number in range(17))],
    ids=["key", "value", "too many"],
)  # fmt: skip
def test_an_invalid_taint_withholds_only_its_gpu(taints: tuple[Taint, ...]) -> None:
    """Published, it would make the slice of all GPUs invalid."""
    found = forms(mig_gpu(H100), taints=taints)
    assert not found.whole
    assert "is not offered: policy p" in found.reasons[0]


def test_sharing_needs_the_whole_gpu_and_a_server_that_keeps_it() -> None:
    assert forms_of(mig_gpu(H100), SHARED, ALL).sharing == SHARED.sharing
    plain = forms_of(mig_gpu(H100), SHARED, replace(ALL, multi_allocation=False))
    assert (plain.whole, plain.sharing) == (True, None)
    assert "DRAConsumableCapacity" in plain.reasons[0]
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
    """Slices must not be rewritten for each share that comes and goes."""
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
    """A slice has no room for them; the last in the order are the least useful."""
    gpu = mig_gpu(RTX)
    profiles = tuple(
        replace(profile, profile_id=profile.profile_id + 1000 * turn)
        for turn in range(3)
        for profile in gpu.mig_profiles
    )
    found = forms(replace(gpu, mig_profiles=profiles))
    assert (found.whole, len(found.placements), found.max_devices) == (True, 63, 64)
    assert "the first 63 are offered" in found.reasons[0]


def test_a_gpu_with_too_many_memory_slices_is_not_partitioned() -> None:
    """A counter set has 32 counters; no such GPU exists."""
    gpu = mig_gpu(H100)
    wide = replace(gpu.mig_profiles[0], memory_slices=26, starts=(0,))
    found = forms(replace(gpu, mig_profiles=(wide,)))
    assert (found.whole, found.placements) == (True, ())
    assert "26 memory slices" in found.reasons[0]


def test_max_devices_depends_on_the_terms_only() -> None:
    """It decides which GPUs share a slice, which must not change with every instance."""
    gpu = mig_gpu(H100)
    cut = replace(gpu, mig_enabled=True, mig_instances=(instance(gpu, 9, 4),))
    assert forms(gpu).max_devices == forms(cut).max_devices == 26
    assert forms(gpu, NO_COUNTERS).max_devices == 8
    assert forms(mig_gpu(A100)).max_devices == 1
