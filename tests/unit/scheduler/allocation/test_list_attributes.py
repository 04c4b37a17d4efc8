"""Attributes that are lists (gate DRAListTypeAttributes): selectors read them, constraints meet them from 1.37 on."""

from typing import Any

import pytest

from dra_driver.core.errors import CelEvaluationError
from dra_driver.scheduler.allocation import Allocator, SchedulerFeatures, SchedulerQuirks
from tests.fakes.dra_objects import claim, device_class, exactly, gpu, node, resource_slice

Obj = dict[str, Any]
NUMA = 'device.attributes["resource.kubernetes.io"].numaNode'
NAME = "resource.kubernetes.io/numaNode"
NEAR: dict[str, Obj] = {"gpu-0": {"ints": [0]}, "gpu-1": {"ints": [1, 2]}, "gpu-2": {"ints": [2, 0]}, "nic": {"int": 1}}


def chosen(wanted: Obj, version: str = "1.36", gate: bool = True, near: dict[str, Obj] = NEAR) -> list[str] | None:
    devices = []
    for name, value in near.items():
        device = gpu(name)
        devices.append({**device, "attributes": {**device["attributes"], NAME: value}})
    allocator = Allocator(
        slices=[resource_slice("a", *devices)],
        classes=[device_class()],
        allocated=[],
        features=SchedulerFeatures(list_attributes=gate),
        quirks=SchedulerQuirks.of_version(version),
    )
    found = allocator.allocate(node("a"), [wanted]).allocations
    return None if found is None else [result["device"] for item in found for result in item["devices"]["results"]]


def pair(kind: str, count: int = 2) -> Obj:
    return claim("c", exactly(count=count), constraints=[{kind: NAME}])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f"{NUMA} == 0", None),
        (f"{NUMA}.includes(1)", ["gpu-1"]),
        (f"{NUMA} == [2, 0]", ["gpu-2"]),
        (f"{NUMA} == 1", ["nic"]),
    ],
)
def test_selectors_read_lists(expression: str, expected: list[str] | None) -> None:
    assert chosen(claim("c", exactly("gpu", expression))) == expected


def test_comparing_a_list_with_a_number_by_order_ends_the_attempt() -> None:
    with pytest.raises(CelEvaluationError, match="no such overload"):
        chosen(claim("c", exactly("gpu", f"{NUMA} < 1")))


def test_lists_of_every_type_are_read() -> None:
    near: dict[str, Obj] = {"gpu-0": {"strings": ["x"]}, "gpu-1": {"versions": ["1.2.3"]}, "gpu-2": {"bools": [True]}}
    for expression, name in (('"x"', "gpu-0"), ('semver("1.2.3")', "gpu-1"), ("true", "gpu-2")):
        assert chosen(claim("c", exactly("gpu", f"{NUMA}.includes({expression})")), near=near) == [name]


def test_without_the_gate_a_list_fails_every_selector() -> None:
    with pytest.raises(CelEvaluationError, match="unsupported attribute value of type ints"):
        chosen(claim("c", exactly("gpu", "true")), gate=False)


def test_constraints_of_1_36_know_no_lists() -> None:
    assert chosen(pair("matchAttribute")) is None
    assert chosen(pair("matchAttribute", count=1)) == ["gpu-0"]


def test_from_1_37_devices_match_that_have_a_value_in_common() -> None:
    """All of them the same one: three that meet in pairs do not."""
    assert chosen(pair("matchAttribute"), "1.37") == ["gpu-0", "gpu-2"]
    assert chosen(pair("matchAttribute", count=3), "1.37") is None
    near: dict[str, Obj] = {"gpu-0": {"ints": [0, 1]}, "gpu-1": {"ints": [1, 2]}, "gpu-2": {"ints": [2, 1]}}
    assert chosen(pair("matchAttribute", count=3), "1.37", near=near) == ["gpu-0", "gpu-1", "gpu-2"]


def test_from_1_37_devices_are_distinct_that_have_no_value_in_common() -> None:
    assert chosen(pair("distinctAttribute"), "1.37") == ["gpu-0", "gpu-1"]
    near: dict[str, Obj] = {"gpu-0": {"ints": [0, 1]}, "nic": {"int": 1}, "gpu-1": {"ints": [3]}}
    assert chosen(pair("distinctAttribute"), "1.37", near=near) == ["gpu-0", "gpu-1"]
    assert chosen(pair("distinctAttribute", count=3), "1.37", near=near) is None
