"""Guarded operations of one GPU: switch MIG mode, or reset. ``kubectl dra gpu`` and policies request them, the node
process runs them.

The Node's annotation ``gpu.dra-driver.io/operation`` holds requests, separated by commas, each as
``<operation>/<GPU UUID>/<number>``. A number is used once, so that a restart does not repeat a finished request.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid

OPERATION_ANNOTATION: Final = "gpu.dra-driver.io/operation"
OPERATION_TAINT: Final = "gpu.dra-driver.io/operation"
"""Key of the taint, effect NoSchedule, of every device of a GPU with an operation; the value is the operation."""
DONE_EVENT: Final = "GpuOperationDone"
FAILED_EVENT: Final = "GpuOperationFailed"
MAX_REQUESTS: Final = 16
_FORM: Final = re.compile(r"(mig-on|mig-off|reset)/(GPU-[0-9A-Za-z-]{1,64})/([0-9a-z]{1,32})")


class Operation(StrEnum):
    MIG_ON = "mig-on"
    MIG_OFF = "mig-off"
    RESET = "reset"

    @property
    def mig_mode(self) -> bool | None:
        """The wanted MIG mode; None for a reset, which keeps it."""
        return None if self is Operation.RESET else self is Operation.MIG_ON

    @property
    def phrase(self) -> str:
        return {"mig-on": "switching MIG mode on", "mig-off": "switching MIG mode off", "reset": "the reset"}[self]


class OperationRequest(Struct, frozen=True, kw_only=True):
    operation: Operation
    gpu: GpuUuid
    number: str

    def __str__(self) -> str:
        return f"{self.operation}/{self.gpu}/{self.number}"


def requests_of(text: str | None) -> tuple[tuple[OperationRequest, ...], tuple[str, ...]]:
    """The requests of the annotation's value, at most `MAX_REQUESTS`, and its words that are none."""
    found: list[OperationRequest] = []
    unknown: list[str] = []
    for word in filter(None, (part.strip() for part in (text or "").split(","))):
        match = _FORM.fullmatch(word)
        if match is None or len(found) == MAX_REQUESTS:
            unknown.append(word)
        else:
            found.append(OperationRequest(operation=Operation(match[1]), gpu=GpuUuid(match[2]), number=match[3]))
    return tuple(found), tuple(unknown)


def text_of(requests: Iterable[OperationRequest]) -> str | None:
    """The annotation's value; None without requests."""
    return ",".join(map(str, requests)) or None
