"""Causes that prevent scheduling without involving a single device, and their codes.

The codes are part of the output schema: new ones may be added, existing ones are never renamed.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError


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


class Cause(Struct, frozen=True, kw_only=True):
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
    """Returns the cause for a selector that does not compile or fails on a device."""
    syntax = isinstance(error, CelSyntaxError)
    return Cause(
        code=CauseCode.CEL_ERROR,
        message=f"the scheduler rejects the pod on every node: {error}",
        fix="correct the expression"
        if syntax
        else 'begin the expression with device.driver == "…" &&, and read optional attributes with has() or .?',
    )
