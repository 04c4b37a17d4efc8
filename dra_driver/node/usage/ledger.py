"""What was in use over time: peaks and energy of a window, totals, and when a claim used its devices last. Pure.

The ledger has a row for each container and device of a claim. A row whose claim has ended, or whose container has gone,
stays for a stated time, so that a scrape sees its last values, and then leaves: the number of rows is bounded.
Time is counted by a clock that does not jump; times of day are for people.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.node.usage.energy import EnergyUser, divided, joules_since
from dra_driver.node.usage.idle import device_used
from dra_driver.node.usage.rows import RowKey, RowUse, rows_of
from dra_driver.node.usage.values import AssignedUse, DeviceUse, GpuUse, JoinedUsage, step_s

MAX_ROWS: Final = 4096
"""A node has at most some hundred pods; a scrape of all rows is about 6 MiB."""
BUCKETS: Final = 60
"""Pieces of the window."""


class Row(Struct, frozen=True, kw_only=True):
    """One container on one device of a claim. ``ended_s`` is when it ended, None while it lasts.

    ``joules`` is the total since the row began, None where nothing tells; ``estimated``: it was divided. ``peaks`` and
    ``window_joules`` are by piece of the window.
    """

    assigned: AssignedUse
    use: RowUse = RowUse()
    joules: float | None = None
    estimated: bool = False
    last_used: datetime | None = None
    peaks: Mapping[int, int] = field(default_factory=dict)
    window_joules: Mapping[int, float] = field(default_factory=dict)
    ended_s: float | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The most memory within the window."""
        return max(self.peaks.values(), default=None)


DeviceKey = tuple[str, ...]
"""UID of a claim, request, pool, device and share."""


class UsageLedger(Struct, frozen=True, kw_only=True):
    """All rows. ``began_s`` is when the first look was; ``left_out`` rows were too many. ``unused_s`` has for how long
    (s) a device of a claim was seen without use: 0 while it is used, and no entry where that is not known."""

    rows: Mapping[RowKey, Row] = field(default_factory=dict)
    energy_mj: Mapping[GpuUuid, int] = field(default_factory=dict)
    unused_s: Mapping[DeviceKey, float] = field(default_factory=dict)
    began_s: float | None = None
    left_out: int = 0

    def covered_s(self, now_s: float, window_s: float) -> float:
        """How much of the window was seen."""
        return 0.0 if self.began_s is None else min(window_s, max(0.0, now_s - self.began_s))


