"""The answer to ``/usage``: one look with its window, as JSON. Pure. ``exporter_answer`` reads it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.time import rfc3339
from dra_driver.node.usage.ledger import Row, RowKey, UsageLedger, device_of
from dra_driver.node.usage.values import AssignedUse, GpuUse, JoinedUsage, Knows

VERSION: Final = 1
Json = dict[str, Any]
Readings = Mapping[GpuUuid, GpuUsage]


def document(joined: JoinedUsage, ledger: UsageLedger, *, window_s: float) -> Json:
    """``window_s`` is how much of the window was seen. Claims that have ended are not in it."""
    claims: dict[str, list[tuple[RowKey, Row]]] = {}
    for key, row in sorted(ledger.rows.items()):
        if row.ended_s is None:
            claims.setdefault(key.uid, []).append((key, row))
    readings = {gpu.gpu_uuid: gpu.reading for gpu in joined.gpus if gpu.reading is not None}
    return {
        "version": VERSION,
        "node": joined.node,
        "time": rfc3339(joined.at),
        "windowSeconds": int(window_s),
        "knows": _knows(joined.knows),
        "gpus": [_gpu(gpu) for gpu in joined.gpus],
        "claims": [_claim(rows, ledger, readings) for rows in claims.values()],
    }


def _knows(knows: Knows) -> Json:
    """True, or why not."""
    return {name: getattr(knows, name) or True for name in knows.__struct_fields__}


def _gpu(gpu: GpuUse) -> Json:
    reading = gpu.reading
    return {
        "device": gpu.device,
        "uuid": gpu.gpu_uuid,
        "model": gpu.model,
        "changing": gpu.changing,
        "unreadable": reading.unreadable if reading is not None else None,
        "memoryTotalBytes": reading.memory_total if reading is not None else None,
        "memoryUsedBytes": gpu.used_bytes,
        "memoryReservedBytes": gpu.reserved_bytes,
        "memoryClaimsBytes": gpu.claims_bytes,
        "memoryUnattributedBytes": gpu.unattributed_bytes,
        "unattributedProcesses": None if gpu.unattributed is None else len(gpu.unattributed),
        "percent": reading.gpu_percent if reading is not None else None,
        "powerWatts": reading.power_mw / 1000 if reading is not None and reading.power_mw is not None else None,
        "instances": [
            {"uuid": each.uuid, "memoryTotalBytes": each.memory_total, "memoryUsedBytes": each.memory_used,
             "percent": each.sm_percent}
            for each in (reading.instances if reading is not None else ())
        ],
    }  # fmt: skip


def _claim(rows: Sequence[tuple[RowKey, Row]], ledger: UsageLedger, readings: Readings) -> Json:
    key = rows[0][0]
    devices: dict[tuple[str, str, str], list[tuple[RowKey, Row]]] = {}
    for each, row in rows:
        devices.setdefault((each.request, each.device, each.share), []).append((each, row))
    return {
        "uid": key.uid,
        "namespace": key.namespace,
        "name": key.claim,
        "pods": list(dict.fromkeys(each.pod for each, _ in rows if each.pod)),
        "devices": [
            _device(
                *names,
                rows=found,
                unused_s=ledger.unused_s.get(device_of(found[0][0])),
                granted=_granted(found[0][1].assigned, readings),
            )
            for names, found in devices.items()
        ],
    }


def _device(
    request: str,
    device: str,
    share: str,
    *,
    rows: Sequence[tuple[RowKey, Row]],
    unused_s: float | None,
    granted: int | None,
) -> Json:
    assigned, each_of = rows[0][1].assigned, [row for _, row in rows]
    used = [row.last_used for row in each_of if row.last_used is not None]
    joules = [sum(row.window_joules.values()) for row in each_of if row.joules is not None]
    return {
        "request": request,
        "device": device,
        "uuid": assigned.uuid,
        "form": assigned.form.value,
        "profile": assigned.profile,
        "share": share,
        "usedBytes": _sum((key, row.use.used_bytes) for key, row in rows),
        "grantBytes": granted,
        "peakBytes": _peak(rows),
        "percent": _percent(rows),
        "energyJoules": round(sum(joules), 3) if joules else None,
        "estimated": any(row.estimated for row in each_of),
        "processes": _sum((key, row.use.processes) for key, row in rows),
        "lastUsed": _text(max(used, default=None)),
        "idleSeconds": None if unused_s is None else int(unused_s),
    }


def _granted(assigned: AssignedUse, readings: Readings) -> int | None:
    """The grant of a share; all of a whole GPU or a partition, but with admin access, which others may have too."""
    reading = readings.get(assigned.gpu_uuid)
    if assigned.form is Form.SHARE or assigned.admin_access or reading is None:
        return assigned.memory_bytes
    if assigned.form is Form.WHOLE:
        return reading.memory_total
    return next((each.memory_total for each in reading.instances if each.gi_id == assigned.gi_id), None)


def _text(at: datetime | None) -> str | None:
    return rfc3339(at) if at is not None else None


def _peak(rows: Sequence[tuple[RowKey, Row]]) -> int | None:
    """The most that all containers, or the device as a whole, had within one piece of the window."""
    whole: dict[int, int] = {}
    parts: dict[int, int] = {}
    for key, row in rows:
        pieces = parts if key.pod else whole
        for piece, most in row.peaks.items():
            pieces[piece] = pieces.get(piece, 0) + most
    return max((*whole.values(), *parts.values()), default=None)


def _percent(rows: Sequence[tuple[RowKey, Row]]) -> int | None:
    total = _sum((key, row.use.sm_percent) for key, row in rows)
    return None if total is None else min(100, total)


def _sum(values: Iterable[tuple[RowKey, int | None]]) -> int | None:
    """The device's own value if there is one, else the sum over its containers; None if that of one is not known."""
    found = list(values)
    own = next((value for key, value in found if not key.pod and value is not None), None)
    parts = [value for key, value in found if key.pod]
    if own is not None or not parts or None in parts:
        return own
    return sum(part for part in parts if part is not None)
