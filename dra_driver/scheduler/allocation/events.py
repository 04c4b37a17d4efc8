"""Events of a search: why a device was rejected and which pools were left out. One class per reason.

A recorder gets a reason each time it applies: after backtracking the same device and reason occur again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

Wire = Mapping[str, Any]
"""An object as an API server returns it, or a part of one. Not changed here."""


class DeviceId(NamedTuple):
    """What makes a device unique in a cluster."""

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
    """``why``: ``undefined`` (the device has no such capacity), ``policy`` (its requestPolicy forbids the amount) or
    ``short`` (only ``free`` is left)."""

    capacity: str
    why: str
    wanted: str
    free: str


class CounterShort(Struct, frozen=True, kw_only=True):
    """The first counter with too little left, after allocated devices and the devices of this search.

    ``own`` is False if the device does not consume the counter: another device overdrew it, which blocks the pool.
    """

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
    """A pool that the node reaches but whose devices are not tried.

    ``why``: ``incomplete``, ``invalid`` or ``obsolete`` (a newer generation exists, not for this node).
    """

    driver: str
    pool: str
    why: str
    detail: str


Event = Rejection | PoolLeftOut


class SearchRecorder(Protocol):
    """Receives events. Called from the thread that allocates."""

    def record(self, event: Event, /) -> None:
        """Handles one event. Must not change objects that the search reads."""
