"""Malformed, large and repeated inputs; versions and gates by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import AllocationError, ConfigurationError
from dra_driver.scheduler.allocation import (
    V1_34,
    V1_35,
    V1_36,
    V1_37,
    Allocator,
    Limits,
    SchedulerFeatures,
    SchedulerQuirks,
)
from dra_driver.scheduler.allocation.capacity import amount
from tests.fakes.dra_objects import claim, device_class, exactly, gpu, node, resource_slice

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (
            ("slices", 0, "spec", "devices", 0, "name"),
            [],
            r"slices\[0\].spec.devices\[0\].name: expected text, got a list",
        ),
        (("slices", 0, "spec", "pool"), None, r"slices\[0\].spec.pool: missing"),
        (("claims", 0, "spec", "devices", "requests"), 5, r"requests: expected a list, got a number"),
        (
            ("claims", 0, "spec", "devices", "requests", 0, "exactly", "count"),
            "1",
            "count: expected a number, got text: '1'",
        ),
        (("classes", 0, "spec"), [], r"classes\[0\].spec: expected an object, got a list"),
        (("node", "metadata"), "x", "node.metadata: expected an object, got text: 'x'"),
    ],
)
def test_a_malformed_field_is_named(path: tuple[Any, ...], value: Any, what: str) -> None:
    wires: Obj = {"slices": [resource_slice("a", gpu("x"))], "claims": [claim("c")], "classes": [device_class()]}
    wires["node"] = node("a")
    holder = wires = json.loads(json.dumps(wires))
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with pytest.raises(AllocationError, match=what):
        Allocator(slices=wires["slices"], classes=wires["classes"], allocated=[]).allocate(
            wires["node"], wires["claims"]
        )


def test_a_pod_may_have_more_claims_than_python_has_frames() -> None:
    many = [resource_slice("a", *[gpu(f"gpu-{index}") for index in range(2000)])]
    claims = [claim(f"c{index}") for index in range(2000)]
    unhurried = Limits(timeout_s=110)
    allocator = Allocator(slices=many, classes=[device_class()], allocated=[], limits=unhurried)
    allocations = allocator.allocate(node("a"), claims).allocations
    assert allocations is not None
    assert allocations[-1]["devices"]["results"][0]["device"] == "gpu-1999"


def test_equal_devices_share_one_evaluation() -> None:
    """The cached error of one device is raised for an equal device with the name of that device."""
    slices = [resource_slice(name, gpu("gpu-0", uuid=name)) for name in ("a", "b")]
    allocator = Allocator(
        slices=slices, classes=[device_class(expression="device.attributes['x'].y == 1")], allocated=[]
    )
    question = allocator.question([claim("c")])
    for name in ("a", "b"):
        with pytest.raises(Exception, match=rf"no such key.*\(on device gpu.nvidia.com/{name}/gpu.nvidia.com/gpu-0\)"):
            question.on(node(name))


@given(st.integers(-(2**70), 2**70), st.sampled_from(["", "k", "M", "Ki", "Gi", "m", "e3", "E"]))
def test_the_text_of_an_amount_parses_to_the_same_amount(number: int, suffix: str) -> None:
    """The text is what results contain."""
    read = amount(f"{number}{suffix}")
    assert amount(read.text).nano == read.nano or read.nano >= 10**27  # no suffix beyond E


@pytest.mark.parametrize(
    ("version", "quirks"),
    [
        ("1.36", V1_36),
        ("v1.36.2", V1_36),
        ("1.35.6", V1_35),
        ("1.34.1", V1_34),
        ("1.30", V1_34),
        ("1.37.0-rc.1", V1_37),
        ("v1.40", V1_37),
        ("2.0", V1_37),
    ],
)
def test_the_version_selects_the_quirks(version: str, quirks: SchedulerQuirks) -> None:
    """Versions up to 1.34 have the quirks of 1.34, those after 1.36 those of 1.37."""
    assert SchedulerQuirks.of_version(version) is quirks


@pytest.mark.parametrize("version", ["", "1", "latest", "1.x", "1.36" + "0" * 100])
def test_other_texts_are_not_versions(version: str) -> None:
    with pytest.raises(ConfigurationError, match="no Kubernetes version"):
        SchedulerQuirks.of_version(version)


def test_gates_have_their_names_of_the_command_line() -> None:
    """Gates that do not affect allocation are ignored."""
    features = SchedulerFeatures.from_gates({"DRAAdminAccess": False, "SomethingElse": True})
    assert features == SchedulerFeatures(admin_access=False)
    monitor = claim("m", exactly(adminAccess=True))
    allocator = Allocator(slices=[], classes=[device_class()], allocated=[], features=features)
    with pytest.raises(AllocationError, match="admin access is requested, but the feature is disabled"):
        allocator.allocate(node("a"), [monitor])
