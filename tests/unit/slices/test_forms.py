"""What a GPU may be published as."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.model.gpu import Gpu
from dra_driver.model.mig import PartitionId
from dra_driver.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.slices.forms import Forms, forms_of
from dra_driver.slices.gates import ApiServerFeatures
from tests.unit.slices.gpus import A100, ALL, H100, NONE, RTX, instance, mig_gpu

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
    ids=["off", "on by us", "on by others", "needs a reset", "nobody knows", "needs a reset but is on", "no profiles"],
)
def test_what_mig_mode_makes_of_a_gpu(changes: dict[str, Any], whole: bool, placements: int) -> None:
    """Only who can switch the mode may offer both; switching it on by ourselves changes nothing that is published."""
    found = forms(mig_gpu(H100, **changes))
    assert (found.whole, len(found.placements)) == (whole, placements)
    assert len(found.reasons) == (0 if whole else 1)


def test_somebody_elses_mig_mode_is_named_as_the_reason() -> None:
    """The node's owner wonders where the whole GPU is."""
    (reason,) = forms(mig_gpu(A100, mig_enabled=True)).reasons
    assert reason.startswith("gpu-0 is in MIG mode, which somebody else switched on")


def test_placements_come_in_the_order_that_packs() -> None:
    """The scheduler takes the first that fits: small ones from the end, so that a 4g still fits at the beginning."""
    first = [(profile.name, start) for profile, start in forms(mig_gpu(H100)).placements[:3]]
    assert first[0] == ("1g.10gb", 6)
    assert first == sorted(first, key=lambda place: -place[1])


def test_a_foreign_instance_takes_its_place_and_the_whole_gpu_away() -> None:
    """Somebody else uses it; what does not overlap is still to be had."""
    gpu = mig_gpu(H100, mig_enabled=True, mig_mode_owned=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 9, 4),)))
    assert [(one.profile_name, one.start) for one in found.foreign_instances] == [("3g.40gb", 4)]
    assert not found.whole
    assert places(found) == {
        *(("1g.10gb", start) for start in range(4)), *(("1g.10gb+me", start) for start in range(4)),
        ("1g.20gb", 0), ("1g.20gb", 2), ("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 0), ("4g.40gb", 0),
    }  # fmt: skip
    assert "not offered whole while it has 1 MIG instances" in found.reasons[0]


def test_a_held_instance_changes_nothing() -> None:
    """Slices must not be rewritten for each partition that a claim gets and gives back."""
    gpu = mig_gpu(H100)
    cut = replace(gpu, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(gpu, 19, 6, owned=True),))
    assert forms(cut) == forms(gpu)


def test_a_half_made_foreign_instance_is_left_out_with_a_sentence() -> None:
    """It has no device to give away, and its place is taken."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 14, 0, whole=False),)))
    assert found.foreign_instances == ()
    assert ("1g.10gb", 1) not in places(found)
    assert any("2g.20gb at memory slice 0 of gpu-0 is not offered" in reason for reason in found.reasons)


def test_an_engine_that_somebody_has_is_not_offered_a_second_time() -> None:
    """There is one OFA: with a foreign +me instance no other +me can be made, wherever there is room."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 20, 0),)))
    assert not [name for name, _ in places(found) if name.endswith("+me")]
    assert ("1g.10gb", 1) in places(found)


def test_without_counters_nothing_overlaps() -> None:
    """Kubernetes 1.34 and 1.35 as they come: the whole GPU, and the reason why it is not cut."""
    found = forms(mig_gpu(H100), NO_COUNTERS)
    assert (found.whole, found.placements, found.left) == (True, (), {})
    assert "DRAPartitionableDevices" in found.reasons[0]


