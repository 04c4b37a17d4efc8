"""Translates Python's errors on malformed objects into one AllocationError that names the field.

Checking every field of a large cluster in advance would take longer than allocating. So a malformed field is noticed
where it is used, and only then searched for.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from dra_driver.core.errors import AllocationError
from dra_driver.kube.objects import resource
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import ResourceClaimStatus
from dra_driver.kube.shapes import problem_of

T = TypeVar("T")
MALFORMED: Final = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError)
"""What Python raises on values of other types than the API has."""


class _Named(Struct):
    """A node: only names and labels are read."""

    metadata: ObjectMeta


class _Allocated(Struct):
    """A claim with devices, of which the spec is not read."""

    status: ResourceClaimStatus | None = None


_KINDS: Final = {
    "node": _Named,
    "claims": tuple[resource.ResourceClaim, ...],
    "slices": tuple[resource.ResourceSlice, ...],
    "classes": tuple[resource.DeviceClass, ...],
    "allocated": tuple[_Allocated, ...],
}


def guarded(work: Callable[[], T], wires: Mapping[str, object]) -> T:
    """The result of ``work``. An error of ``MALFORMED`` becomes an AllocationError that names the malformed field.

    ``wires`` are the objects that ``work`` reads, under the names of ``_KINDS``.
    """
    try:
        return work()
    except MALFORMED as error:
        found = next(filter(None, (problem_of(_KINDS[name], wire, name) for name, wire in wires.items())), "")
        why = found or f"an object is not as an API server returns it: {type(error).__name__}: {str(error)[:200]}"
        raise AllocationError(why) from error