def fold(
    ledger: UsageLedger,
    joined: JoinedUsage,
    now_s: float,
    *,
    window_s: float,
    keep_ended_s: float,
    max_rows: int = MAX_ROWS,
) -> UsageLedger:
    """The ledger after one more look. ``now_s`` is of a clock that does not jump."""
    piece_s = max(window_s / BUCKETS, 1.0)
    piece = int(now_s // piece_s)
    uses = [(key, use, row) for use in joined.devices for key, row in rows_of(use).items()]
    joules = _joules(ledger, joined, uses)
    rows: dict[RowKey, Row] = {}
    left_out = 0
    for key, use, seen in uses:
        if len(rows) >= max_rows:
            left_out += 1
            continue
        before = ledger.rows.get(key)
        rows[key] = _row(before, use.assigned, seen, joules.get(key), at=joined.at, piece=piece)
    unattributed = {device_of(key) for key, use, _ in uses if use.containers is None}
    for key, row in ledger.rows.items():
        if key not in rows and row.ended_s is None and device_of(key) in unattributed and len(rows) < max_rows:
            # Its container is there, as far as is known, and what it uses is not.
            rows[key] = replace(row, use=RowUse())
        ended_s = now_s if row.ended_s is None else row.ended_s
        if key not in rows and now_s - ended_s < keep_ended_s and len(rows) < max_rows:
            # Nothing is in use any more, and nothing more is known.
            ended = RowUse(used_bytes=0, sm_percent=0, processes=0)
            rows[key] = replace(row, use=ended, ended_s=ended_s)
    return UsageLedger(
        rows=rows,
        energy_mj=_counters(ledger, joined),
        unused_s=_unused(ledger, {device_of(key): use for key, use, _ in uses}, joined.elapsed_s),
        began_s=now_s if ledger.began_s is None else ledger.began_s,
        left_out=left_out,
    )


def device_of(key: RowKey) -> DeviceKey:
    """The device, whatever container has it."""
    return key.uid, key.request, key.pool, key.device, key.share


def _unused(ledger: UsageLedger, devices: Mapping[DeviceKey, DeviceUse], elapsed_s: float) -> dict[DeviceKey, float]:
    """As `idle.watch_idle` counts for claims: where nothing is known, the time begins again."""
    found: dict[DeviceKey, float] = {}
    for key, use in devices.items():
        used, before = device_used(use), ledger.unused_s.get(key)
        if used is not None:
            found[key] = 0.0 if used or before is None else before + step_s(elapsed_s)
    return found


def _row(
    before: Row | None,
    assigned: AssignedUse,
    seen: RowUse,
    energy: tuple[float, bool] | None,
    *,
    at: datetime,
    piece: int,
) -> Row:
    row = before if before is not None else Row(assigned=assigned)
    peaks = {each: most for each, most in row.peaks.items() if piece - BUCKETS < each <= piece}
    if seen.used_bytes is not None:
        peaks[piece] = max(peaks.get(piece, 0), seen.used_bytes)
    window = {each: joules for each, joules in row.window_joules.items() if piece - BUCKETS < each <= piece}
    if energy is not None:
        window[piece] = window.get(piece, 0.0) + energy[0]
    return Row(
        assigned=assigned,
        use=seen,
        joules=row.joules if energy is None else (row.joules or 0.0) + energy[0],
        estimated=row.estimated or (energy is not None and energy[1]),
        last_used=at if seen.is_used else row.last_used,
        peaks=peaks,
        window_joules=window,
    )


def _counters(ledger: UsageLedger, joined: JoinedUsage) -> dict[GpuUuid, int]:
    """Of a GPU that does not answer now, the last one stays."""
    found = {gpu.gpu_uuid: gpu.reading.energy_mj for gpu in joined.gpus if gpu.reading is not None}
    known = {uuid: count for uuid, count in found.items() if count is not None}
    listed = {gpu.gpu_uuid for gpu in joined.gpus}
    return {uuid: count for uuid, count in ledger.energy_mj.items() if uuid in listed} | known


_Use = tuple[RowKey, DeviceUse, RowUse]


def _joules(ledger: UsageLedger, joined: JoinedUsage, uses: Sequence[_Use]) -> dict[RowKey, tuple[float, bool]]:
    """Energy of each row since the last look, and whether it is an estimate."""
    found: dict[RowKey, tuple[float, bool]] = {}
    for gpu in joined.gpus:
        here = [
            each for each in uses if each[1].assigned.gpu_uuid == gpu.gpu_uuid and not each[1].assigned.admin_access
        ]
        if gpu.reading is None or not here:
            continue
        before = ledger.energy_mj.get(gpu.gpu_uuid)
        joules = joules_since(before, gpu.reading.energy_mj, gpu.reading.power_mw, joined.elapsed_s)
        if joules is None:
            continue
        users = [_user(gpu, use, seen, len(rows_of(use))) for _, use, seen in here]
        is_estimate = len(here) > 1 or not users[0].is_alone or gpu.reading.energy_mj is None
        for (key, _, _), part in zip(here, divided(joules, users, _foreign(gpu)), strict=True):
            found[key] = part, is_estimate
    return found


def _user(gpu: GpuUse, use: DeviceUse, seen: RowUse, rows: int) -> EnergyUser:
    part = _part(gpu, use) / rows
    weight = None if seen.sm_percent is None else float(seen.sm_percent)
    if weight is not None and use.assigned.form is Form.PARTITION:
        weight *= _part(gpu, use)
    return EnergyUser(weight=weight, part=part, is_alone=use.assigned.form is Form.WHOLE)


def _part(gpu: GpuUse, use: DeviceUse) -> float:
    """What the device is of the GPU, by memory: 0 to 1."""
    reading, device = gpu.reading, use.assigned
    if device.form is Form.WHOLE:
        return 1.0
    total = reading.memory_total if reading is not None else None
    size = device.memory_bytes
    if device.form is Form.PARTITION and reading is not None:
        size = next((each.memory_total for each in reading.instances if each.gi_id == device.gi_id), None)
    if not total or size is None:
        return (device.percent or 0) / 100
    return min(1.0, size / total)


def _foreign(gpu: GpuUse) -> float:
    return float(sum(each.sm_percent or 0 for each in gpu.unattributed or ()))
