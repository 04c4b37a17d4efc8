"""Allocation of a pod's claims on a node: results, misfits, and errors that end the attempt."""

from typing import Any

import pytest

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.allocation import Allocator, Limits
from tests.fakes.dra_objects import DRIVER, allocated, claim, device_class, exactly, gpu, node, resource_slice

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
    """The first devices of a slice that fit are allocated."""
    held = [allocated(claim("other"), "gpu-0", node_name="a")]
    assert devices(allocate(claim("c", exactly(count=2)), held=held)) == [["gpu-1", "gpu-2"]]


def test_two_claims_of_a_pod_never_share_a_device() -> None:
    """A device that one claim of the pod gets is not available to its other claims."""
    assert devices(allocate(claim("one"), claim("two", exactly(count=3)))) == [["gpu-0"], ["gpu-1", "gpu-2", "gpu-3"]]
    assert allocate(claim("one", exactly(count=2)), claim("two", exactly(count=3))) is None


def test_result_is_what_the_scheduler_writes() -> None:
    """Results carry request, driver, pool and device, and the allocation is tied to the node of its devices."""
    (allocation,) = allocate(claim("c"))
    only = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    assert allocation == {
        "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": f"a/{DRIVER}", "device": "gpu-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]},
    }


def test_selectors_of_class_and_request_must_all_match() -> None:
    """A device must match the selectors of the class and every selector of the request."""
    big = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("60Gi")) >= 0'
    assert devices(allocate(claim("c", exactly("gpu", big)))) == [["gpu-2"]]
    assert allocate(claim("c", exactly("gpu", f'{A}.type == "mig"'))) is None


def test_earlier_choices_are_revised() -> None:
    """The search backtracks: a request without selectors gets another device if a later request needs its first one."""
    small = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("20Gi")) <= 0'
    assert devices(allocate(claim("c", exactly("any"), exactly("small", small)))) == [["gpu-1", "gpu-0"]]


def test_mode_all_allocates_every_match_or_nothing() -> None:
    """With mode All every matching device must be free."""
    everything = claim("c", exactly(allocationMode="All"))
    assert devices(allocate(everything)) == [["gpu-0", "gpu-1", "gpu-2", "gpu-3"]]
    assert allocate(everything, held=[allocated(claim("other"), "gpu-3", node_name="a")]) is None


def test_first_available_falls_back() -> None:
    """Subrequests are tried in order, and the result names the one that fits."""
    request = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "many", "deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 5},
            {"name": "one", "deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1},
        ],
    }
    (allocation,) = allocate(claim("c", request))
    assert [result["request"] for result in allocation["devices"]["results"]] == ["gpu/one"]


def test_admin_access_gets_allocated_devices_and_allocates_none() -> None:
    """A claim with admin access gets devices of other claims, which stay available to others."""
    held = [allocated(claim("user"), "gpu-0", node_name="a")]
    monitor = claim("m", exactly(allocationMode="All", adminAccess=True))
    (allocation,) = allocate(monitor, held=held)
    assert all(result["adminAccess"] for result in allocation["devices"]["results"])
    assert len(allocation["devices"]["results"]) == 4
    monitoring = [allocated(monitor, "gpu-0", node_name="a", admin=True)]
    assert devices(allocate(claim("c"), held=monitoring)) == [["gpu-0"]]


def test_configuration_of_class_comes_before_that_of_the_claim() -> None:
    """Later entries take precedence, so the claim overrides the class."""
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}}
    wanted = claim("c", exactly("x"), exactly("y"), config=[{"requests": ["y"], **opaque}, opaque])
    (allocation,) = allocate(wanted, classes=[device_class(config=[opaque])])
    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["x", "y"], **opaque},
        {"source": "FromClaim", "requests": ["y"], **opaque},
        {"source": "FromClaim", **opaque},
    ]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"matchAttribute": f"{DRIVER}/board"}, [["gpu-1", "gpu-2"]]),
        ({"distinctAttribute": f"{DRIVER}/board", "requests": ["x", "y"]}, [["gpu-0", "gpu-1"]]),
        ({"matchAttribute": f"{DRIVER}/missing"}, None),
    ],
)
def test_constraints_hold_between_devices(constraint: Obj, expected: list[list[str]] | None) -> None:
    """matchAttribute needs equal values, distinctAttribute different ones; a missing attribute satisfies neither."""
    boards = resource_slice("a", gpu("gpu-0", board="p"), gpu("gpu-1", board="q"), gpu("gpu-2", board="q"))
    allocations = allocate(claim("c", exactly("x"), exactly("y"), constraints=[constraint]), slices=[boards])
    assert (devices(allocations) if allocations else None) == expected


