"""The health of a node's GPUs as JSON, and back. Pure.

The text is what an earlier or later version of this driver wrote, or a damaged disk: everything is checked, bounded,
and what is unknown is left out. Format 1 only grows: later versions add fields that this one does not read.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import MOST_DETAIL, MOST_ID, FaultKey, Faults, HealthFault
from dra_driver.node.health.rules import MOST_DOUBLINGS

FORMAT: Final = 1
MOST_GPUS: Final = 64
"""GPUs of a node; others are not remembered."""
MOST_FAULTS: Final = 1024
"""Faults of one GPU in a file."""
MAX_BYTES: Final = 8 * 1024 * 1024
_MOST_TIME: Final = 1e12
_Time = Annotated[float, Meta(ge=0, lt=_MOST_TIME)]
_Id = Annotated[int, Meta(ge=0, le=MOST_ID)]


class HealthRecord(Struct, frozen=True, kw_only=True):
    """What is remembered of a node. ``boot_id`` is the boot whose monotonic clock the times are of.

    ``forgotten`` are GPUs whose faults up to that time are dropped on purpose.
    """

    boot_id: str = ""
    gpus: Mapping[GpuUuid, Faults] = field(default_factory=dict)
    forgotten: Mapping[GpuUuid, float] = field(default_factory=dict)


def encode(record: HealthRecord) -> bytes:
    """The record as JSON."""
    gpus = {
        gpu: [_written(key, fault) for key, fault in sorted(faults.items(), key=lambda item: str(item[0]))]
        for gpu, faults in sorted(record.gpus.items())
        if faults
    }
    written = {"format": FORMAT, "bootID": record.boot_id, "gpus": gpus, "forgotten": dict(record.forgotten)}
    return msgspec.json.encode(written)


def decode(data: bytes) -> HealthRecord:
    """The record. Raises ConfigurationError when the text is none; single faults that make no sense are left out."""
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"it has more than {MAX_BYTES // 2**20} MiB")
    try:
        written = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}") from error
    if not isinstance(written, dict) or written.get("format") != FORMAT or not isinstance(written.get("gpus"), dict):
        raise ConfigurationError(f"it does not have health of format {FORMAT}")
    gpus = {GpuUuid(str(gpu)): _faults(faults) for gpu, faults in list(written["gpus"].items())[:MOST_GPUS]}
    forgotten = written.get("forgotten")
    times = forgotten.items() if isinstance(forgotten, dict) else ()
    return HealthRecord(
        boot_id=str(written.get("bootID") or "")[:64],
        gpus={gpu: faults for gpu, faults in gpus.items() if faults},
        forgotten={GpuUuid(str(gpu)): time for gpu, time in list(times)[:MOST_GPUS] if _is_time(time)},
    )


class _Written(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault in the file."""

    cause: HealthCause
    gi: _Id | None = None
    xid: _Id = 0
    severity: Severity
    since: _Time
    opened: _Time
    seen: _Time
    detail: str = ""
    recovered: _Time | None = None
    evidence: str = ""
    ended: _Time | None = None
    repeats: _Id = 0
    passing: bool = False


def _written(key: FaultKey, fault: HealthFault) -> _Written:
    return _Written(cause=key.cause, gi=key.gi_id, xid=key.xid, **asdict(fault))


def _faults(written: object) -> Faults:
    items = written[:MOST_FAULTS] if isinstance(written, list) else ()
    return dict(read for item in items if (read := _fault(item)) is not None)


def _fault(item: object) -> tuple[FaultKey, HealthFault] | None:
    try:
        read = msgspec.convert(item, _Written)
    except ValueError:  # damaged, or of a later version
        return None
    if read.ended is not None and read.recovered is None:
        return None
    fields = {name: getattr(read, name) for name in HealthFault.__struct_fields__}
    fields |= {"detail": read.detail[:MOST_DETAIL], "evidence": read.evidence[:MOST_DETAIL]}
    fields["repeats"] = min(read.repeats, MOST_DOUBLINGS)
    return FaultKey(read.gi, read.cause, read.xid), HealthFault(**fields)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_TIME
