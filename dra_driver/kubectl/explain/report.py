"""The explanation as data, which `text.py` renders and ``-o json|yaml`` prints.

The fields are the schema of the output: later versions may add fields, but never rename or remove one while
``schemaVersion`` stays the same. Without content, lists are empty and texts are "".
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from dra_driver.kubectl.explain.causes import Cause

SCHEMA_VERSION: Final = 1


class Answer(StrEnum):
    """The verdict in one word.

    ``fits``: the scheduler can place the pod now. ``cannotFit``: it cannot. ``placed``: the pod is on a node and has
    not started. ``running``, ``finished``: nothing to explain. ``allocated``: a claim that has its devices.
    """

    FITS = "fits"
    CANNOT_FIT = "cannotFit"
    PLACED = "placed"
    RUNNING = "running"
    FINISHED = "finished"
    ALLOCATED = "allocated"


class Verdict(Struct, frozen=True, kw_only=True):
    """The verdict; ``nodes_fit`` of ``nodes_total`` nodes can take the subject."""

    answer: Answer
    sentence: str
    nodes_fit: int
    nodes_total: int


class Reason(Struct, frozen=True, kw_only=True):
    """Why a group of devices was rejected. ``seen`` are values found, most frequent first; ``examples`` are devices."""

    code: str
    message: str
    devices: int
    nodes: int
    seen: Sequence[str]
    examples: Sequence[str]


class RequestSummary(Struct, frozen=True, kw_only=True):
    """One request of one claim (``request`` is ``main`` or ``main/sub``) and what happened to the devices.

    ``devices`` were checked on all nodes together, ``fitting`` of them were not rejected. ``nodes_short`` is the number
    of nodes on which fewer fit than ``count`` (a number, or ``all``).
    """

    claim: str
    request: str
    class_name: str
    count: str
    devices: int
    fitting: int
    nodes_short: int
    reasons: Sequence[Reason]


class NearestMiss(Struct, frozen=True, kw_only=True):
    """The device or node that comes closest, the reasons that reject it, and the fix."""

    device: str
    node: str
    request: str
    faults: Sequence[str]
    fix: str


class NodeReason(Struct, frozen=True, kw_only=True):
    """Nodes that cannot take the pod for one reason. ``by_devices`` is False if the reason is unrelated to devices."""

    message: str
    nodes: int
    by_devices: bool
    examples: Sequence[str]


class DeviceLine(Struct, frozen=True, kw_only=True):
    """One device of a node. ``code`` is the code of a reason, or ``given``, or ``free``."""

    request: str
    device: str
    code: str
    message: str


class NodeDetail(Struct, frozen=True, kw_only=True):
    """Output of ``--node``. ``allocation`` lists the devices that would be allocated, as request=device."""

    name: str
    fits: bool
    message: str
    devices: Sequence[DeviceLine]
    allocation: Sequence[str]


class Explanation(Struct, frozen=True, kw_only=True):
    """The whole explanation. ``scheduler`` is the scheduler's last message from the pod's condition."""

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
    """Converts the explanation to JSON values with names in camelCase."""
    return {"schemaVersion": SCHEMA_VERSION, "kind": "Explanation", **_wire(report, renamed={"kind": "subjectKind"})}


def _wire(value: Any, renamed: Mapping[str, str] | None = None) -> Any:
    if isinstance(value, Struct):
        names = renamed or {}
        return {names.get(f) or _camel(f): _wire(getattr(value, f)) for f in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [_wire(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
