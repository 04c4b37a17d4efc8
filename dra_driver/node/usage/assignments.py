"""Decode ``assignments.json``, in which the node process reports the devices of claims to the exporter. No I/O.

The node process writes the file (``node/process/usage_exporter.py``). The exporter does not trust it: lists and texts
are cut to their bounds, and invalid entries are dropped. A file that is not a JSON object of this version counts as
damaged; the exporter keeps the last valid one.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec import Meta, Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_findings import Name, Time
from dra_driver.core.wire import from_file
from dra_driver.node.usage import values

VERSION: Final = 1
FILE: Final = "assignments.json"
MAX_BYTES: Final = 16 * 2**20
_MAX_TEXT: Final = 1024


class _Claim(Struct, frozen=True, kw_only=True):
    namespace: Name
    name: Name
    uid: Name
    prepared: Time | None = None
    devices: Annotated[tuple[values.AssignedUse, ...], Meta(max_length=values.MAX_DEVICES)] = ()


class _File(Struct, frozen=True, kw_only=True, rename="camel"):
    node: Name
    driver: Name
    process_started: Time
    detached: object = None
    gpus: Annotated[tuple[values.AssignedGpu, ...], Meta(max_length=values.MAX_GPUS)] = ()
    claims: Annotated[tuple[_Claim, ...], Meta(max_length=values.MAX_CLAIMS)] = ()


def decode(content: bytes) -> values.Assignments:
    """Decode the file. Raises ConfigurationError, with the reason, for other content."""
    file = from_file(_File, content, FILE, version=VERSION, max_bytes=MAX_BYTES)
    detached = None
    if file.detached is not None:
        reported = file.detached if isinstance(file.detached, str) else ""
        detached = reported[:_MAX_TEXT] or "for an unknown reason"
    return values.Assignments(
        node=file.node,
        driver=file.driver,
        process_started=_utc(file.process_started),
        detached=detached,
        gpus=file.gpus,
        claims=tuple(
            values.AssignedClaim(
                ref=ClaimRef(namespace=each.namespace, name=each.name, uid=ClaimUid(each.uid)),
                prepared=_utc(each.prepared),
                devices=each.devices,
            )
            for each in file.claims
        ),
    )


def _utc(at: datetime | None) -> datetime:
    """1970 for a time that is unknown."""
    try:
        return at.astimezone(UTC) if at is not None else datetime.fromtimestamp(0, UTC)
    except OverflowError:
        return datetime.fromtimestamp(0, UTC)