def test_without_counters_a_gpu_that_is_cut_offers_what_is_there_and_never_the_whole() -> None:
    """Also while claims still have partitions from the time when there were counters."""
    gpu = mig_gpu(H100, mig_enabled=True)
    foreign = forms(replace(gpu, mig_instances=(instance(gpu, 19, 0), instance(gpu, 19, 1))), NO_COUNTERS)
    assert (foreign.whole, len(foreign.foreign_instances), foreign.placements) == (False, 2, ())
    held = replace(gpu, mig_mode_owned=True, mig_instances=(instance(gpu, 19, 0, owned=True),))
    assert (forms(held, NO_COUNTERS).whole, forms(held, NO_COUNTERS).foreign_instances) == (False, ())
    assert forms(replace(held, mig_instances=()), NO_COUNTERS).whole


def test_terms_choose_among_forms_without_a_word() -> None:
    """Whoever wrote the policy knows."""
    gpu = mig_gpu(H100)
    only_small = forms(gpu, profiles=frozenset({19}), whole=False)
    assert (only_small.whole, {name for name, _ in places(only_small)}) == (False, {"1g.10gb"})
    assert only_small.reasons == ()
    only_whole = forms(gpu, profiles=frozenset())
    assert (only_whole.whole, only_whole.placements, only_whole.left) == (True, (), {})


@pytest.mark.parametrize(
    ("gpu", "profiles", "reason"),
    [
        (mig_gpu(A100, mig_resetless=False), None, "its MIG mode is off, which takes a reset"),
        (mig_gpu(H100), frozenset[int](), "it has 7g.80gb, 4g.40gb"),
        (RTX_UNCUT, None, "it has none"),
    ],
    ids=["needs a reset", "no such profile", "cannot be cut"],
)
def test_terms_that_leave_nothing_of_a_gpu_say_so(gpu: Gpu, profiles: frozenset[int] | None, reason: str) -> None:
    """A wrong pattern, or a policy for boards that this node has not: the GPU would vanish and nobody knew why."""
    found = forms(gpu, whole=False, profiles=profiles)
    assert (found.whole, found.foreign_instances, found.placements) == (False, (), ())
    (said,) = found.reasons
    assert said.startswith("nothing of gpu-0 is offered: policy p allows MIG partitions only")
    assert reason in said


def test_terms_whose_places_somebody_else_has_say_so() -> None:
    """Another reason than a pattern that matches nothing, and another remedy."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 0, 0),)), whole=False, profiles=frozenset({9}))
    (said,) = found.reasons
    assert said.endswith("MIG instances that somebody else made are where they would be")


def test_a_gpu_in_use_that_cannot_be_tainted_says_what_it_waits_for() -> None:
    """The taint is the driver's: a sentence that blames the policy sends its author looking for what is not there."""
    draining = (Taint(key="gpu.dra-driver.io/draining", effect="NoSchedule"),)
    (said,) = forms(mig_gpu(H100), NO_TAINTS, taints=draining, waiting="the GPU stays exclusive").reasons
    assert said.startswith("gpu-0 is not offered until it is free (the GPU stays exclusive)")
    assert "policy p taints it" not in said


def test_a_partition_in_use_stays_although_the_terms_changed() -> None:
    """Its claim has it; the rest of the profile goes."""
    gpu = mig_gpu(H100)
    found = forms(gpu, profiles=frozenset(), kept=frozenset({PartitionId(gpu.uuid, 9, 4)}))
    assert places(found) == {("3g.40gb", 4)}


