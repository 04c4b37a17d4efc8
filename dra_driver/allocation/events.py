"""What a search can tell about the devices that it turned down, for those who explain it.

Owns the vocabulary: one class per reason, in the words of the API. Refuses to know how reasons are counted or shown. A
recorder gets a reason each time it applies, so it meets the same device and reason again when the search goes back.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DeviceId(NamedTuple):
    """What makes a device unique in a cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """Held by allocated claims (``namespace/name``), or by a claim of the pod itself when there are none."""

    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSelected:
    """Selector ``index`` of the class (``class_name`` set) or of the request is false."""

    class_name: str | None
    index: int
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOnNode:
    """The device's own node selection leaves the node out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOff:
    """The device needs a feature gate that is off."""

    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityShort:
    """``why``: ``undefined`` (the device has no such capacity), ``policy`` (its requestPolicy forbids the amount) or
    ``short`` (only ``free`` is left)."""

    capacity: str
    why: str
    wanted: str
    free: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterShort:
    """The first counter that is missing something, after what is allocated and what this attempt has taken.

    ``own`` is False when the device does not touch the counter: another device overdrew it, which blocks the pool.
    """

    counter_set: str
    counter: str
    wanted: str
    free: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tainted:
    """A taint that no toleration of the request covers."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintBroken:
    """Constraint ``index`` of the claim. ``seen`` is None when the device lacks the attribute."""

    index: int
    kind: str
    attribute: str
    seen: str | None
    others: tuple[str, ...]


Cause = (
    InUse | NotSelected | NotOnNode | GateOff | CapacityShort | CounterShort | Tainted | ConstraintBroken
)  # every reason there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A device was turned down for a request. ``claim`` is an index, ``request`` ``main`` or ``main/sub``."""

    claim: int
    request: str
    device: DeviceId
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLeftOut:
    """A pool that the node reaches and whose devices are not looked at. ``why``: ``incomplete``, ``invalid`` or
    ``obsolete`` (a newer generation exists elsewhere)."""

    driver: str
    pool: str
    why: str
    detail: str


Event = Rejection | PoolLeftOut


class SearchRecorder(Protocol):
    """Whoever wants to know. Called from the thread that allocates."""

    def record(self, event: Event, /) -> None:
        """Take note; must not change anything that the search reads."""
