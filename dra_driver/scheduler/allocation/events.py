"""Events of a search: why a device was rejected and which pools were skipped, one class per reason; and errors on
malformed objects. A reason is recorded each time it applies, also after backtracking."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from dra_driver.core.errors import AllocationError
from dra_driver.kube.objects import resource
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import ResourceClaimStatus
from dra_driver.kube.shapes import problem_of

Wire = Mapping[str, Any]  # an object as an API server returns it, or a part of one. Not changed here.


class DeviceId(NamedTuple):
    """Unique identity of a device in a cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class InUse(Struct, frozen=True, kw_only=True):
    """Allocated to the claims ``holders`` (``namespace/name``); to a claim of the pod itself if there are none."""

    holders: tuple[str, ...]


class NotSelected(Struct, frozen=True, kw_only=True):
    """Selector ``index`` of the class (``class_name`` set) or of the request is false."""

    class_name: str | None
    index: int
    expression: str


class NotOnNode(Struct, frozen=True, kw_only=True):
    """The device's own node selection excludes the node."""


class GateOff(Struct, frozen=True, kw_only=True):
    """The device needs a feature gate that is off."""

    gate: str


class CapacityShort(Struct, frozen=True, kw_only=True):
    """``why``: ``undefined`` (the device lacks the capacity), ``policy`` (its requestPolicy forbids the amount) or
    ``short`` (only ``free`` is left)."""

    capacity: str
    why: str
    wanted: str
    free: str


class CounterShort(Struct, frozen=True, kw_only=True):
    """The first counter with too little left after allocated and searched devices. ``own`` is False if the device does
    not consume the counter: another device overdrew it, which blocks the pool."""

    counter_set: str
    counter: str
    wanted: str
    free: str
    own: bool


class Tainted(Struct, frozen=True, kw_only=True):
    """A taint that no toleration of the request covers."""

    key: str
    value: str
    effect: str


class ConstraintBroken(Struct, frozen=True, kw_only=True):
    """Constraint ``index`` of the claim. ``seen`` is None when the device lacks the attribute."""

    index: int
    kind: str
    attribute: str
    seen: str | None
    others: tuple[str, ...]


Cause = InUse | NotSelected | NotOnNode | GateOff | CapacityShort | CounterShort | Tainted | ConstraintBroken


class Rejection(Struct, frozen=True, kw_only=True):
    """A device was rejected for a request. ``claim`` is an index, ``request`` is ``main`` or ``main/sub``."""

    claim: int
    request: str
    device: DeviceId
    cause: Cause


class PoolLeftOut(Struct, frozen=True, kw_only=True):
    """A pool that the node reaches but whose devices are not tried. ``why``: ``incomplete``, ``invalid`` or
    ``obsolete`` (a newer generation exists, not for this node)."""

    driver: str
    pool: str
    why: str
    detail: str


Event = Rejection | PoolLeftOut


class SearchRecorder(Protocol):
    """Receives events. Called from the thread that allocates."""

    def record(self, event: Event, /) -> None:
        """Handles one event. Must not change objects that the search reads."""


T = TypeVar("T")
MALFORMED: Final = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError)
"""Exceptions that Python raises on values of types that the API does not have."""


class _Named(Struct):
    metadata: ObjectMeta


class _Allocated(Struct):
    status: ResourceClaimStatus | None = None


_KINDS: Final = {
    "node": _Named,
    "claims": tuple[resource.ResourceClaim, ...],
    "slices": tuple[resource.ResourceSlice, ...],
    "classes": tuple[resource.DeviceClass, ...],
    "allocated": tuple[_Allocated, ...],
}


def guarded(work: Callable[[], T], wires: Mapping[str, object]) -> T:
    """The result of ``work``; an error of ``MALFORMED`` becomes an AllocationError that names the malformed field.
    ``wires`` are the objects that ``work`` reads, under the names of ``_KINDS``. Checking all fields in advance would
    take longer than allocating."""
    try:
        return work()
    except MALFORMED as error:
        found = next(filter(None, (problem_of(_KINDS[name], wire, name) for name, wire in wires.items())), "")
        why = found or f"an object is not as an API server returns it: {type(error).__name__}: {str(error)[:200]}"
        raise AllocationError(why) from error
