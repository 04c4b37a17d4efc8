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
    held = [allocated(claim("other"), "gpu-0", node_name="a")]
    assert devices(allocate(claim("c", exactly(count=2)), held=held)) == [["gpu-1", "gpu-2"]]


def test_admin_access_gets_allocated_devices_and_allocates_none() -> None:
    held = [allocated(claim("user"), "gpu-0", node_name="a")]
    monitor = claim("m", exactly(allocationMode="All", adminAccess=True))
    (allocation,) = allocate(monitor, held=held)
    assert all(result["adminAccess"] for result in allocation["devices"]["results"])
    assert len(allocation["devices"]["results"]) == 4
    monitoring = [allocated(monitor, "gpu-0", node_name="a", admin=True)]
    assert devices(allocate(claim("c"), held=monitoring)) == [["gpu-0"]]


def test_taints_block_unless_tolerated() -> None:
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    sick = resource_slice("a", {**gpu("gpu-0"), "taints": [taint]})
    assert allocate(claim("c"), slices=[sick]) is None
    tolerant = claim("c", exactly(tolerations=[{"key": "gpu.nvidia.com/xid", "operator": "Exists"}]))
    assert devices(allocate(tolerant, slices=[sick])) == [["gpu-0"]]


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


def test_too_few_devices_are_found_without_trying_combinations() -> None:
    """Twenty of sixty-four devices with nineteen free do not fit; the search ends at once."""
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


def test_an_exponential_search_ends_with_an_error() -> None:
    """The error names the request and says what shortens the search."""
    with pytest.raises(
        AllocationError, match=r"claim default/., request [xyz]: no answer after 5000 checks of devices"
    ):
        search_without_end(Limits(steps=5000))


def test_a_search_ends_after_its_timeout() -> None:
    """Few steps may take long with a slow selector; the clock limits them."""
    moments = iter(range(10**9))
    with pytest.raises(AllocationError, match="no answer after 3 s"):
        search_without_end(Limits(timeout_s=3, clock=lambda: next(moments)))
