"""Accumulate usage: peaks and energy of a window, totals, and when a claim last used its devices. No I/O.

The ledger has a row for each container and device of a claim; a row stays for a time after its end, so that a scrape
gets its last values. A value of the whole device is in a row with empty pod and container. Time is that of a
clock that does not jump.

Hardware counts only the energy of whole GPUs. A claim that is the only user of a GPU has all of it. Between several
users, including those without a claim, it is divided by utilization, or by memory if utilization is zero or unknown,
and marked as an estimate.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import busiest
from dra_driver.node.usage.values import AssignedUse, Basis, DeviceUse, GpuUse, JoinedUsage, step_s, total
from dra_driver.node.usage.watchdog import device_used


class RowKey(Struct, frozen=True, order=True):
    """Labels of one row. ``share`` is "" without one; ``pod`` and ``container`` are "" for the device as a whole."""

    namespace: str
    claim: str
    uid: str
    request: str
    pool: str
    device: str
    share: str
    pod: str
    container: str


class RowUse(Struct, frozen=True, kw_only=True):
    """Use in one sample; None is unknown. ``sm_percent`` is of the whole GPU, or of the instance for a partition."""

    used_bytes: int | None = None
    sm_percent: int | None = None
    processes: int | None = None
    is_used: bool | None = None


def rows_of(use: DeviceUse) -> dict[RowKey, RowUse]:
    of_processes = [each.container for each in use.processes or () if each.container is not None]
    places = dict.fromkeys((each.pod.name, each.container) for each in (*(use.containers or ()), *of_processes))
    if len(places) == 1 or (not places and use.shared_processes == 0):
        pod, container = next(iter(places), ("", ""))
        processes = None if use.processes is None else len(use.processes) + use.shared_processes
        used = device_used(use)
        whole = RowUse(used_bytes=use.used_bytes, sm_percent=use.sm_percent, processes=processes, is_used=used)
        return {_key(use, pod, container): whole}
    found = {_key(use, *place): _part(use, *place) for place in places}
    if use.basis is Basis.DEVICE or use.assigned.form is Form.PARTITION:
        # Memory or utilisation is the device's alone.
        used_bytes = use.used_bytes if use.basis is Basis.DEVICE else None
        found[_key(use, "", "")] = RowUse(used_bytes=used_bytes, sm_percent=use.sm_percent)
    return found or {_key(use, "", ""): RowUse()}


def _key(use: DeviceUse, pod: str, container: str) -> RowKey:
    claim, device = use.claim, use.assigned
    share = device.share_id or ""
    return RowKey(
        claim.namespace, claim.name, claim.uid, device.request, device.pool, device.device, share, pod, container
    )


def _part(use: DeviceUse, pod: str, container: str) -> RowUse:
    if use.processes is None or use.shared_processes or use.basis is Basis.DEVICE:
        return RowUse()
    own = [
        each
        for each in use.processes
        if each.container is not None and (each.container.pod.name, each.container.container) == (pod, container)
    ]
    percents = [each.sm_percent for each in own if each.sm_percent is not None]
    is_known = len(percents) == len(own) and use.assigned.form is not Form.PARTITION
    return RowUse(
        used_bytes=total(each.memory_bytes for each in own),
        sm_percent=min(100, sum(percents)) if is_known else None,
        processes=len(own),
        is_used=_is_used([each.busy_percent for each in own]) if use.assigned.form is not Form.PARTITION else None,
    )


def _is_used(percents: Sequence[int | None]) -> bool | None:
    busy = busiest(percents)
    return None if busy is None else busy > 0


MOST_WATTS: Final = 5000.0
"""More than a GPU takes: a larger jump of a counter is ignored."""


class EnergyUser(Struct, frozen=True, kw_only=True):
    """One row. ``weight`` is its part of the GPU's utilization (0 to 100), None if unknown; ``part`` of its memory (0
    to 1). ``is_alone``: its claim has the whole GPU."""

    weight: float | None
    part: float
    is_alone: bool = False


def joules_since(before_mj: int | None, now_mj: int | None, power_mw: int | None, elapsed_s: float) -> float | None:
    """The energy of a GPU in ``elapsed_s``; None if unknown.

    A counter that went back restarted at 0 when the driver was loaded. Without a counter, by the present power.
    """
    if now_mj is None:
        return None if power_mw is None else power_mw / 1000 * max(0.0, elapsed_s)
    if before_mj is None:
        return 0.0
    joules = (now_mj - before_mj if now_mj >= before_mj else now_mj) / 1000
    return joules if joules <= MOST_WATTS * max(elapsed_s, 0.0) else 0.0


def divided(joules: float, users: Sequence[EnergyUser], foreign_weight: float | None) -> list[float]:
    """The energy of each user, in their order; together at most ``joules``. ``foreign_weight`` is None if unknown."""
    weights = [user.weight for user in users]
    known = [weight for weight in weights if weight is not None]
    alone = [user.is_alone for user in users]
    foreign = 0.0 if any(alone) else foreign_weight
    weighed = sum(known) + (foreign or 0.0)
    if len(known) == len(users) and weighed > 0 and foreign is not None:
        return [joules * weight / weighed for weight in known]
    if any(alone):
        return [joules / sum(alone) if is_alone else 0.0 for is_alone in alone]
    parts = max(1.0, sum(user.part for user in users))
    return [joules * user.part / parts for user in users]


MAX_ROWS: Final = 4096
"""A node has at most some hundred pods; a scrape of all rows is about 6 MiB."""
BUCKETS: Final = 60
"""Pieces of the window."""


class Row(Struct, frozen=True, kw_only=True):
    """One container on one device of a claim. ``ended_s`` is None until it ends.

    ``joules`` is the total since the row began, None if unknown; ``estimated``: it was divided. ``peaks`` and
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
        return max(self.peaks.values(), default=None)


