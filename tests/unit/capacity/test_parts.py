"""Counting MIG profiles and shares: what fits beside what is held, and what only placement forbids."""

import random

import pytest

from dra_driver.allocation import V1_37, Allocator, SchedulerFeatures
from dra_driver.capacity import Options, survey
from dra_driver.capacity.fit_count import MAX_FITS
from dra_driver.capacity.report import Gpus
from dra_driver.kube.state import ClusterState
from dra_driver.model.terms import SharingTerms, Strategy
from tests.fakes.dra_objects import DRIVER, Obj, claim, device_class, exactly, resource_slice
from tests.fakes.published import h100, share
from tests.unit.capacity.helpers import A100, H100, cluster, holding, mig, only, request, shared

SMALL = "gpu-{}-mig-1g10gb-19-{}"


def counts(state: ClusterState) -> dict[str, tuple[int, int]]:
    return {item.request: (item.fits, item.stranded) for item in only(survey(state)).requests}


def test_empty_gpu_serves_as_many_of_each_profile_as_the_hardware_has() -> None:
    found = counts(cluster(mig("a")))
    assert found == {
        "1 GPU": (1, 0),
        "1g.10gb": (7, 0),
        "1g.10gb+me": (7, 0),
        "1g.20gb": (4, 0),
        "2g.20gb": (3, 0),
        "3g.40gb": (2, 0),
        "4g.40gb": (1, 0),
        "7g.80gb": (1, 0),
    }


def test_profile_that_only_placement_forbids_is_stranded() -> None:
    """One small device in each half leaves six slices, and no four that lie together."""
    claims = [holding("x", "a", SMALL.format(0, 1)), holding("y", "a", SMALL.format(0, 5))]
    report = survey(cluster(mig("a"), claims))
    assert only(report).gpus == Gpus(total=1, fragmented=1)
    assert (request(report, "3g.40gb").fits, request(report, "3g.40gb").by_sum) == (0, 1)
    shape = next(item for item in report.stranded_shapes if item.request == "3g.40gb")
    assert shape.why == "6 memory slices are free in all, 4 are needed, but they do not lie together on any GPU"


def test_memory_left_beside_mig_devices_is_fragmented_not_free() -> None:
    memory = only(survey(cluster(mig("a"), [holding("x", "a", SMALL.format(0, 0))]))).memory_bytes
    assert (memory.total, memory.free, memory.fragmented) == (81152 << 20, 0, (81152 - 9984) << 20)


def test_gpus_in_pieces_could_together_be_a_whole_one() -> None:
    claims = [holding(f"x{number}", "a", SMALL.format(number, 0)) for number in range(2)]
    found = request(survey(cluster(mig("a", 2), claims)), "1 GPU")
    assert (found.fits, found.by_sum, found.stranded) == (0, 1, 1)


def test_whole_gpu_in_use_leaves_nothing_for_profiles() -> None:
    report = survey(cluster(mig("a", 2), [holding("x", "a", "gpu-0")]))
    assert only(report).gpus == Gpus(total=2, free=1, used=1)
    assert request(report, "1g.10gb").fits == 7


def test_gpu_that_is_only_offered_in_parts_is_free_while_nobody_has_one() -> None:
    report = survey(cluster(mig("a", key="a100-sxm4-80gb", whole_too=False)))
    assert (only(report).model, only(report).gpus) == (A100, Gpus(total=1, free=1))
    assert request(report, "3g.40gb").fits == 2


def test_mig_devices_that_exist_already_make_one_gpu() -> None:
    """Static MIG: no counters, the parent's UUID holds them together."""
    devices = [
        {
            "name": f"mig-{number}",
            "attributes": {
                "type": {"string": "mig"},
                "productName": {"string": H100},
                "profile": {"string": "1g.10gb"},
                "parentUUID": {"string": "GPU-1"},
            },
            "capacity": {"memory": {"value": "10Gi"}},
        }
        for number in range(7)
    ]
    report = survey(cluster([resource_slice("a", *devices)], [holding("x", "a", "mig-0")]))
    assert only(report).gpus == Gpus(total=1, fragmented=1)
    assert (request(report, "1g.10gb").fits, only(report).memory_bytes.fragmented) == (6, 60 << 30)


