"""Questions about devices that several packages ask of wire objects."""

from typing import Any

import pytest

from dra_driver.kube.devices import (
    attribute_of,
    attribute_text,
    generation_of,
    is_pod,
    newest_slices,
    pool_of,
    results_of,
    users_of,
)

RESULT = {"request": "gpu", "driver": "d", "pool": "p", "device": "gpu-0"}
POD = {"resource": "pods", "name": "p", "uid": "u"}


def slice_(name: str, pool: str, generation: int | None, driver: str = "d") -> dict[str, Any]:
    made: dict[str, Any] = {"metadata": {"name": name}, "spec": {"driver": driver, "pool": {"name": pool}}}
    if generation is not None:
        made["spec"]["pool"]["generation"] = generation
    return made


@pytest.mark.parametrize(
    "claim", [{}, {"status": None}, {"status": {"allocation": None}}, {"status": {"allocation": {"devices": None}}}]
)
def test_claim_without_allocation_has_no_results(claim: dict[str, Any]) -> None:
    assert not results_of(claim)
    assert not users_of(claim)


def test_users_that_are_no_pods_are_told_apart() -> None:
    """A resource named pods of another group is none of the core group."""
    assert is_pod(POD)
    assert not is_pod({**POD, "apiGroup": "example.com"})
    assert not is_pod({**POD, "resource": "jobs"})


def test_newest_generation_of_each_pool_counts() -> None:
    """Pools of two drivers may have one name; the order stays."""
    old, new, other = slice_("old", "p", 1), slice_("new", "p", 2), slice_("other", "p", 1, driver="e")
    assert newest_slices([new, other, old]) == [new, other]
    assert pool_of(other) == ("e", "p")


def test_missing_generation_is_0() -> None:
    """A client may leave the default out: such a slice is older than all others of its pool, and valid alone."""
    missing, new = slice_("missing", "p", None), slice_("new", "p", 1)
    assert generation_of(missing) == 0
    assert newest_slices([missing, new]) == [new]
    assert newest_slices([missing]) == [missing]


@pytest.mark.parametrize("name", ["uuid", "gpu.nvidia.com/uuid"])
def test_attribute_is_found_with_and_without_its_domain(name: str) -> None:
    assert attribute_of({name: {"string": "GPU-1"}}, "gpu.nvidia.com", "uuid") == {"string": "GPU-1"}
    assert attribute_text({name: {"string": "GPU-1"}}, "gpu.nvidia.com", "uuid") == "GPU-1"
    assert attribute_text({name: {"int": 1}}, "gpu.nvidia.com", "uuid") == ""
    assert attribute_of({"example.com/uuid": {"string": "x"}}, "gpu.nvidia.com", "uuid") == {}
    assert attribute_of(None, "gpu.nvidia.com", "uuid") == {}
