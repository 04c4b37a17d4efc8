"""Shared counters and shares, with the scheduler's mistakes of 1.36 and without them."""

from typing import Any

import pytest

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation import V1_36, V1_37, Allocator, SchedulerQuirks
from dra_driver.scheduler.allocation.events import (
    CapacityShort,
    Cause,
    ConstraintBroken,
    CounterShort,
    Event,
    InUse,
    NotOnNode,
    NotSelected,
    PoolLeftOut,
    Rejection,
    Tainted,
)
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
        fitting = [allocated(claim("x"), "first", node_name="a")]
        assert taken(claim("c"), on=offered, held=fitting, quirks=quirks) == [["other"]]
        without_counters = slices(*overlapping, other, gpu("plain"), parents=2)
        assert taken(claim("c"), on=without_counters, held=held, quirks=quirks) == [["plain"]]


def test_a_tainted_partition_keeps_its_counters_until_1_37() -> None:
    taint = {"key": "sick", "effect": "NoSchedule"}
    offered = slices(partition("sick", 8, taints=[taint]), partition("well", 8))
    assert taken(claim("c"), on=offered, quirks=V1_36) is None
    assert taken(claim("c"), on=offered, quirks=V1_37) == [["well"]]


def test_pools_of_one_name_are_mixed_up_until_1_37() -> None:
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
    offered = [resource_slice("a", *[gpu(f"gpu-{index}", rack="ab"[index % 2]) for index in range(4)])]
    wanted = claim("c", exactly(count=3), constraints=[{"distinctAttribute": f"{DRIVER}/rack"}])
    assert taken(wanted, on=offered, quirks=V1_36) == [["gpu-0", "gpu-1", "gpu-2"]]
    assert taken(wanted, on=offered, quirks=V1_37) is None


def test_configuration_is_written_once_from_1_37_on() -> None:
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
    allocator = Allocator(slices=[resource_slice("a", shared("gpu-0"))], classes=[device_class()], allocated=[])
    fitting = [claim("x", share("4Gi")), claim("y", share("6Gi"))]
    first, second = (item["devices"]["results"][0] for item in allocator.allocate(node("a"), fitting).allocations or ())
    assert (first["consumedCapacity"], second["consumedCapacity"]) == ({"memory": "4Gi"}, {"memory": "6Gi"})
    assert first["shareID"] != second["shareID"]
    assert len(first["shareID"]) == 36
    assert allocator.allocate(node("a"), [*fitting, claim("z", share("1"))]).allocations is None
    assert allocator.allocate(node("a"), [claim("x", share("4Gi")), claim("y")]).allocations is None


def test_a_policy_that_the_api_refuses_is_an_error() -> None:
    policy = {"default": "2Gi", "validRange": {"min": "1Gi", "step": "0"}}
    with pytest.raises(AllocationError, match="step 0"):
        taken(claim("c", share("3Gi")), on=[resource_slice("a", shared("gpu-0", policy=policy))])


class Notes:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event, /) -> None:
        self.events.append(event)

    def causes(self) -> dict[str, Cause]:
        return {event.device.device: event.cause for event in self.events if isinstance(event, Rejection)}


def notes(*claims: Obj, on: list[Obj], held: list[Obj] | None = None) -> Notes:
    recorder = Notes()
    Allocator(slices=on, classes=[device_class()], allocated=held or []).allocate(node("a"), claims, recorder)
    return recorder


TAINT = {"key": "sick", "value": "xid-79", "effect": "NoExecute"}
PER_DEVICE: Obj = {**gpu("gpu-0"), "nodeName": "b"}


@pytest.mark.parametrize(
    ("device", "wanted", "cause"),
    [
        (
            {**gpu("gpu-0"), "attributes": {"type": {"string": "nic"}}},
            claim("c"),
            NotSelected(
                class_name=DRIVER,
                index=0,
                expression=f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"',
            ),
        ),
        (
            gpu("gpu-0"),
            claim("c", exactly("gpu", "true", "false")),
            NotSelected(class_name=None, index=1, expression="false"),
        ),
        ({**gpu("gpu-0"), "taints": [TAINT]}, claim("c"), Tainted(key="sick", value="xid-79", effect="NoExecute")),
        (
            shared("gpu-0"),
            claim("c", share("11Gi")),
            CapacityShort(capacity="memory", why="short", wanted="11Gi", free="10Gi"),
        ),
        (
            shared("gpu-0"),
            claim("c", exactly(capacity={"requests": {"cores": "1"}})),
            CapacityShort(capacity="cores", why="undefined", wanted="1", free=""),
        ),
        (
            gpu("gpu-0"),
            claim("c", constraints=[{"matchAttribute": f"{DRIVER}/rack"}]),
            ConstraintBroken(index=0, kind="matchAttribute", attribute=f"{DRIVER}/rack", seen=None, others=()),
        ),
    ],
)
def test_a_rejected_device_has_a_cause(device: Obj, wanted: Obj, cause: Cause) -> None:
    assert notes(wanted, on=[resource_slice("a", device)]).causes() == {"gpu-0": cause}


def test_holders_are_named() -> None:
    held = [allocated(claim("other", namespace="team"), "gpu-0", node_name="a")]
    recorder = notes(claim("c"), claim("d"), on=[resource_slice("a", gpu("gpu-0"), gpu("gpu-1"))], held=held)
    assert recorder.causes() == {"gpu-0": InUse(holders=("team/other",)), "gpu-1": InUse(holders=())}


def test_a_missing_counter_says_how_much_is_missing() -> None:
    held = [allocated(claim("other"), "small", node_name="a")]
    recorder = notes(claim("c"), on=slices(partition("small", 3), partition("large", 6)), held=held)
    assert recorder.causes()["large"] == CounterShort(
        counter_set="set-0", counter="memory", wanted="6", free="5", own=True
    )


def test_a_device_for_other_nodes_has_its_own_cause() -> None:
    mixed = resource_slice("a", PER_DEVICE, {**gpu("gpu-1"), "nodeName": "a"})
    del mixed["spec"]["nodeName"]
    mixed["spec"]["perDeviceNodeSelection"] = True
    recorder = notes(claim("c", exactly(count=2)), on=[mixed])
    assert recorder.causes()["gpu-0"] == NotOnNode()


def test_pools_that_are_left_out_are_named() -> None:
    half = resource_slice("a", gpu("gpu-0"), count=2)
    twice = resource_slice("a", gpu("x"), gpu("x"), name="t")
    twice["spec"]["pool"]["name"] = "twice"
    recorder = notes(claim("c"), on=[half, twice])
    assert [event for event in recorder.events if isinstance(event, PoolLeftOut)] == [
        PoolLeftOut(
            driver=DRIVER, pool=f"a/{DRIVER}", why="incomplete", detail="1 of 2 slices of generation 1 are published"
        ),
        PoolLeftOut(driver=DRIVER, pool="twice", why="invalid", detail="duplicate device name x"),
    ]