def test_fragments_on_a_node_without_pods_are_just_used() -> None:
    state = cluster(mig("a"), [holding("x", "a", SMALL.format(0, 0))], [{"metadata": {"name": "b"}}])
    report = survey(state)
    assert only(report).gpus == Gpus(total=1, used=1)
    assert request(report, "1g.10gb").fits == 0


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_the_allocator_on_the_whole_node(seed: int) -> None:
    """GPUs are weighed one by one; asking about the whole node again and again gives the same."""
    chance = random.Random(seed)  # noqa: S311  not a secret
    slices = mig("a", 2)
    claims = [
        holding(f"x{gpu}-{start}", "a", SMALL.format(gpu, start))
        for gpu in range(2)
        for start in range(7)
        if chance.random() < 0.25
    ]
    state = cluster(slices, claims)
    report = survey(state)
    for profile in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"):
        assert request(report, profile).fits == _asked(state, profile), profile


def _asked(state: ClusterState, profile: str) -> int:
    expression = f'device.attributes["{DRIVER}"].?profile.orValue("") == "{profile}"'
    every = device_class(expression="true")
    held: list[Obj] = [dict(item) for item in state.claims]
    count = 0
    while True:
        allocator = Allocator(slices=state.slices, classes=[every], allocated=held)
        wanted = claim(f"new-{count}", exactly("gpu", expression))
        found = allocator.allocate(state.nodes[0], [wanted]).allocations
        if found is None:
            return count
        held.append({**wanted, "status": {"allocation": found[0]}})
        count += 1


def test_overdrawn_counters_block_their_pool() -> None:
    """A claim from before the layout changed may hold more than there is; the scheduler then gives nothing out."""
    claims = [holding("x", "a", SMALL.format(0, 0)), holding("y", "a", "gpu-0")]
    report = survey(cluster(mig("a", 2), claims))
    assert request(report, "1g.10gb").fits == 0
    assert only(report).gpus.reasons == {"other": 1}


def test_without_the_gate_partitions_cannot_be_had() -> None:
    report = survey(cluster(mig("a")), Options(features=SchedulerFeatures(partitionable_devices=False)))
    assert {item.fits for item in only(report).requests} == {0}


def test_version_of_the_scheduler_does_not_change_the_counts() -> None:
    assert survey(cluster(mig("a", 2)), Options(quirks=V1_37)).models == survey(cluster(mig("a", 2))).models


def test_shares_fit_until_memory_runs_out_on_each_gpu() -> None:
    state = cluster([shared("a", 2)], [holding("x", "a", "gpu-0", shares="72Gi")])
    report = survey(state, Options(shares=("10Gi", "40Gi")))
    assert (request(report, "share of 10Gi").fits, request(report, "share of 10Gi").stranded) == (8, 0)
    assert (request(report, "share of 40Gi").fits, request(report, "share of 40Gi").by_sum) == (2, 2)
    assert only(report).gpus == Gpus(total=2, free=1, used=1)
    assert request(report, "1 GPU").fits == 1


def test_gpu_with_room_for_a_share_is_fragmented() -> None:
    report = survey(cluster([shared("a")], [holding("x", "a", "gpu-0", shares="60Gi")]))
    assert only(report).gpus == Gpus(total=1, fragmented=1)
    assert only(report).memory_bytes.fragmented == 20 << 30


def test_share_that_fits_nowhere_although_memory_would_suffice_is_named() -> None:
    claims = [holding(f"x{number}", "a", f"gpu-{number}", shares="73Gi") for number in range(2)]
    (shape,) = survey(cluster([shared("a", 2)], claims)).stranded_shapes
    assert (shape.request, shape.by_sum) == ("share of 10Gi", 1)
    assert shape.why == "14Gi of memory are free, but less than 10Gi on every GPU"


def test_shares_that_take_nothing_never_run_out() -> None:
    device = {"name": "x", "allowMultipleAllocations": True}
    found = request(survey(cluster([resource_slice("a", device)])), "1 device")
    assert (found.fits, found.at_least) == (MAX_FITS, True)


