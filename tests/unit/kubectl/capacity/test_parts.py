"""Count MIG profiles and shares that fit next to allocated devices, and stranded ones."""

import random
from typing import Any

import pytest

from dra_driver.core.model.terms import DefaultShareTerms, GpuTerms, SharingTerms, Strategy
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import Options, survey
from dra_driver.kubectl.capacity.report import MAX_FITS, Gpus
from dra_driver.kubectl.capacity.units import Unit
from dra_driver.scheduler.allocation import Allocator, SchedulerFeatures
from tests.fakes.dra_objects import DRIVER, Obj, claim, device_class, exactly, gpu, node, resource_slice
from tests.fakes.published import classes, h100, share, slices
from tests.unit.kubectl.capacity.helpers import H100, cluster, holding, only, request, shared, whole

SMALL = "gpu-{}-mig-1g10gb-19-{}"


def counts(state: ClusterState) -> dict[str, tuple[int, int]]:
    return {item.request: (item.fits, item.stranded) for item in only(survey(state)).requests}


def test_profile_without_contiguous_slices_is_stranded() -> None:
    """One small device in each half leaves six memory slices, but no four contiguous ones."""
    claims = [holding("x", "a", SMALL.format(0, 1)), holding("y", "a", SMALL.format(0, 5))]
    report = survey(cluster(slices(), claims))
    assert only(report).gpus == Gpus(total=1, fragmented=1)
    assert (request(report, "3g.40gb").fits, request(report, "3g.40gb").by_sum) == (0, 1)
    shape = next(item for item in report.stranded_shapes if item.request == "3g.40gb")
    assert shape.why == "6 memory slices are free in total, but no GPU has 4 together"


def test_memory_left_beside_mig_devices_is_fragmented_not_free() -> None:
    memory = only(survey(cluster(slices(), [holding("x", "a", SMALL.format(0, 0))]))).memory_bytes
    assert (memory.total, memory.free, memory.fragmented) == (81559 << 20, 0, (81559 - 9984) << 20)


def test_mig_devices_that_exist_already_make_one_gpu() -> None:
    """Static MIG has no counters; the UUID of the parent connects the devices."""
    texts = {"productName": H100, "type": "mig", "profile": "1g.10gb", "parentUUID": "GPU-1"}
    devices = [gpu(f"mig-{number}", memory="10Gi", **texts) for number in range(7)]
    report = survey(cluster([resource_slice("a", *devices)], [holding("x", "a", "mig-0")]))
    assert only(report).gpus == Gpus(total=1, fragmented=1)
    assert (request(report, "1g.10gb").fits, only(report).memory_bytes.fragmented) == (6, 60 << 30)


