"""The answer, as data: what `text.py` shows to people and ``-o json|yaml`` prints.

Owns the schema of the output. Fields are added in later versions, never renamed or removed while ``schemaVersion``
stays the same; lists are empty and texts "" where there is nothing to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

from dra_driver.explain.causes import Cause

SCHEMA_VERSION: Final = 1


class Answer(StrEnum):
    """The verdict in one word.

    ``fits``: the scheduler can place it now. ``cannotFit``: it cannot. ``placed``: it is on a node and has not started.
    ``running``, ``finished``: nothing to explain. ``allocated``: a claim by itself that has its devices.
    """

    FITS = "fits"
    CANNOT_FIT = "cannotFit"
    PLACED = "placed"
    RUNNING = "running"
    FINISHED = "finished"
    ALLOCATED = "allocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``nodes_fit`` of ``nodes_total`` nodes can take it."""

    answer: Answer
    sentence: str
    nodes_fit: int
    nodes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a group of devices fell away. ``seen`` are values met there, most frequent first; ``examples`` devices."""

    code: str
    message: str
    devices: int
    nodes: int
    seen: Sequence[str]
    examples: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """One request of one claim (``request`` is ``main`` or ``main/sub``) and what became of the devices.

    ``devices`` were weighed on all nodes together, ``fitting`` were not turned down. ``nodes_short`` are the nodes on
    which fewer fit than ``count`` asks for (a number, or ``all``).
    """

    claim: str
    request: str
    class_name: str
    count: str
    devices: int
    fitting: int
    nodes_short: int
    reasons: Sequence[Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss:
    """The device that comes closest, what stands in its way and what would change that."""

    device: str
    node: str
    request: str
    faults: Sequence[str]
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReason:
    """Nodes that turn the pod down for one reason. ``by_devices`` is False for what devices have nothing to do with."""

    message: str
    nodes: int
    by_devices: bool
    examples: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """One device in the detail of a node. ``code`` is that of a reason, or ``given``, or ``free``."""

    request: str
    device: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """What ``--node`` shows. ``allocation`` are the devices that would be given, as request=device."""

    name: str
    fits: bool
    message: str
    devices: Sequence[DeviceLine]
    allocation: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``scheduler`` is the scheduler's own last word, from the pod's condition; ``notes`` are worth knowing."""

    subject: str
    kind: str
    namespace: str
    name: str
    verdict: Verdict
    causes: Sequence[Cause] = ()
    requests: Sequence[RequestSummary] = ()
    nearest_miss: NearestMiss | None = None
    nodes: Sequence[NodeReason] = ()
    fitting_nodes: Sequence[str] = ()
    node: NodeDetail | None = None
    scheduler: str = ""
    notes: Sequence[str] = ()


def to_wire(report: Explanation) -> dict[str, Any]:
    """The report as JSON values with names in camelCase."""
    return {"schemaVersion": SCHEMA_VERSION, "kind": "Explanation", **_wire(report, renamed={"kind": "subjectKind"})}


def _wire(value: Any, renamed: Mapping[str, str] | None = None) -> Any:
    if is_dataclass(value):
        names = renamed or {}
        return {names.get(f.name) or _camel(f.name): _wire(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [_wire(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
