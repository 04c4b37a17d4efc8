"""Counting whole GPUs: what fits, what is allocated, and what is unavailable and why."""

from dra_driver.kubectl.capacity import survey
from dra_driver.kubectl.capacity.report import Gpus
from tests.fakes.dra_objects import DRIVER, claim, gpu, node, resource_slice
from tests.unit.kubectl.capacity.helpers import H100, cluster, holding, only, request, whole

TAINT = {"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}


def test_free_and_used_add_up_per_node_and_in_total() -> None:
    report = survey(cluster([whole("a", 4), whole("b", 4)], [holding("x", "a", "gpu-0", "gpu-1", "gpu-2")]))
    assert only(report).gpus == Gpus(total=8, free=5, used=3)
    assert [(item.node, item.models[0].gpus.free) for item in report.nodes] == [("a", 1), ("b", 4)]


def test_claims_for_several_gpus_count_per_node() -> None:
    report = survey(cluster([whole("a", 4), whole("b", 4)], [holding("x", "a", "gpu-0")]))
    found = {item.request: (item.fits, item.by_sum, item.stranded) for item in only(report).requests}
    assert found == {"1 GPU": (7, 7, 0), "2 GPUs": (3, 3, 0), "4 GPUs": (1, 1, 0)}


def test_request_that_fits_nowhere_although_enough_are_free_is_named() -> None:
    """Two free GPUs on each of four nodes cannot serve a claim for four."""
    nodes = "abcd"
    claims = [holding(f"x{name}", name, "gpu-0", "gpu-3") for name in nodes]
    report = survey(cluster([whole(name, 4) for name in nodes], claims))
    (shape,) = report.stranded_shapes
    assert (shape.request, shape.by_sum) == ("4 GPUs", 2)
    assert shape.why == "8 are free, but at most 2 on one node"
    assert request(report, "4 GPUs").stranded == 2


def test_a_claim_larger_than_every_node_is_not_stranded() -> None:
    report = survey(cluster([whole("a", 2), whole("b", 2)]))
    assert [item.count for item in only(report).requests] == [1, 2]
    assert report.stranded_shapes == ()


def test_tainted_gpus_are_not_free_unless_the_taint_does_not_block() -> None:
    report = survey(cluster([whole("a", 2, taints=[TAINT]), whole("b", 1, taints=[{**TAINT, "effect": "None"}])]))
    assert only(report).gpus == Gpus(total=3, free=1, unavailable=2, reasons={"tainted": 2})
    assert request(report, "1 GPU").fits == 1


def test_allocated_gpu_counts_as_used_in_spite_of_taints() -> None:
    report = survey(cluster([whole("a", 1, taints=[TAINT])], [holding("x", "a", "gpu-0")]))
    assert only(report).gpus == Gpus(total=1, used=1)


def test_admin_access_does_not_count_as_allocation() -> None:
    report = survey(cluster([whole("a", 1)], [holding("x", "a", "gpu-0", adminAccess=True)]))
    assert only(report).gpus.free == 1


def test_incomplete_pool_is_unavailable_with_a_note() -> None:
    short = resource_slice("a", gpu("gpu-0", productName=H100), count=2)
    report = survey(cluster([short, whole("b", 1)]))
    assert only(report).gpus == Gpus(total=2, free=1, unavailable=1, reasons={"incomplete-pool": 1})
    assert "1 of 2 slices" in report.notes[0]


def test_invalid_pool_is_unavailable_with_a_note() -> None:
    twice = resource_slice("a", gpu("gpu-0", productName=H100), gpu("gpu-0", productName=H100))
    report = survey(cluster([twice]))
    assert only(report).gpus.reasons == {"invalid-pool": 2}
    assert "duplicate device name gpu-0" in report.notes[0]


def test_only_the_newest_generation_of_a_broken_pool_is_counted() -> None:
    old = resource_slice("a", gpu("gpu-0", productName=H100), name="old")
    new = resource_slice("a", gpu("gpu-0", productName=H100), generation=2, count=2, name="new")
    assert only(survey(cluster([old, new]))).gpus == Gpus(total=1, unavailable=1, reasons={"incomplete-pool": 1})


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


def test_state_without_nodes_uses_those_that_slices_name() -> None:
    """A file with only `kubectl get resourceslices -o yaml` suffices."""
    assert only(survey(cluster([whole("a", 2)], nodes=[]))).gpus.free == 2


def test_devices_that_every_node_reaches_are_counted_once() -> None:
    anywhere = resource_slice("a", gpu("gpu-0", productName=H100))
    del anywhere["spec"]["nodeName"]
    anywhere["spec"]["allNodes"] = True
    report = survey(cluster([whole("b", 1), anywhere], nodes=[node("a"), node("b")]))
    assert only(report).gpus == Gpus(total=2, free=2)
    assert [item.node for item in report.nodes] == ["", "b"]


def test_one_node_or_one_driver_can_be_selected() -> None:
    other = resource_slice("a", {"name": "nic-0"}, name="nics")
    other["spec"] = {**other["spec"], "driver": "nic.example", "pool": {**other["spec"]["pool"], "name": "nics"}}
    state = cluster([whole("a", 2), whole("b", 3), other])
    assert [item.driver for item in survey(state).models] == [DRIVER, "nic.example"]
    assert only(survey(state, driver=DRIVER, node="b")).gpus.total == 3


def test_device_without_attributes_is_a_separate_model() -> None:
    report = survey(cluster([resource_slice("a", {"name": "x"}, {"name": "y"})]))
    assert (only(report).model, request(report, "2 device").fits) == ("device", 1)


def test_pending_claims_use_nothing() -> None:
    assert only(survey(cluster([whole("a", 1)], [claim("waits")]))).gpus.free == 1


def test_memory_is_summed_in_bytes() -> None:
    memory = only(survey(cluster([whole("a", 2)], [holding("x", "a", "gpu-0")]))).memory_bytes
    assert (memory.total, memory.free, memory.fragmented) == (160 << 30, 80 << 30, 0)