def test_taints_block_unless_tolerated() -> None:
    """Only claims that tolerate the taint get a tainted GPU."""
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    sick = resource_slice("a", {**gpu("gpu-0"), "taints": [taint]})
    assert allocate(claim("c"), slices=[sick]) is None
    tolerant = claim("c", exactly(tolerations=[{"key": "gpu.nvidia.com/xid", "operator": "Exists"}]))
    assert devices(allocate(tolerant, slices=[sick])) == [["gpu-0"]]


def test_an_incomplete_pool_is_not_used() -> None:
    """While a driver writes several slices, none of them counts; mode All is an error then."""
    half = resource_slice("a", gpu("gpu-0"), count=2)
    assert allocate(claim("c"), slices=[half]) is None
    with pytest.raises(AllocationError, match="currently being updated"):
        allocate(claim("c", exactly(allocationMode="All")), slices=[half])


def test_only_the_newest_generation_counts() -> None:
    """Slices of an older generation are ignored."""
    slices = [
        resource_slice("a", gpu("old"), name="s1"),
        resource_slice("a", gpu("new"), generation=2, name="s2"),
    ]
    assert devices(allocate(claim("c"), slices=slices)) == [["new"]]


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
    """Such a claim is wrong on every node, so it is an error, not a misfit of this node."""
    with pytest.raises(error, match=what):
        allocate(wanted)


def test_selectors_are_evaluated_lazily() -> None:
    """A selector that fails on a later device has no effect if earlier devices suffice."""
    mixed = resource_slice("a", gpu("gpu-0", board="p"), gpu("gpu-1"))
    assert devices(allocate(claim("c", exactly("gpu", f'{A}.board == "p"')), slices=[mixed])) == [["gpu-0"]]


def test_too_few_devices_are_found_without_trying_combinations() -> None:
    """Twenty of sixty-four devices with nineteen free do not fit; the search ends at once."""
    many = resource_slice("a", *[gpu(f"gpu-{index}") for index in range(64)])
    held = [allocated(claim("other"), *[f"gpu-{index}" for index in range(45)], node_name="a")]
    assert allocate(claim("c", exactly(count=20)), slices=[many], held=held) is None


def test_an_exponential_search_ends_with_an_error() -> None:
    """The error names the request and says what shortens the search."""
    many = resource_slice("a", *[gpu(f"gpu-{index}", board=str(index // 2)) for index in range(60)])
    unique = [{"distinctAttribute": f"{DRIVER}/board"}]
    wanted = claim("c", exactly("x", count=15), exactly("y", count=15), constraints=unique)
    never = claim("d", exactly("z", f'{A}.type == "never"'))
    allocator = Allocator(slices=[many], classes=[device_class()], allocated=[], limits=Limits(steps=5000))
    with pytest.raises(
        AllocationError, match=r"claim default/., request [xyz]: no answer after 5000 checks of devices"
    ):
        allocator.allocate(node("a"), [wanted, never])


def test_a_search_ends_after_its_timeout() -> None:
    """Few steps may take long with a slow selector; the clock limits them."""
    many = resource_slice("a", *[gpu(f"gpu-{index}", board=str(index // 2)) for index in range(60)])
    moments = iter(range(10**9))
    limits = Limits(timeout_s=3, clock=lambda: next(moments))
    allocator = Allocator(slices=[many], classes=[device_class()], allocated=[], limits=limits)
    unique = [{"distinctAttribute": f"{DRIVER}/board"}]
    wanted = claim("c", exactly("x", count=15), exactly("y", count=15), constraints=unique)
    with pytest.raises(AllocationError, match="no answer after 3 s"):
        allocator.allocate(node("a"), [wanted, claim("d", exactly("z", f'{A}.type == "never"'))])


def test_a_node_reaches_only_slices_that_select_it() -> None:
    """These are its own slices, slices for all nodes, and slices whose node selector matches its labels."""
    by_label = resource_slice("b", gpu("net"), name="net")
    by_label["spec"].pop("nodeName")
    expression = {"key": "zone", "operator": "In", "values": ["z1"]}
    by_label["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    assert allocate(claim("c"), slices=[by_label], on=node("a", zone="z2")) is None
    (allocation,) = allocate(claim("c"), slices=[by_label], on=node("a", zone="z1"))
    assert allocation["nodeSelector"]["nodeSelectorTerms"] == [{"matchExpressions": [expression]}]
