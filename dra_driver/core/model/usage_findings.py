"""Findings of the usage exporter on a node, as values. ``node/usage/`` makes them, ``config/usage_findings.py`` writes
and reads them, the node process reports them, and the controller evicts for some."""

from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.usage_rules import OverGrantAction

MAX_OVER_GRANT: Final = 128
MAX_IDLE: Final = 128
MAX_UNATTRIBUTED: Final = 64
MAX_PODS: Final = 8  # pods reported for one claim
MAX_COMMANDS: Final = 5
MAX_COMMAND: Final = 64
# The bounds of a file that another process writes.
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[!-~]+$")]
Uid = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[!-~]+$")]
Command = Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND)]
Amount = Annotated[int, Meta(ge=0, le=2**60)]
Time = Annotated[datetime, Meta(tz=True)]


class UsingPod(Struct, frozen=True, kw_only=True):
    """One pod and no later one of the same name."""

    namespace: Name
    name: Name
    uid: Uid


class OverGrant(Struct, frozen=True, kw_only=True):
    """The processes of ``claim`` together have more memory of ``device`` than granted. ``pods`` are never empty, the
    one with most memory first. ``used_bytes`` is the maximum since ``since`` (UTC), of ``processes`` processes."""

    claim: ClaimRef
    device: str
    pods: tuple[UsingPod, ...]
    used_bytes: int
    grant_bytes: int
    processes: int
    since: datetime
    action: OverGrantAction = OverGrantAction.REPORT


class Unattributed(Struct, frozen=True, kw_only=True):
    """Processes on a GPU that belong to no claim, since ``since`` (UTC). ``bytes_used`` is None where the driver does
    not report the memory of one. ``commands`` come from /proc: a process chooses its own."""

    gpu_uuid: str
    device: str
    processes: int
    bytes_used: int | None
    since: datetime
    commands: tuple[str, ...] = ()


class IdleClaim(Struct, frozen=True, kw_only=True):
    """A claim that has not used its devices since ``since`` (UTC), as far back as it was watched."""

    claim: ClaimRef
    since: datetime


class UsageFindings(Struct, frozen=True, kw_only=True):
    """All of one node, as of ``written`` (UTC)."""

    written: datetime
    over_grant: tuple[OverGrant, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()
    idle: tuple[IdleClaim, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.over_grant or self.unattributed or self.idle)
