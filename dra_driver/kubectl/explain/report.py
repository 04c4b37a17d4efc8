"""The explanation as data, which `text.py` renders and ``-o json|yaml`` prints, and the causes that involve no device.

The fields and codes are the schema of the output: later versions may add some, but never rename or remove one while
``schemaVersion`` stays the same. Without content, lists are empty and texts are "".
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field, to_builtins

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError

# --- Causes that prevent scheduling without involving a single device, and their codes.
#
# The codes are part of the output schema: new ones may be added, existing ones are never renamed.


class CauseCode(StrEnum):
    """Code of a cause. The codes of single devices are in ``reasons.py``."""

    CLAIM_MISSING = "claimMissing"
    CLAIM_DELETED = "claimDeleted"
    CLAIM_NOT_OWNED = "claimNotOwned"
    CLAIM_FULL = "claimFull"
    CLAIM_NOT_RESERVED = "claimNotReserved"
    CLAIM_NOT_ALLOCATED = "claimNotAllocated"
    TEMPLATE_MISSING = "templateMissing"
    CLASS_MISSING = "classMissing"
    RESOURCE_UNKNOWN = "resourceUnknown"
    NOT_WEIGHABLE = "notWeighable"
    SCHEDULER_FAULT = "schedulerFault"
    CEL_ERROR = "celError"
    NO_SLICES = "noSlices"
    DRIVER_SILENT = "driverSilent"
    DRIVER_NOT_ON_NODE = "driverNotOnNode"
    GATE_OFF = "gateOff"
    PREPARE_FAILING = "prepareFailing"
    VOLUME_WAITING = "volumeWaiting"
    SCHEDULING_GATES = "schedulingGates"
    OTHER_SCHEDULER = "otherScheduler"
    NO_NODES = "noNodes"
    NOT_WEIGHED = "notWeighed"
    BEING_DELETED = "beingDeleted"
    POOL_UNUSABLE = "poolUnusable"


class Cause(Struct, frozen=True, kw_only=True, rename="camel"):
    """``message`` is a sentence, ``fix`` what to do about it (may be empty), ``object`` the object concerned.

    With ``blocks`` the pod cannot be placed before this changes; otherwise the cause is only additional information.
    """

    code: CauseCode
    message: str
    fix: str = ""
    object: str = ""
    blocks: bool = True


FINAL_CODES: Final = frozenset(
    {
        CauseCode.CLAIM_MISSING,
        CauseCode.CLAIM_DELETED,
        CauseCode.CLAIM_NOT_OWNED,
        CauseCode.CLAIM_FULL,
        CauseCode.TEMPLATE_MISSING,
        CauseCode.CLASS_MISSING,
        CauseCode.NO_SLICES,
        CauseCode.NO_NODES,
        CauseCode.RESOURCE_UNKNOWN,
    }
)
"""Causes after which no node needs to be evaluated."""


def cel_cause(error: CelSyntaxError | CelEvaluationError) -> Cause:
    syntax = isinstance(error, CelSyntaxError)
    return Cause(
        code=CauseCode.CEL_ERROR,
        message=f"the scheduler rejects the pod on every node: {error}",
        fix="correct the expression"
        if syntax
        else 'begin the expression with device.driver == "…" &&, and read optional attributes with has() or .?',
    )


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

    @property
    def is_good(self) -> bool:
        """Whether nothing keeps the subject from its devices."""
        return self not in (Answer.CANNOT_FIT, Answer.PLACED)


class Verdict(Struct, frozen=True, kw_only=True, rename="camel"):
    """The verdict; ``nodes_fit`` of ``nodes_total`` nodes can take the subject."""

    answer: Answer
    sentence: str
    nodes_fit: int
    nodes_total: int


class Reason(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a group of devices was rejected. ``seen`` are values found, most frequent first; ``examples`` are devices."""

    code: str
    message: str
    devices: int
    nodes: int
    seen: Sequence[str]
    examples: Sequence[str]


class RequestSummary(Struct, frozen=True, kw_only=True, rename="camel"):
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


class NearestMiss(Struct, frozen=True, kw_only=True, rename="camel"):
    """The device or node that comes closest, the reasons that reject it, and the fix."""

    device: str
    node: str
    request: str
    faults: Sequence[str]
    fix: str


class NodeReason(Struct, frozen=True, kw_only=True, rename="camel"):
    """Nodes that cannot take the pod for one reason. ``by_devices`` is False if the reason is unrelated to devices."""

    message: str
    nodes: int
    by_devices: bool
    examples: Sequence[str]


class DeviceLine(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device of a node. ``code`` is the code of a reason, or ``given``, or ``free``."""

    request: str
    device: str
    code: str
    message: str


class NodeDetail(Struct, frozen=True, kw_only=True, rename="camel"):
    """Output of ``--node``. ``allocation`` lists the devices that would be allocated, as request=device."""

    name: str
    fits: bool
    message: str
    devices: Sequence[DeviceLine]
    allocation: Sequence[str]


class Explanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole explanation. ``scheduler`` is the scheduler's last message from the pod's condition."""

    subject: str
    kind: str = field(name="subjectKind")
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
    return {"schemaVersion": SCHEMA_VERSION, "kind": "Explanation", **to_builtins(report)}
