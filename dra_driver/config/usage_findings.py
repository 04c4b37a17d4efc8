"""Encode and decode ``findings.json``, in which the usage exporter reports to the node process.

The exporter reads processes of tenants, so the node process takes its file as it would take a tenant's: every list and
text is cut to its bound, invalid entries are omitted, and a file that is not a JSON object counts as damaged.
"""

from datetime import UTC
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, json
from msgspec.structs import force_setattr

from dra_driver.core.model import usage_findings
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.core.wire import ALWAYS, from_file, to_wire

VERSION: Final = 1
FOLDER, FILE = "findings", "findings.json"
"""In the directory ``usage`` of the driver's directory; the exporter may write only this directory."""
LOCK: Final = "driver.lock"
"""In the same directory: the exporter holds a shared lock on it while it has the NVIDIA driver open."""
MAX_BYTES: Final = 2**20
RENEW_S: Final = 60.0
"""Seconds between rewrites of a file with content; an empty file is written only on a change."""


class _Since(Struct, frozen=True, kw_only=True, rename="camel"):
    since: usage_findings.Time

    def __post_init__(self) -> None:
        try:
            force_setattr(self, "since", self.since.astimezone(UTC))
        except OverflowError as error:  # the first or the last day of all, in another zone
            raise ValueError(str(error)) from error


class _OfClaim(_Since, frozen=True, kw_only=True, rename="camel"):
    claim_uid: usage_findings.Uid
    namespace: usage_findings.Name
    claim: usage_findings.Name

    @property
    def ref(self) -> ClaimRef:
        return ClaimRef(namespace=self.namespace, name=self.claim, uid=ClaimUid(self.claim_uid))


class _OverGrant(_OfClaim, frozen=True, kw_only=True, rename="camel"):
    device: usage_findings.Name
    pods: Annotated[tuple[usage_findings.UsingPod, ...], Meta(min_length=1, max_length=usage_findings.MAX_PODS)]
    used_bytes: usage_findings.Amount
    grant_bytes: usage_findings.Amount
    processes: Annotated[usage_findings.Amount, ALWAYS]
    action: Annotated[OverGrantAction, ALWAYS] = OverGrantAction.REPORT


class _Unattributed(_Since, frozen=True, kw_only=True, rename="camel"):
    gpu: usage_findings.Uid
    device: usage_findings.Name
    processes: Annotated[int, Meta(ge=1, le=2**60)]
    bytes: usage_findings.Amount | None = None
    commands: Annotated[tuple[usage_findings.Command, ...], Meta(max_length=usage_findings.MAX_COMMANDS)] = ()


class _File(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int
    written: usage_findings.Time
    over_grant: Annotated[tuple[_OverGrant, ...], Meta(max_length=usage_findings.MAX_OVER_GRANT)] = ()
    unattributed: Annotated[tuple[_Unattributed, ...], Meta(max_length=usage_findings.MAX_UNATTRIBUTED)] = ()
    idle: Annotated[tuple[_OfClaim, ...], Meta(max_length=usage_findings.MAX_IDLE)] = ()


# Fields that the file and the values of the process have under the same names.
_OVER_GRANT: Final = ("since", "device", "pods", "used_bytes", "grant_bytes", "processes", "action")
_UNATTRIBUTED: Final = ("since", "device", "processes", "commands")


def encode(findings: usage_findings.UsageFindings) -> bytes:
    file = _File(
        version=VERSION,
        written=findings.written,
        over_grant=tuple(_over_grant(each) for each in findings.over_grant),
        unattributed=tuple(_unattributed(each) for each in findings.unattributed),
        idle=tuple(
            _OfClaim(claim_uid=claim.uid, namespace=claim.namespace, claim=claim.name, since=each.since)
            for each in findings.idle
            for claim in (each.claim,)
        ),
    )
    return json.encode(to_wire(file)) + b"\n"


def decode(content: bytes) -> usage_findings.UsageFindings:
    """Raises ConfigurationError for other content."""
    file = from_file(_File, content, FILE, version=VERSION, max_bytes=MAX_BYTES)
    return usage_findings.UsageFindings(
        written=file.written,
        over_grant=tuple(
            usage_findings.OverGrant(claim=each.ref, **_same(each, _OVER_GRANT)) for each in file.over_grant
        ),
        unattributed=tuple(
            usage_findings.Unattributed(gpu_uuid=each.gpu, bytes_used=each.bytes, **_same(each, _UNATTRIBUTED))
            for each in file.unattributed
        ),
        idle=tuple(usage_findings.IdleClaim(claim=each.ref, since=each.since) for each in file.idle),
    )


def _over_grant(found: usage_findings.OverGrant) -> _OverGrant:
    claim = found.claim
    same = _same(found, _OVER_GRANT)
    return _OverGrant(claim_uid=claim.uid, namespace=claim.namespace, claim=claim.name, **same)


def _unattributed(found: usage_findings.Unattributed) -> _Unattributed:
    return _Unattributed(gpu=found.gpu_uuid, bytes=found.bytes_used, **_same(found, _UNATTRIBUTED))


def _same(each: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(each, name) for name in names}