def test_tiny_shares_are_counted_to_a_bound() -> None:
    found = request(survey(cluster([shared("a")]), Options(shares=("1Mi",))), "share of 1Mi")
    assert (found.fits, found.at_least) == (MAX_FITS, True)


def test_without_the_gate_a_shared_gpu_is_a_whole_one() -> None:
    report = survey(cluster([shared("a")]), Options(features=SchedulerFeatures(consumable_capacity=False)))
    assert [(item.request, item.fits) for item in only(report).requests] == [("1 GPU", 1)]


def test_when_time_is_up_the_rest_is_said_to_be_uncounted() -> None:
    """The clock has run out before the first unit."""
    times = iter(range(0, 10_000, 100))
    report = survey(cluster(mig("a")), Options(clock=lambda: float(next(times))))
    assert only(report).gpus.reasons == {"other": 1}
    assert "not weighed within 60 s" in report.notes[0]


def test_empty_gpus_strand_nothing() -> None:
    """Two H100 have counters for three 4g.40gb that the hardware has no place for: that is not fragmentation."""
    report = survey(cluster(mig("a", 2)))
    assert {item.stranded for item in only(report).requests} == {0}
    assert report.stranded_shapes == ()


def test_published_partitions_fit_as_often_as_the_table_of_the_board_has_it() -> None:
    """The driver's own slices: what they say fits is what NVIDIA's table of an H100 says."""
    assert counts(h100()) == {
        "1 GPU": (1, 0), "1g.10gb": (7, 0), "1g.10gb+me": (1, 0), "1g.20gb": (4, 0), "2g.20gb": (3, 0),
        "3g.40gb": (2, 0), "4g.40gb": (1, 0), "7g.80gb": (1, 0),
    }  # fmt: skip


def test_a_share_of_memory_brings_its_part_of_the_compute() -> None:
    """Else it would take all of the compute, and one share would be all that ever fits."""
    sharing = SharingTerms(strategy=Strategy.MPS)
    assert counts(h100(sharing=sharing))["share of 10Gi, 12 computePercent"] == (7, 0)
    state = h100(sharing=sharing, claims=[share("x", memory="50Gi", percent="70")])
    assert counts(state)["share of 10Gi, 12 computePercent"] == (2, 0)
    found = only(survey(state))
    assert found.gpus == Gpus(total=1, fragmented=1)
    assert found.memory_bytes.fragmented == 30359 << 20


def test_where_memory_alone_is_a_share_nothing_else_is_asked_for() -> None:
    """The policy has decided what goes with it."""
    sharing = SharingTerms(strategy=Strategy.MPS, default_percent=0)
    assert counts(h100(sharing=sharing))["share of 10Gi"] == (7, 0)


def test_shares_end_with_their_number() -> None:
    sharing = SharingTerms(strategy=Strategy.MPS, max_shares=3)
    assert counts(h100(sharing=sharing))["share of 10Gi, 12 computePercent"] == (3, 0)
    claims = [share(f"c{number}", memory="1Gi", percent="1") for number in range(3)]
    found = only(survey(h100(sharing=sharing, claims=claims)))
    assert (found.gpus, found.requests[-1].fits, found.requests[-1].by_sum) == (Gpus(total=1, used=1), 0, 0)


def test_what_is_missing_for_a_share_names_both() -> None:
    """Memory here, compute there."""
    claims = [share("x", memory="75Gi", percent="5"), having_of_second("y", memory="1Gi", percent="95")]
    state = h100(2, sharing=SharingTerms(strategy=Strategy.MPS), claims=claims)
    shape = next(item for item in survey(state).stranded_shapes if item.request.startswith("share"))
    assert shape.why == (
        "85294Mi of memory and 100 of computePercent are free, but no GPU has 10Gi of memory and 12 of computePercent"
    )


def having_of_second(name: str, *, memory: str, percent: str) -> Obj:
    found = share(name, memory=memory, percent=percent)
    found["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    return found
