"""Render the answer to ``/usage`` as JSON: one sample with its window. ``exporter_answer`` reads it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.time import rfc3339
from dra_driver.node.usage.ledger import Row, RowKey, RowUse, UsageLedger, device_of
from dra_driver.node.usage.values import AssignedUse, GpuUse, JoinedUsage, Knows, total

VERSION: Final = 1
Json = dict[str, Any]
Readings = Mapping[GpuUuid, GpuUsage]
Rows = Sequence[tuple[RowKey, Row]]


def document(joined: JoinedUsage, ledger: UsageLedger, *, window_s: float) -> Json:
    """``window_s`` is the observed part of the window. Ended claims are omitted."""
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
        "knows": {name: getattr(joined.knows, name) or True for name in Knows.__struct_fields__},  # True, or why not
        "gpus": [_gpu(gpu) for gpu in joined.gpus],
        "claims": [_claim(rows, ledger, readings) for rows in claims.values()],
    }


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


def _claim(rows: Rows, ledger: UsageLedger, readings: Readings) -> Json:
    key = rows[0][0]
    devices: dict[tuple[str, str, str], list[tuple[RowKey, Row]]] = {}
    for each, row in rows:
        devices.setdefault((each.request, each.device, each.share), []).append((each, row))
    return {
        "uid": key.uid,
        "namespace": key.namespace,
        "name": key.claim,
        "pods": list(dict.fromkeys(each.pod for each, _ in rows if each.pod)),
        "devices": [_device(found, ledger, readings) for found in devices.values()],
    }


def _device(rows: Rows, ledger: UsageLedger, readings: Readings) -> Json:
    key, assigned, each_of = rows[0][0], rows[0][1].assigned, [row for _, row in rows]
    unused_s, percent = ledger.unused_s.get(device_of(key)), _sum(rows, lambda use: use.sm_percent)
    used = [row.last_used for row in each_of if row.last_used is not None]
    joules = [sum(row.window_joules.values()) for row in each_of if row.joules is not None]
    return {
        "request": key.request,
        "device": key.device,
        "uuid": assigned.uuid,
        "form": assigned.form.value,
        "profile": assigned.profile,
        "share": key.share,
        "usedBytes": _sum(rows, lambda use: use.used_bytes),
        "grantBytes": _granted(assigned, readings),
        "peakBytes": _peak(rows),
        "percent": None if percent is None else min(100, percent),
        "energyJoules": round(sum(joules), 3) if joules else None,
        "estimated": any(row.estimated for row in each_of),
        "processes": _sum(rows, lambda use: use.processes),
        "lastUsed": rfc3339(max(used)) if used else None,
        "idleSeconds": None if unused_s is None else int(unused_s),
    }


def _granted(assigned: AssignedUse, readings: Readings) -> int | None:
    """The grant of a share; all of a whole GPU or a partition, except with admin access, which others may have too."""
    reading = readings.get(assigned.gpu_uuid)
    if assigned.form is Form.SHARE or assigned.admin_access or reading is None:
        return assigned.memory_bytes
    if assigned.form is Form.WHOLE:
        return reading.memory_total
    return next((each.memory_total for each in reading.instances if each.gi_id == assigned.gi_id), None)


def _peak(rows: Rows) -> int | None:
    """The maximum of all containers, or of the device, within one piece of the window."""
    whole: dict[int, int] = {}
    parts: dict[int, int] = {}
    for key, row in rows:
        pieces = parts if key.pod else whole
        for piece, most in row.peaks.items():
            pieces[piece] = pieces.get(piece, 0) + most
    return max((*whole.values(), *parts.values()), default=None)


def _sum(rows: Rows, value: Callable[[RowUse], int | None]) -> int | None:
    """The device's value if there is one, else the sum over its containers; None if one is unknown."""
    own = next((found for key, row in rows if not key.pod and (found := value(row.use)) is not None), None)
    parts = [value(row.use) for key, row in rows if key.pod]
    return own if own is not None or not parts else total(parts)
