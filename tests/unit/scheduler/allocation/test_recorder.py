"""Events about rejected devices and pools that are left out."""

from typing import Any

import pytest

from dra_driver.scheduler.allocation import Allocator
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
from tests.unit.scheduler.allocation.test_counters import partition, share, shared, slices

Obj = dict[str, Any]


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
    """The cause has the values that were compared."""
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
    """In a slice with node selection per device the device itself may exclude the node."""
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
            driver=DRIVER,
            pool=f"a/{DRIVER}",
            why="incomplete",
            detail="1 of 2 slices of generation 1 are published",
        ),
        PoolLeftOut(driver=DRIVER, pool="twice", why="invalid", detail="duplicate device name x"),
    ]
