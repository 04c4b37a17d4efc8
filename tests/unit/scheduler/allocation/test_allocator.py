"""Allocation of the claims of a pod on a node: results, errors, and list attributes (DRAListTypeAttributes)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError, ConfigurationError
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
from tests.fakes.dra_objects import DRIVER, allocated, claim, device_class, exactly, gpu, node, resource_slice
from tests.harness.raising import fails

Obj = dict[str, Any]
A = f'device.attributes["{DRIVER}"]'
FOUR = resource_slice("a", *[gpu(f"gpu-{index}", memory=f"{(index + 1) * 20}Gi") for index in range(4)])


def allocate(*claims: Obj, slices: list[Obj] | None = None, held: list[Obj] | None = None, **kwargs: Any) -> Any:
    classes = kwargs.get("classes", [device_class()])
    allocator = Allocator(slices=slices if slices is not None else [FOUR], classes=classes, allocated=held or [])
    return allocator.allocate(kwargs.get("on", node("a")), claims).allocations


def devices(allocations: Any) -> list[list[str]]:
    return [[result["device"] for result in item["devices"]["results"]] for item in allocations]


def test_first_free_devices_in_published_order() -> None:
    held = [allocated(claim("other"), "gpu-0", node_name="a")]
    assert devices(allocate(claim("c", exactly(count=2)), held=held)) == [["gpu-1", "gpu-2"]]


def test_taints_block_unless_tolerated() -> None:
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    sick = resource_slice("a", {**gpu("gpu-0"), "taints": [taint]})
    assert allocate(claim("c"), slices=[sick]) is None
    tolerant = claim("c", exactly(tolerations=[{"key": "gpu.nvidia.com/xid", "operator": "Exists"}]))
    assert devices(allocate(tolerant, slices=[sick])) == [["gpu-0"]]


def test_admin_access_gets_allocated_devices_and_allocates_none() -> None:
    held = [allocated(claim("user"), "gpu-0", node_name="a")]
    monitor = claim("m", exactly(allocationMode="All", adminAccess=True))
    (allocation,) = allocate(monitor, held=held)
    assert all(result["adminAccess"] for result in allocation["devices"]["results"])
    assert len(allocation["devices"]["results"]) == 4
    monitoring = [allocated(monitor, "gpu-0", node_name="a", admin=True)]
    assert devices(allocate(claim("c"), held=monitoring)) == [["gpu-0"]]


@pytest.mark.parametrize(
    ("wanted", "error", "what"),
    [
        (
            claim("c", exactly(deviceClassName="nope")),
            AllocationError,
            'deviceclasses.resource.k8s.io "nope" not found',
        ),
        (claim("c", exactly(count=33)), AllocationError, "33 exceeds the claim limit of 32"),
        (claim("c", exactly(allocationMode="Some")), AllocationError, "unsupported count mode Some"),
        (claim("c", exactly("gpu", "device.nope")), CelSyntaxError, "selector #0: CEL compile error"),
        (
            claim("c", exactly("gpu", f'{A}.nope == "x"')),
            CelEvaluationError,
            r"runtime error: .*no such key.* \(on device",
        ),
        (claim("c", constraints=[{"requests": ["gpu"]}]), AllocationError, "empty constraint"),
        (claim("c", {"name": "gpu"}), AllocationError, "unsupported request type"),
    ],
)
def test_invalid_claims_end_the_attempt(wanted: Obj, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        allocate(wanted)


def test_too_few_devices_are_found_without_trying_combinations() -> None:
    many = resource_slice("a", *[gpu(f"gpu-{index}") for index in range(64)])
    held = [allocated(claim("other"), *[f"gpu-{index}" for index in range(45)], node_name="a")]
    assert allocate(claim("c", exactly(count=20)), slices=[many], held=held) is None


def search_without_end(limits: Limits) -> None:
    """Two requests with unique boards and a third one that no device satisfies: every combination is tried."""
    many = resource_slice("a", *[gpu(f"gpu-{index}", board=str(index // 2)) for index in range(60)])
    unique = [{"distinctAttribute": f"{DRIVER}/board"}]
    wanted = claim("c", exactly("x", count=15), exactly("y", count=15), constraints=unique)
    never = claim("d", exactly("z", f'{A}.type == "never"'))
    Allocator(slices=[many], classes=[device_class()], allocated=[], limits=limits).allocate(node("a"), [wanted, never])


def test_an_exponential_search_ends_after_its_checks_or_its_timeout() -> None:
    said = r"claim default/., request [xyz]: no answer after 5000 checks of devices"
    with pytest.raises(AllocationError, match=said):
        search_without_end(Limits(steps=5000))
    moments = iter(range(10**9))
    with pytest.raises(AllocationError, match="no answer after 3 s"):
        search_without_end(Limits(timeout_s=3, clock=lambda: next(moments)))


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
    read = amount(f"{number}{suffix}")
    assert amount(read.text).nano == read.nano or read.nano >= 10**27  # no suffix beyond E


@pytest.mark.parametrize(
    ("version", "quirks"),
    [
        ("1.36", V1_36), ("v1.36.2", V1_36), ("1.35.6", V1_35), ("1.34.1", V1_34), ("1.30", V1_34),
        ("1.37.0-rc.1", V1_37), ("v1.40", V1_37), ("2.0", V1_37),
    ],
)  # fmt: skip
def test_the_version_selects_the_quirks(version: str, quirks: SchedulerQuirks) -> None:
    assert SchedulerQuirks.of_version(version) is quirks


@pytest.mark.parametrize("version", ["", "1", "latest", "1.x", "1.36" + "0" * 100])
def test_other_texts_are_not_versions(version: str) -> None:
    with fails(ConfigurationError, "InvalidVersion"):
        SchedulerQuirks.of_version(version)


def test_gates_have_their_names_of_the_command_line() -> None:
    features = SchedulerFeatures.from_gates({"DRAAdminAccess": False, "SomethingElse": True})
    assert features == SchedulerFeatures(admin_access=False)
    monitor = claim("m", exactly(adminAccess=True))
    allocator = Allocator(slices=[], classes=[device_class()], allocated=[], features=features)
    with pytest.raises(AllocationError, match="admin access is requested, but the feature is disabled"):
        allocator.allocate(node("a"), [monitor])


NUMA = 'device.attributes["resource.kubernetes.io"].numaNode'
NAME = "resource.kubernetes.io/numaNode"
NEAR: dict[str, Obj] = {"gpu-0": {"ints": [0]}, "gpu-1": {"ints": [1, 2]}, "gpu-2": {"ints": [2, 0]}, "nic": {"int": 1}}


def chosen(wanted: Obj, version: str = "1.36", gate: bool = True, near: dict[str, Obj] = NEAR) -> list[str] | None:
    devices = [{**gpu(name), "attributes": {**gpu(name)["attributes"], NAME: value}} for name, value in near.items()]
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


def test_lists_of_every_type_are_read() -> None:
    near: dict[str, Obj] = {"gpu-0": {"strings": ["x"]}, "gpu-1": {"versions": ["1.2.3"]}, "gpu-2": {"bools": [True]}}
    for expression, name in (('"x"', "gpu-0"), ('semver("1.2.3")', "gpu-1"), ("true", "gpu-2")):
        assert chosen(claim("c", exactly("gpu", f"{NUMA}.includes({expression})")), near=near) == [name]


def test_a_list_compared_by_order_or_without_the_gate_ends_the_attempt() -> None:
    with pytest.raises(CelEvaluationError, match="no such overload"):
        chosen(claim("c", exactly("gpu", f"{NUMA} < 1")))
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