DeviceKey = tuple[str, ...]
"""UID of a claim, request, pool, device and share."""


class UsageLedger(Struct, frozen=True, kw_only=True):
    """All rows. ``began_s`` is the time of the first sample; ``left_out`` counts dropped rows. ``unused_s`` is the time
    in seconds without use of each device of a claim: 0 in use, no entry if unknown."""

    rows: Mapping[RowKey, Row] = field(default_factory=dict)
    energy_mj: Mapping[GpuUuid, int] = field(default_factory=dict)
    unused_s: Mapping[DeviceKey, float] = field(default_factory=dict)
    began_s: float | None = None
    left_out: int = 0

    def covered_s(self, now_s: float, window_s: float) -> float:
        """The observed part of the window."""
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
    """The ledger after one more sample. ``now_s`` is of a clock that does not jump."""
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
            # Its container exists, but its use is unknown.
            rows[key] = replace(row, use=RowUse())
        ended_s = now_s if row.ended_s is None else row.ended_s
        if key not in rows and now_s - ended_s < keep_ended_s and len(rows) < max_rows:
            # The claim has ended: its use is 0.
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
    return key.uid, key.request, key.pool, key.device, key.share


def _unused(ledger: UsageLedger, devices: Mapping[DeviceKey, DeviceUse], elapsed_s: float) -> dict[DeviceKey, float]:
    """As `watch_idle` counts for claims: an unknown sample restarts the time."""
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
    """The last counter of a GPU stays while the GPU does not answer."""
    found = {gpu.gpu_uuid: gpu.reading.energy_mj for gpu in joined.gpus if gpu.reading is not None}
    known = {uuid: count for uuid, count in found.items() if count is not None}
    listed = {gpu.gpu_uuid for gpu in joined.gpus}
    return {uuid: count for uuid, count in ledger.energy_mj.items() if uuid in listed} | known


_Use = tuple[RowKey, DeviceUse, RowUse]


def _joules(ledger: UsageLedger, joined: JoinedUsage, uses: Sequence[_Use]) -> dict[RowKey, tuple[float, bool]]:
    """Energy of each row since the last sample, and whether it is an estimate."""
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
        users = [_user(gpu, use, seen) for _, use, seen in here]
        is_estimate = len(here) > 1 or not users[0].is_alone or gpu.reading.energy_mj is None
        foreign = total(each.sm_percent for each in gpu.unattributed or ())
        for (key, _, _), part in zip(here, divided(joules, users, foreign), strict=True):
            found[key] = part, is_estimate
    return found


def _user(gpu: GpuUse, use: DeviceUse, seen: RowUse) -> EnergyUser:
    part, form = _memory_part(gpu, use), use.assigned.form
    weight = None if seen.sm_percent is None else seen.sm_percent * (part if form is Form.PARTITION else 1.0)
    return EnergyUser(weight=weight, part=part / len(rows_of(use)), is_alone=form is Form.WHOLE)


def _memory_part(gpu: GpuUse, use: DeviceUse) -> float:
    """The device's part of the GPU's memory: 0 to 1."""
    reading, device = gpu.reading, use.assigned
    if device.form is Form.WHOLE:
        return 1.0
    whole = reading.memory_total if reading is not None else None
    size = device.memory_bytes
    if device.form is Form.PARTITION and reading is not None:
        size = next((each.memory_total for each in reading.instances if each.gi_id == device.gi_id), None)
    if not whole or size is None:
        return (device.percent or 0) / 100
    return min(1.0, size / whole)
