"""What is in use on simulated GPUs: a ``backend.UsageSource`` over the file of ``usage_file.py``.

Memory and utilisation are what the steps say; power goes from `IDLE_MW` to `BUSY_MW` with utilisation, and energy is
its sum over the time since this object was made. As on real GPUs, no process has a utilisation at the first look and in
MIG mode, where GPM tells that of an instance on Hopper and newer.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.hardware.gpu.simulated.usage_file import SimulatedUse, read_uses
from dra_driver.hardware.gpu.simulated.use_orders import MAX_PROCESSES, step_at

log = logging.getLogger(__name__)

IDLE_MW: Final = 60_000
BUSY_MW: Final = 400_000
WITH_GPM: Final = frozenset({"Hopper", "Blackwell"})
CLAIM_VARIABLE: Final = b"DRA_SIMULATED_CLAIM"
"""How the variables of a container with simulated GPUs begin; each one's value is the UID of a claim."""
MAX_ENVIRON: Final = 256 * 1024
_PID: Final = re.compile(r"[0-9]+")
MAX_STEP_S: Final = 3600.0
"""A look after a longer time counts as this much energy: the machine slept, or the clock jumped."""


class SnapshotSource(Protocol):
    """The part of ``gpu.backend.Backend`` that is needed here."""

    def snapshot(self) -> Snapshot: ...


class _Active(Struct, frozen=True, kw_only=True):
    """A process that uses a GPU now. ``percent`` is of the GPU."""

    pid: int
    gi_id: int | None
    memory_bytes: int
    percent: int


class SimulatedUsage:
    """Looks at ``gpus`` and at the file. ``proc`` is the host's /proc, None where PIDs are not looked for.

    Used by one thread.
    """

    def __init__(
        self,
        gpus: SnapshotSource,
        file: Path,
        *,
        proc: Path | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``now`` is the time of day, in seconds since 1970; ``clock`` never jumps."""
        self._gpus, self._file, self._proc = gpus, file, proc
        self._now, self._clock = now, clock
        self._looked_s: float | None = None
        self._energy: dict[GpuUuid, float] = {}  # mJ
        self._told: frozenset[str] = frozenset()

    def usage(self) -> tuple[GpuUsage, ...]:
        """See ``backend.UsageSource``."""
        snapshot = self._gpus.snapshot()
        uses, problems = read_uses(self._file)
        self._complain(problems)
        at_s, is_first = self._clock(), self._looked_s is None
        step_s = 0.0 if self._looked_s is None else min(max(0.0, at_s - self._looked_s), MAX_STEP_S)
        self._looked_s = at_s
        of_claims = self._found(uses)
        now = self._now()
        found = []
        for gpu in snapshot.gpus:
            active = [one for use in uses if use.gpu_uuid == gpu.uuid for one in _active(use, now, of_claims)]
            percent = min(100, sum(one.percent for one in active))
            power = IDLE_MW + (BUSY_MW - IDLE_MW) * percent // 100
            self._energy[gpu.uuid] = self._energy.get(gpu.uuid, 0.0) + power * step_s
            usage = _usage(gpu, active, is_first=is_first, percent=percent, power_mw=power)
            usage = replace(usage, energy_mj=int(self._energy[gpu.uuid]))
            found.append(replace(usage, processes=None, problem=problems[0]) if problems and not uses else usage)
        # their labels are their UUIDs (hardware.py)
        found += [GpuUsage(gpu_uuid=GpuUuid(each.label), unreadable=each.reason) for each in snapshot.left_out]
        return tuple(sorted(found, key=lambda each: each.gpu_uuid))

    def _complain(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._told:
                log.warning("a simulated use is left out", extra={"reason": problem})
        self._told = frozenset(problems)

    def _found(self, uses: Sequence[SimulatedUse]) -> Mapping[str, Sequence[int]]:
        """The processes of each claim that is named, by the variable in their environment."""
        wanted = {use.claim_uid for use in uses if use.claim_uid is not None}
        found: dict[str, list[int]] = {uid: [] for uid in wanted}
        if not wanted or self._proc is None:
            return found
        for pid in sorted(int(entry) for entry in _entries(self._proc) if _PID.fullmatch(entry)):
            for uid in _claims_of(self._proc / str(pid) / "environ") & wanted:
                if len(found[uid]) < MAX_PROCESSES:
                    found[uid].append(pid)
        return found


def _entries(proc: Path) -> Sequence[str]:
    try:
        return [entry.name for entry in proc.iterdir()]
    except OSError:
        return ()


def _claims_of(environ: Path) -> set[str]:
    try:
        with environ.open("rb") as file:
            data = file.read(MAX_ENVIRON)
    except OSError:
        return set()
    variables = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {value.decode(errors="replace") for name, _, value in variables if name.startswith(CLAIM_VARIABLE)}


def _active(use: SimulatedUse, now: float, of_claims: Mapping[str, Sequence[int]]) -> list[_Active]:
    step = step_at(use.steps, now - use.since)
    pids = use.pids if use.claim_uid is None else of_claims.get(use.claim_uid, ())
    if step is None or not pids or not step.processes:
        return []
    pids = pids[: step.processes]
    memory, percent = step.memory_bytes // len(pids), step.percent // len(pids)
    return [_Active(pid=pid, gi_id=use.gi_id, memory_bytes=memory, percent=percent) for pid in pids]


def _usage(gpu: Gpu, active: Sequence[_Active], *, is_first: bool, percent: int, power_mw: int) -> GpuUsage:
    reserved = gpu.reserved_bytes or 0
    room = None if gpu.memory_bytes is None else max(0, gpu.memory_bytes - reserved)
    used = sum(one.memory_bytes for one in active)
    tells = not gpu.mig_enabled
    return GpuUsage(
        gpu_uuid=gpu.uuid,
        memory_total=gpu.memory_bytes,
        memory_reserved=reserved if gpu.memory_bytes is not None else None,
        memory_used=None if room is None else min(used, room),
        gpu_percent=percent if tells else None,
        memory_percent=percent // 2 if tells else None,
        power_mw=power_mw,
        temperature_c=30 + percent // 2,
        sm_clock_mhz=1980 if percent else 345,
        memory_clock_mhz=2619,
        mig_enabled=gpu.mig_enabled,
        instances=tuple(_instance(gpu, one, active) for one in gpu.mig_instances) if gpu.mig_enabled else (),
        processes=tuple(
            ProcessUsage(
                pid=one.pid,
                gi_id=one.gi_id if gpu.mig_enabled else None,
                memory_bytes=one.memory_bytes,
                sm_percent=one.percent if tells and not is_first else None,
                memory_percent=one.percent // 2 if tells and not is_first else None,
            )
            for one in active
        ),
    )


def _instance(gpu: Gpu, instance: MigInstance, active: Sequence[_Active]) -> InstanceUsage:
    mine = [one for one in active if one.gi_id == instance.gi_id]
    profile = gpu.profile(instance.profile_id) or instance.profile
    total = profile.memory_bytes if profile is not None else None
    used = sum(one.memory_bytes for one in mine)
    percent = min(100, sum(one.percent for one in mine))
    return InstanceUsage(
        gi_id=instance.gi_id,
        uuid=instance.device.uuid if instance.device is not None else None,
        memory_total=total,
        memory_used=used if total is None else min(used, total),
        sm_percent=percent if gpu.architecture in WITH_GPM else None,
    )
