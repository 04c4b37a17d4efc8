"""What a smoke test found, as values and as JSON.

Fields of the JSON are never renamed or removed while ``schemaVersion`` stays the same.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.diagnose.smoke.kinds import TryKind

SCHEMA_VERSION: Final = 1


class TryStatus(StrEnum):
    """``NOT_TRIED``: nothing was free, or the command ended before; no failure."""

    OK = "ok"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class TryLayer(StrEnum):
    """Where a try failed, in the order in which a GPU reaches a container."""

    API_SERVER = "api-server"
    """The API server did not answer, or refused."""
    NODE = "node"
    """The node is not ready."""
    SLICES = "slices"
    """The node publishes no devices."""
    WORKLOAD = "workload"
    """No pod was created: quota, admission, the Job controller."""
    SCHEDULING = "scheduling"
    """The pod stayed pending."""
    PREPARE = "prepare"
    """The node did not prepare the claim."""
    IMAGE = "image"
    """The image was not there."""
    CONTAINER = "container"
    """The container did not start, failed, or sees other devices."""
    RELEASE = "release"
    """The claim was not given back."""


class TryResult(Struct, frozen=True, kw_only=True):
    """One kind on one node. ``kind`` is None for what concerns the whole node.

    ``device`` is the allocated device, ``expected`` and ``seen`` are UUIDs (a partition that exists only for its claim
    as ``PROFILE of GPU-…``), ``lines`` what the container or an event says.
    """

    node: str
    kind: TryKind | None
    status: TryStatus
    layer: TryLayer | None = None
    message: str = ""
    do: str = ""
    device: str = ""
    expected: Sequence[str] = ()
    seen: Sequence[str] = ()
    lines: Sequence[str] = ()
    seconds: float = 0.0


class SmokeReport(Struct, kw_only=True):
    """All tries, in the order of nodes and kinds. ``left`` are objects that could not be deleted."""

    run: str
    namespace: str
    tries: list[TryResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    interrupted: bool = False

    def count(self, status: TryStatus) -> int:
        return sum(item.status is status for item in self.tries)

    @property
    def exit_status(self) -> int:
        """0: whatever was tried works. 1: a failure, or something is left behind. 130: interrupted."""
        if self.interrupted:
            return 130
        return 1 if self.count(TryStatus.FAILED) or self.left else 0

    @property
    def summary(self) -> str:
        """``5 tries on 2 nodes: 4 ok, 1 failed; 3 not tried``."""
        tried = [item for item in self.tries if item.status is not TryStatus.NOT_TRIED]
        nodes = len({item.node for item in tried})
        words = f"{len(tried)} {'try' if len(tried) == 1 else 'tries'} on {nodes} node{'' if nodes == 1 else 's'}"
        failed = self.count(TryStatus.FAILED)
        counted = f"{self.count(TryStatus.OK)} ok" + (f", {failed} failed" if failed else "")
        rest = self.count(TryStatus.NOT_TRIED)
        return f"{words}: {counted}" + (f"; {rest} not tried" if rest else "")


def to_wire(report: SmokeReport) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "kind": "SmokeReport",
        "run": report.run,
        "namespace": report.namespace,
        "summary": report.summary,
        "interrupted": report.interrupted,
        "exitStatus": report.exit_status,
        "tries": [_try_to_wire(item) for item in report.tries],
        "notes": list(report.notes),
        "left": list(report.left),
    }


def _try_to_wire(item: TryResult) -> dict[str, Any]:
    return {
        "node": item.node,
        "form": item.kind.form if item.kind else "",
        "name": item.kind.name if item.kind else "",
        "status": item.status.value,
        "layer": item.layer.value if item.layer else "",
        "message": item.message,
        "do": item.do,
        "device": item.device,
        "expected": list(item.expected),
        "seen": list(item.seen),
        "lines": list(item.lines),
        "seconds": round(item.seconds, 1),
    }
