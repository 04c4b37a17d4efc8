"""Shared counters and shares, with the scheduler's mistakes of 1.36 and without them."""

from typing import Any

import pytest

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation import V1_36, V1_37, Allocator, SchedulerQuirks
from tests.fakes.dra_objects import DRIVER, allocated, claim, device_class, exactly, gpu, node, resource_slice

Obj = dict[str, Any]


def partition(name: str, memory: int, parent: str = "0", **fields: Any) -> Obj:
    """A device that consumes ``memory`` of the 8 units of its parent."""
    consumed = {"counterSet": f"set-{parent}", "counters": {"memory": {"value": str(memory)}}}
    return {**gpu(name, parent=parent), "consumesCounters": [consumed], **fields}


def slices(*devices: Obj, parents: int = 1, node_name: str = "a") -> list[Obj]:
    counters = resource_slice(node_name, count=2, name=f"{node_name}-0")
    counters["spec"]["sharedCounters"] = [
        {"name": f"set-{number}", "counters": {"memory": {"value": "8"}}} for number in range(parents)
    ]
    return [counters, resource_slice(node_name, *devices, count=2, name=f"{node_name}-1")]


def shared(name: str, memory: str = "10Gi", policy: Obj | None = None, **fields: Any) -> Obj:
    device = {**gpu(name), "allowMultipleAllocations": True, **fields}
    device["capacity"] = {"memory": {"value": memory, **({"requestPolicy": policy} if policy else {})}}
    return device


def share(memory: str, name: str = "gpu") -> Obj:
    return exactly(name, capacity={"requests": {"memory": memory}})


def taken(*claims: Obj, on: list[Obj], quirks: SchedulerQuirks = V1_36, held: list[Obj] | None = None) -> Any:
    allocator = Allocator(slices=on, classes=[device_class()], allocated=held or [], quirks=quirks)
    allocations = allocator.allocate(node("a"), claims).allocations
    if allocations is None:
        return None
    return [[result["device"] for result in item["devices"]["results"]] for item in allocations]


def test_partitions_of_one_gpu_share_its_counters() -> None:
    """Two halves fit on a GPU, a third does not; a whole GPU must be unused."""
    halves = [partition(f"half-{index}", 4) for index in range(3)]
    offered = slices(*halves, partition("whole-1", 8, "1"), parents=2)
    assert taken(claim("c", exactly(count=3)), on=offered) == [["half-0", "half-1", "whole-1"]]
    assert taken(claim("c", exactly(count=4)), on=offered) is None


def test_an_overdrawn_counter_blocks_the_whole_pool() -> None:
    """Allocated partitions of GPU 0 exceed its counters, so no partition of GPU 1 in the same pool is allocated.

    ``checkAvailableCounters`` compares every counter of the pool, not only those that the device consumes. Devices that
    consume no counters stay available.
    """
    overlapping = [partition("first", 6), partition("second", 6)]
    other = partition("other", 1, "1")
    held = [allocated(claim("x"), "first", "second", node_name="a")]
    offered = slices(*overlapping, other, parents=2)
    for quirks in (V1_36, V1_37):
        assert taken(claim("c"), on=offered, held=held, quirks=quirks) is None
        assert taken(claim("c"), on=offered, held=[allocated(claim("x"), "first", node_name="a")], quirks=quirks) == [
            ["other"]
        ]
        without_counters = slices(*overlapping, other, gpu("plain"), parents=2)
        assert taken(claim("c"), on=without_counters, held=held, quirks=quirks) == [["plain"]]


def test_a_tainted_partition_keeps_its_counters_until_1_37() -> None:
    """In 1.36 a partition that is rejected for its taint blocks the other partition of its GPU."""
    taint = {"key": "sick", "effect": "NoSchedule"}
    offered = slices(partition("sick", 8, taints=[taint]), partition("well", 8))
    assert taken(claim("c"), on=offered, quirks=V1_36) is None
    assert taken(claim("c"), on=offered, quirks=V1_37) == [["well"]]


def test_pools_of_one_name_are_mixed_up_until_1_37() -> None:
    """In 1.36 the counters of a second driver's pool of the same name are not checked, so partitions overlap."""
    offered = slices(partition("half", 4), parents=1)
    other = slices(partition("one", 8, "9"), partition("two", 8, "9"), parents=10)
    for item in other:
        item["metadata"]["name"] += "-other"
        item["spec"]["driver"] = "z.example.com"
    everything = device_class(expression="true")
    wanted = [claim("c", exactly(count=3))]
    mixed = Allocator(slices=[*offered, *other], classes=[everything], allocated=[])
    assert mixed.allocate(node("a"), wanted).allocations is not None
    apart = Allocator(slices=[*offered, *other], classes=[everything], allocated=[], quirks=V1_37)
    assert apart.allocate(node("a"), wanted).allocations is None


def test_distinct_attribute_forgets_until_1_37() -> None:
    """In 1.36 a request for three devices gets devices with the values a, b, a."""
    offered = [resource_slice("a", *[gpu(f"gpu-{index}", rack="ab"[index % 2]) for index in range(4)])]
    wanted = claim("c", exactly(count=3), constraints=[{"distinctAttribute": f"{DRIVER}/rack"}])
    assert taken(wanted, on=offered, quirks=V1_36) == [["gpu-0", "gpu-1", "gpu-2"]]
    assert taken(wanted, on=offered, quirks=V1_37) is None


def test_configuration_is_written_once_from_1_37_on() -> None:
    """A configuration for all of two requests appears twice in 1.36, and once without names in 1.37."""
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"n": 1}}}
    wanted = claim("c", exactly("x"), exactly("y"), config=[{"requests": ["x", "y"], **opaque}])
    offered = [resource_slice("a", gpu("gpu-0"), gpu("gpu-1"))]
    found = {}
    for quirks in (V1_36, V1_37):
        allocator = Allocator(slices=offered, classes=[device_class()], allocated=[], quirks=quirks)
        (allocation,) = allocator.allocate(node("a"), [wanted]).allocations or ()
        found[quirks] = allocation["devices"]["config"]
    assert found[V1_36] == [{"source": "FromClaim", "requests": ["x", "y"], **opaque}] * 2
    assert found[V1_37] == [{"source": "FromClaim", **opaque}]


def test_shares_add_up_to_the_capacity() -> None:
    """Shares fit as long as their sum does; each has an ID of its own and its consumed capacity."""
    allocator = Allocator(slices=[resource_slice("a", shared("gpu-0"))], classes=[device_class()], allocated=[])
    fitting = [claim("x", share("4Gi")), claim("y", share("6Gi"))]
    first, second = (item["devices"]["results"][0] for item in allocator.allocate(node("a"), fitting).allocations or ())
    assert (first["consumedCapacity"], second["consumedCapacity"]) == ({"memory": "4Gi"}, {"memory": "6Gi"})
    assert first["shareID"] != second["shareID"]
    assert len(first["shareID"]) == 36
    assert allocator.allocate(node("a"), [*fitting, claim("z", share("1"))]).allocations is None
    assert allocator.allocate(node("a"), [claim("x", share("4Gi")), claim("y")]).allocations is None


def test_a_policy_that_the_api_refuses_is_an_error() -> None:
    """A step of zero raises AllocationError, not ZeroDivisionError."""
    policy = {"default": "2Gi", "validRange": {"min": "1Gi", "step": "0"}}
    with pytest.raises(AllocationError, match="step 0"):
        taken(claim("c", share("3Gi")), on=[resource_slice("a", shared("gpu-0", policy=policy))])