@pytest.mark.parametrize("seed", range(12))
def test_counts_agree_with_the_allocator_on_the_whole_node(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  not a secret
    places = [(gpu, start) for gpu in range(2) for start in range(7) if chance.random() < 0.25]
    state = cluster(slices(2), [holding(f"x{gpu}-{start}", "a", SMALL.format(gpu, start)) for gpu, start in places])
    report = survey(state)
    for profile in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"):
        assert request(report, profile).fits == _allocated_count(state, profile), profile


def _allocated_count(state: ClusterState, profile: str) -> int:
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


def test_without_its_feature_gate_a_form_does_not_fit() -> None:
    report = survey(cluster(slices()), Options(features=SchedulerFeatures(partitionable_devices=False)))
    assert {item.fits for item in only(report).requests} == {0}
    report = survey(cluster([shared("a")]), Options(features=SchedulerFeatures(consumable_capacity=False)))
    assert [(item.request, item.fits) for item in only(report).requests] == [("1 GPU", 1)]


def test_shares_fit_until_memory_runs_out_on_each_gpu() -> None:
    state = cluster([shared("a", 2)], [holding("x", "a", "gpu-0", shares="72Gi")])
    report = survey(state, Options(shares=("10Gi", "40Gi")))
    assert (request(report, "share of 10Gi").fits, request(report, "share of 10Gi").stranded) == (8, 0)
    assert (request(report, "share of 40Gi").fits, request(report, "share of 40Gi").by_sum) == (2, 2)
    assert only(report).gpus == Gpus(total=2, free=1, used=1)
    assert request(report, "1 shared GPU").fits == 1


def test_whole_gpus_and_shared_ones_have_requests_of_their_own() -> None:
    report = survey(cluster([shared("a"), whole("b", 2)]))
    assert sorted(item.request for item in only(report).requests) == [
        *("1 GPU", "1 shared GPU", "2 GPUs", "share of 10Gi")
    ]


def test_share_that_fits_nowhere_although_the_total_suffices_is_named() -> None:
    claims = [holding(f"x{number}", "a", f"gpu-{number}", shares="73Gi") for number in range(2)]
    (shape,) = survey(cluster([shared("a", 2)], claims)).stranded_shapes
    assert (shape.request, shape.by_sum) == ("share of 10Gi", 1)
    assert shape.why == "14Gi of memory are free, but less than 10Gi on every GPU"


def test_shares_that_consume_nothing_are_unlimited() -> None:
    device = {"name": "x", "allowMultipleAllocations": True}
    found = request(survey(cluster([resource_slice("a", device)])), "1 shared device")
    assert (found.fits, found.at_least) == (MAX_FITS, True)


def test_after_the_time_limit_a_note_names_uncounted_units() -> None:
    times = iter(range(0, 10_000, 100))
    report = survey(cluster(slices()), Options(clock=lambda: float(next(times))))
    assert only(report).gpus.reasons == {"other": 1}
    assert "not counted within 60 s" in report.notes[0]


def test_published_partitions_fit_as_often_as_in_nvidias_table() -> None:
    """Two H100 have counters for three 4g.40gb, but only two placements; the third is not stranded."""
    assert survey(h100(2)).stranded_shapes == ()
    assert counts(h100()) == {
        "1 GPU": (1, 0), "1g.10gb": (7, 0), "1g.10gb+me": (1, 0), "1g.20gb": (4, 0), "2g.20gb": (3, 0),
        "3g.40gb": (2, 0), "4g.40gb": (1, 0), "7g.80gb": (1, 0),
    }  # fmt: skip


def test_a_share_of_memory_includes_its_part_of_the_compute() -> None:
    sharing = SharingTerms(strategy=Strategy.MPS)
    assert counts(h100(sharing=sharing))["share of 10Gi, 12 computePercent"] == (7, 0)
    state = h100(sharing=sharing, claims=[share("x", memory="50Gi", percent="70")])
    assert counts(state)["share of 10Gi, 12 computePercent"] == (2, 0)
    found = only(survey(state))
    assert found.gpus == Gpus(total=1, fragmented=1)
    assert found.memory_bytes.fragmented == 29744 << 20
    # Where memory alone is a share, nothing else is requested.
    sharing = SharingTerms(strategy=Strategy.MPS, default_percent=0)
    assert counts(h100(sharing=sharing))["share of 10Gi"] == (7, 0)


def test_default_shares_that_are_left_are_counted_per_node() -> None:
    """An unmodified pod with nvidia.com/gpu.shared: 1 gets one of them."""
    sharing = SharingTerms(strategy=Strategy.MPS, default_share=DefaultShareTerms(parts=8))
    row = "default share of 10118Mi, 12 computePercent"
    assert counts(h100(2, sharing=sharing))[row] == (16, 0)
    claims = [share(f"c{number}", memory="10118Mi", percent="12") for number in range(7)]
    report = survey(h100(sharing=sharing, claims=claims))
    assert request(report, row).fits == 1
    assert (only(report).gpus, report.nodes[0].models[0].gpus) == (Gpus(total=1, fragmented=1),) * 2
    assert only(survey(h100(sharing=sharing))).gpus == Gpus(total=1, free=1)
    eighth = share("c7", memory="10118Mi", percent="12")
    assert request(survey(h100(sharing=sharing, claims=[*claims, eighth])), row).fits == 0


def test_default_shares_of_mig_devices_are_counted() -> None:
    terms = GpuTerms(partition_sharing=SharingTerms(strategy=Strategy.MPS, default_share=DefaultShareTerms(parts=4)))
    found = counts(ClusterState(nodes=[node("a")], classes=classes(), slices=slices(terms=terms)))
    assert found["1g.10gb default share of 2480Mi, 25 computePercent"] == (28, 0)
    assert [fits for label, fits in found.items() if label.startswith("7g.80gb default share of")] == [(4, 0)]


def test_the_number_of_shares_is_limited() -> None:
    sharing = SharingTerms(strategy=Strategy.MPS, max_shares=3)
    assert counts(h100(sharing=sharing))["share of 10Gi, 12 computePercent"] == (3, 0)
    claims = [share(f"c{number}", memory="1Gi", percent="1") for number in range(3)]
    found = only(survey(h100(sharing=sharing, claims=claims)))
    assert (found.gpus, found.requests[-1].fits, found.requests[-1].by_sum) == (Gpus(total=1, used=1), 0, 0)


def test_both_missing_capacities_of_a_share_are_named() -> None:
    claims = [share("x", memory="75Gi", percent="5"), share("y", memory="1Gi", percent="95")]
    claims[1]["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    state = h100(2, sharing=SharingTerms(strategy=Strategy.MPS), claims=claims)
    shape = next(item for item in survey(state).stranded_shapes if item.request.startswith("share"))
    assert shape.why == (
        "84064Mi of memory and 100 of computePercent are free, but no GPU has 10Gi of memory and 12 of computePercent"
    )


TAINT = {"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}
HARMLESS = {**TAINT, "effect": "None"}
SHORT = resource_slice("a", gpu("gpu-0", productName=H100), count=2)
TWICE = resource_slice("a", gpu("gpu-0", productName=H100), gpu("gpu-0", productName=H100))
OLD = resource_slice("a", gpu("gpu-0", productName=H100), name="old")
NEW = resource_slice("a", gpu("gpu-0", productName=H100), generation=2, count=2, name="new")
PARTS = slices(terms=GpuTerms(whole=False))
OTHER_NODE = [{"metadata": {"name": "b"}}]
ADMIN = holding("x", "a", "gpu-0", adminAccess=True)
PART, FIRST = holding("x", "a", SMALL.format(0, 0)), holding("y", "a", "gpu-0")


@pytest.mark.parametrize(
    ("state", "gpus", "note"),
    [
        (cluster(slices(2), [FIRST]), Gpus(total=2, free=1, used=1), ""),
        (cluster(PARTS), Gpus(total=1, free=1), ""),  # only partitions are published
        (cluster(slices(), [PART], OTHER_NODE), Gpus(total=1, used=1), ""),  # nothing fits on an unusable node
        # A claim from before a change of the layout may overcommit counters; the scheduler then allocates nothing.
        (cluster(slices(2), [PART, FIRST]), Gpus(total=2, used=1, unavailable=1, reasons={"other": 1}), ""),
        (cluster([whole("a", 2, taints=[TAINT])]), Gpus(total=2, unavailable=2, reasons={"tainted": 2}), ""),
        (cluster([whole("a", 1, taints=[HARMLESS])]), Gpus(total=1, free=1), ""),
        (cluster([whole("a", 1, taints=[TAINT])], [FIRST]), Gpus(total=1, used=1), ""),
        (cluster([whole("a", 1)], [ADMIN]), Gpus(total=1, free=1), ""),
        (cluster([SHORT]), Gpus(total=1, unavailable=1, reasons={"incomplete-pool": 1}), "1 of 2 slices"),
        (cluster([TWICE]), Gpus(total=2, unavailable=2, reasons={"invalid-pool": 2}), "duplicate device name gpu-0"),
        (cluster([OLD, NEW]), Gpus(total=1, unavailable=1, reasons={"incomplete-pool": 1}), "1 of 2 slices"),
        (cluster([whole("a", 2)], nodes=[]), Gpus(total=2, free=2), ""),  # a file with only ResourceSlices
    ],
)
def test_the_state_of_each_gpu_is_counted(state: ClusterState, gpus: Gpus, note: str) -> None:
    report = survey(state)
    assert only(report).gpus == gpus
    assert note in "".join(report.notes)


def test_free_and_used_add_up_per_node_and_in_total() -> None:
    claims = [holding("x", "a", "gpu-0", "gpu-1", "gpu-2"), claim("waits")]
    report = survey(cluster([whole("a", 4), whole("b", 4)], claims))
    assert only(report).gpus == Gpus(total=8, free=5, used=3)
    assert (only(report).memory_bytes.total, only(report).memory_bytes.free) == (640 << 30, 400 << 30)
    assert [(item.node, item.models[0].gpus.free) for item in report.nodes] == [("a", 1), ("b", 4)]


def test_claims_for_several_gpus_count_per_node() -> None:
    report = survey(cluster([whole("a", 4), whole("b", 4)], [holding("x", "a", "gpu-0")]))
    found = {item.request: (item.fits, item.by_sum, item.stranded) for item in only(report).requests}
    assert found == {"1 GPU": (7, 7, 0), "2 GPUs": (3, 3, 0), "4 GPUs": (1, 1, 0)}
    assert report.stranded_shapes == ()


def test_gpus_of_unusable_nodes_are_unavailable() -> None:
    nodes = [
        {**node("a"), "spec": {"unschedulable": True}},
        {**node("b"), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        node("d"),
    ]
    report = survey(cluster([whole(name, 1) for name in "abcde"], nodes=nodes))
    expected = {"cordoned": 1, "not-ready": 1, "deleting": 1, "no-such-node": 1}
    assert only(report).gpus == Gpus(total=5, free=1, unavailable=4, reasons=expected)
    assert {item.node: item.problem for item in report.nodes}["e"] == "no-such-node"


def test_devices_that_every_node_reaches_are_counted_once() -> None:
    anywhere = resource_slice("a", gpu("gpu-0", productName=H100))
    del anywhere["spec"]["nodeName"]
    anywhere["spec"]["allNodes"] = True
    report = survey(cluster([whole("b", 1), anywhere], nodes=[node("a"), node("b")]))
    assert only(report).gpus == Gpus(total=2, free=2)
    assert [item.node for item in report.nodes] == ["", "b"]


@pytest.mark.parametrize(
    ("fields", "held"), [({}, False), ({"overdrawn": True}, True), ({"elsewhere": ["a device"]}, True)]
)
def test_counters_that_other_devices_use_up_count_as_allocations(fields: dict[str, Any], held: bool) -> None:
    """Otherwise their part of a GPU without allocated devices would be missing instead of stranded."""
    assert Unit(driver=DRIVER, offered=[], sets=[], kinds=[], **fields).has_allocations() is held


def test_one_node_or_one_driver_can_be_selected() -> None:
    other = resource_slice("a", {"name": "nic-0"}, name="nics")
    other["spec"] = {**other["spec"], "driver": "nic.example", "pool": {**other["spec"]["pool"], "name": "nics"}}
    state = cluster([whole("a", 2), whole("b", 3), other])
    assert [item.driver for item in survey(state).models] == [DRIVER, "nic.example"]
    assert only(survey(state, driver=DRIVER, node="b")).gpus.total == 3
