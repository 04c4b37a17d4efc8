"""The health of a node's GPUs as JSON, and back. Pure.

The text is what an earlier or later version of this driver wrote, or a damaged disk: everything is checked, bounded,
and what is unknown is left out. Format 1 only grows: later versions add fields that this one does not read.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

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
    return json.dumps(written, separators=(",", ":")).encode()


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


def _written(key: FaultKey, fault: HealthFault) -> dict[str, Any]:
    found = {
        "cause": key.cause.value,
        "gi": key.gi_id,
        "xid": key.xid or None,
        "severity": fault.severity.value,
        "since": fault.since,
        "opened": fault.opened,
        "seen": fault.seen,
        "detail": fault.detail or None,
        "recovered": fault.recovered,
        "evidence": fault.evidence or None,
        "ended": fault.ended,
        "repeats": fault.repeats or None,
        "passing": fault.passing or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _faults(written: object) -> Faults:
    found: dict[FaultKey, HealthFault] = {}
    for item in written[:MOST_FAULTS] if isinstance(written, list) else ():
        if (read := _fault(item)) is not None:
            found[read[0]] = read[1]
    return found


def _fault(written: object) -> tuple[FaultKey, HealthFault] | None:
    if not isinstance(written, dict):
        return None
    times = [written.get(name) for name in ("since", "opened", "seen")]
    later = [written.get(name) for name in ("recovered", "ended")]
    gi_id, number, repeats = written.get("gi"), written.get("xid", 0), written.get("repeats", 0)
    if not all(_is_time(time) for time in times) or not all(time is None or _is_time(time) for time in later):
        return None
    if not (gi_id is None or _is_id(gi_id)) or not _is_id(number) or not _is_id(repeats):
        return None
    if written.get("ended") is not None and written.get("recovered") is None:
        return None
    try:
        key = FaultKey(gi_id, HealthCause(str(written.get("cause"))), number)
        level = Severity(str(written.get("severity")))
    except ValueError:  # of a later version
        return None
    fault = HealthFault(
        severity=level,
        since=written["since"],
        opened=written["opened"],
        seen=written["seen"],
        detail=str(written.get("detail") or "")[:MOST_DETAIL],
        recovered=written.get("recovered"),
        evidence=str(written.get("evidence") or "")[:MOST_DETAIL],
        ended=written.get("ended"),
        repeats=min(repeats, MOST_DOUBLINGS),
        passing=written.get("passing") is True,
    )
    return key, fault


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_TIME


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_ID