def test_foreign_instances_of_a_profile_that_the_terms_exclude_are_not_published() -> None:
    """They still are in the way."""
    gpu = mig_gpu(H100, mig_enabled=True)
    found = forms(replace(gpu, mig_instances=(instance(gpu, 9, 0),)), profiles=frozenset({19}))
    assert found.foreign_instances == ()
    assert places(found) == {("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)}


def test_a_gpu_that_a_policy_hides_is_left_out_without_a_word() -> None:
    """It is as its author wants it; a warning at each start would train people to overlook the others."""
    found = forms(mig_gpu(H100), offered=False)
    assert (found.whole, found.foreign_instances, found.placements, found.reasons) == (False, (), (), ())
    assert forms(mig_gpu(H100), NONE, offered=False) == found


def test_a_gpu_whose_policies_are_wrong_says_that_and_blames_none() -> None:
    """Hidden by nobody: the way out is to put the files right."""
    (reason,) = forms_of(mig_gpu(H100), GpuTerms(offered=False), ALL).reasons
    assert reason == "gpu-0 is not offered, because its policies cannot be used; the log says why"


def test_a_taint_that_would_be_dropped_keeps_the_gpu_back() -> None:
    """Without its taint everybody could have it. The effect None blocks nobody."""
    taint = Taint(key="example.com/reserved", effect="NoSchedule")
    withheld = forms(mig_gpu(H100), NONE, taints=(taint,))
    assert not withheld.whole
    assert "DRADeviceTaints" in withheld.reasons[0]
    assert forms(mig_gpu(H100), ALL, taints=(taint,)).whole
    assert forms(mig_gpu(H100), NONE, taints=(replace(taint, effect="None"),)).whole


@pytest.mark.parametrize(
    "taints",
    [(Taint(key="not a key", effect="NoSchedule"),), (Taint(key="k", value="a b", effect="NoSchedule"),),
     tuple(Taint(key=f"k{number}", effect="NoSchedule") for number in range(17))],
    ids=["key", "value", "too many"],
)  # fmt: skip
def test_a_taint_that_the_api_server_would_refuse_keeps_only_its_gpu_back(taints: tuple[Taint, ...]) -> None:
    """Sent as it is, it would take every GPU of the slice with it."""
    found = forms(mig_gpu(H100), taints=taints)
    assert not found.whole
    assert "is not offered: policy p" in found.reasons[0]


def test_sharing_needs_the_whole_and_a_server_that_keeps_it() -> None:
    """Otherwise the device is one for one claim, with a reason."""
    assert forms_of(mig_gpu(H100), SHARED, ALL).sharing == SHARED.sharing
    plain = forms_of(mig_gpu(H100), SHARED, replace(ALL, multi_allocation=False))
    assert (plain.whole, plain.sharing) == (True, None)
    assert "DRAConsumableCapacity" in plain.reasons[0]
    assert forms_of(mig_gpu(H100), replace(SHARED, whole=False), ALL).sharing is None


@pytest.mark.parametrize("counters", [True, False])
def test_a_gpu_with_shares_in_use_is_not_published_by_a_server_that_keeps_no_shares(counters: bool) -> None:
    """A scheduler whose gate is still on counts shares of shared devices alone: it would grant the GPU a second time,
    whole or in parts."""
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


def test_more_than_64_devices_are_cut_with_a_sentence() -> None:
    """A slice would not hold them; the last in the order are the least useful."""
    gpu = mig_gpu(RTX)
    profiles = tuple(
        replace(profile, profile_id=profile.profile_id + 1000 * turn)
        for turn in range(3)
        for profile in gpu.mig_profiles
    )
    found = forms(replace(gpu, mig_profiles=profiles))
    assert (found.whole, len(found.placements), found.max_devices) == (True, 63, 64)
    assert "the first 63 are offered" in found.reasons[0]


def test_a_gpu_with_more_memory_slices_than_counters_fit_is_not_cut() -> None:
    """A counter set has 32 counters; none such exists."""
    gpu = mig_gpu(H100)
    wide = replace(gpu.mig_profiles[0], memory_slices=26, starts=(0,))
    found = forms(replace(gpu, mig_profiles=(wide,)))
    assert (found.whole, found.placements) == (True, ())
    assert "26 memory slices" in found.reasons[0]


def test_room_is_what_the_terms_allow_whatever_the_hardware_does() -> None:
    """It decides which GPUs share a slice, which must not change with every instance."""
    gpu = mig_gpu(H100)
    cut = replace(gpu, mig_enabled=True, mig_instances=(instance(gpu, 9, 4),))
    assert forms(gpu).max_devices == forms(cut).max_devices == 26
    assert forms(gpu, NO_COUNTERS).max_devices == 8
    assert forms(mig_gpu(A100)).max_devices == 1
