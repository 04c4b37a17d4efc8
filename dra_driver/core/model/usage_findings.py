"""Findings of the usage exporter on a node, as values and as ``findings.json`` has them. ``node/usage/`` makes them,
``config/usage_findings.py`` writes and reads them, the node process reports them, and the controller evicts for some.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.core.wire import ALWAYS

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


class _Finding(Struct, frozen=True, kw_only=True, rename="camel"):
    """``since`` is in UTC."""

    since: Time

    def __post_init__(self) -> None:
        try:
            force_setattr(self, "since", self.since.astimezone(UTC))
        except OverflowError as error:  # the first or the last day of all, in another zone
            raise ValueError(str(error)) from error


class _OfClaim(_Finding, frozen=True, kw_only=True, rename="camel"):
    claim_uid: Uid
    namespace: Name
    claim: Name

    @property
    def ref(self) -> ClaimRef:
        return ClaimRef(namespace=self.namespace, name=self.claim, uid=ClaimUid(self.claim_uid))


class IdleClaim(_OfClaim, frozen=True, kw_only=True, rename="camel"):
    """A claim that has not used its devices since ``since``, as far back as it was watched."""


class OverGrant(_OfClaim, frozen=True, kw_only=True, rename="camel"):
    """The processes of a claim together have more memory of ``device`` than granted. ``pods`` are never empty, the
    one with most memory first. ``used_bytes`` is the maximum since ``since``, of ``processes`` processes."""

    device: Name
    pods: Annotated[tuple[UsingPod, ...], Meta(min_length=1, max_length=MAX_PODS)]
    used_bytes: Amount
    grant_bytes: Amount
    processes: Amount
    action: Annotated[OverGrantAction, ALWAYS] = OverGrantAction.REPORT


class Unattributed(_Finding, frozen=True, kw_only=True, rename="camel"):
    """Processes on a GPU that belong to no claim. ``bytes`` is None where the driver does not report the memory of
    one. ``commands`` come from /proc: a process chooses its own."""

    gpu_uuid: Uid = field(name="gpu")
    device: Name
    processes: Annotated[int, Meta(ge=1, le=2**60)]
    bytes: Amount | None = None
    commands: Annotated[tuple[Command, ...], Meta(max_length=MAX_COMMANDS)] = ()


class UsageFindings(Struct, frozen=True, kw_only=True, rename="camel"):
    """All of one node, as of ``written`` (UTC)."""

    written: Time
    over_grant: Annotated[tuple[OverGrant, ...], Meta(max_length=MAX_OVER_GRANT)] = ()
    unattributed: Annotated[tuple[Unattributed, ...], Meta(max_length=MAX_UNATTRIBUTED)] = ()
    idle: Annotated[tuple[IdleClaim, ...], Meta(max_length=MAX_IDLE)] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.over_grant or self.unattributed or self.idle)
