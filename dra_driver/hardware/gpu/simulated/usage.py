"""Report usage of simulated GPUs: a ``backend.UsageSource``, its file, and the annotation of a claim.

docs/simulated-gpus.md has both formats. The file is replaced by a rename, and changed under ``flock`` of
``<file>.lock``. It is not synced: a crash ends processes, too. Wrong entries are omitted and reported. As on real GPUs,
processes have no utilisation at the first read and in MIG mode, where GPM reports it per instance from Hopper on.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.core.quantity import Quantity

ANNOTATION: Final = "sim.gpu.dra-driver.io/usage"
MAX_LENGTH: Final = 4000
MAX_STEPS: Final = 32
MAX_PROCESSES: Final = 64
MAX_MEMORY: Final = 2**50
MAX_S: Final = 31 * 86400.0
_DURATION: Final = re.compile(r"(\d{1,10})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEP_FIELDS: Final = frozenset({"memory", "utilization", "engines", "after", "for", "processes"})


class UseStep(Struct, frozen=True, kw_only=True):
    """Use of one device by all processes of a container from ``after_s`` on; ``for_s`` None: until the next step.
    ``percent`` is of the multiprocessors, ``engines_percent`` of the busiest other engine, such as a decoder."""

    after_s: float = 0.0
    for_s: float | None = None
    memory_bytes: int = 0
    percent: int = 0
    engines_percent: int = 0
    processes: int = 1

    @property
    def busy_percent(self) -> int:
        return max(self.percent, self.engines_percent)


def parse_steps(text: str) -> tuple[UseStep, ...]:
    """Parse the annotation, in order of time. Raises ValueError with the expected form."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"at most {MAX_LENGTH} characters expected")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"JSON expected: {error}") from error
    return steps_of(document)


def steps_of(document: object) -> tuple[UseStep, ...]:
    """Parse the annotation's JSON. Raises ValueError with the expected form."""
    if not isinstance(document, list) or not 1 <= len(document) <= MAX_STEPS:
        raise ValueError(f"a list of 1 to {MAX_STEPS} steps expected")
    return tuple(sorted((_step(each) for each in document), key=lambda step: step.after_s))


def steps_as_json(steps: Sequence[UseStep]) -> list[dict[str, object]]:
    """Return the text that `steps_of` reads."""
    found = []
    for step in steps:
        one: dict[str, object] = {"after": f"{step.after_s * 1000:.0f}ms", "memory": str(step.memory_bytes)}
        one |= {"utilization": step.percent, "processes": step.processes}
        one |= {"engines": step.engines_percent} if step.engines_percent else {}
        found.append(one if step.for_s is None else one | {"for": f"{step.for_s * 1000:.0f}ms"})
    return found


def step_at(steps: Sequence[UseStep], at_s: float) -> UseStep | None:
    """The step that holds ``at_s`` seconds after the start; None before the first and after the last."""
    begun = [step for step in steps if step.after_s <= at_s]
    if not begun or (begun[-1].for_s is not None and at_s >= begun[-1].after_s + begun[-1].for_s):
        return None
    return begun[-1]


def busiest(steps: Sequence[UseStep], from_s: float, at_s: float) -> int:
    """The most that any engine is used by steps between both times, which may have ended before ``at_s``."""
    busy = 0
    for step, following in zip(steps, [*steps[1:], UseStep(after_s=math.inf)], strict=True):
        end_s = min(following.after_s, math.inf if step.for_s is None else step.after_s + step.for_s)
        if step.after_s <= at_s and end_s > from_s:
            busy = max(busy, step.busy_percent)
    return busy


def _step(item: object) -> UseStep:
    if not isinstance(item, Mapping) or not item.keys() <= _STEP_FIELDS:
        raise ValueError(f"a step with {', '.join(sorted(_STEP_FIELDS))} expected, not {str(item)[:80]}")
    return UseStep(
        after_s=_seconds(item.get("after", "0s"), "after"),
        for_s=_seconds(item["for"], "for") if "for" in item else None,
        memory_bytes=_memory(item.get("memory", "0")),
        percent=_whole_number(item.get("utilization", 0), "utilization", 100),
        engines_percent=_whole_number(item.get("engines", 0), "engines", 100),
        processes=_whole_number(item.get("processes", 1), "processes", MAX_PROCESSES),
    )


def _seconds(value: object, name: str) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = int(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not 0 <= seconds <= MAX_S:
        raise ValueError(f"{name}: a time such as 500ms, 30s, 10m or 2h, up to 31 days, expected, not {value!r:.60}")
    return seconds


def _memory(value: object) -> int:
    try:
        found = Quantity.parse(value).as_int() if isinstance(value, str) else -1
    except ValueError:
        found = -1
    if not 0 <= found <= MAX_MEMORY:
        raise ValueError(f"memory: a quantity such as 12Gi expected, not {value!r:.60}")
    return found


def _whole_number(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name}: a whole number from 0 to {most} expected, not {value!r:.60}")
    return value


NAME: Final = "simulated-usage.json"
VERSION: Final = 1
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_USES: Final = 4096
MAX_PID: Final = 2**22
"""PID_MAX_LIMIT of Linux (include/linux/threads.h)."""
_LOCK_S: Final = 20.0


_WIRE: Final = {"gpu_uuid": "gpu", "gi_id": "gi", "claim_uid": "claim"}
_Pid = Annotated[int, Meta(gt=0, le=MAX_PID)]


class SimulatedUse(Struct, frozen=True, kw_only=True, rename=_WIRE):
    """One container's use of one device. ``since`` is in seconds since 1970; ``pids`` or ``claim_uid`` are used."""

    key: str = ""
    gpu_uuid: GpuUuid
    since: Annotated[float, Meta(ge=0, lt=2**40)] = 0.0
    steps: tuple[UseStep, ...]
    gi_id: Annotated[int, Meta(ge=0, lt=16)] | None = None
    pids: Annotated[tuple[_Pid, ...], Meta(max_length=MAX_PROCESSES)] = ()
    claim_uid: str | None = None


def read_uses(path: Path) -> tuple[tuple[SimulatedUse, ...], tuple[str, ...]]:
    """Return the uses, and the errors of the file in words. A missing file has none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (f"{path.name} cannot be read: {error.strerror}",)
    if len(data) > MAX_BYTES:
        return (), (f"{path.name} has more than {MAX_BYTES} bytes",)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return (), (f"{path.name} is not JSON: {error}",)
    items = document.get("uses") if isinstance(document, dict) and document.get("version") == VERSION else None
    if not isinstance(items, list) or len(items) > MAX_USES:
        return (), (f"{path.name}: version {VERSION} with at most {MAX_USES} uses expected",)
    uses, problems = [], []
    for number, item in enumerate(items):
        try:
            uses.append(_use(item))
        except ValueError as error:
            problems.append(f"{path.name}, uses[{number}]: {error}")
    return tuple(uses), tuple(problems[:10])


def change_uses(path: Path, change: Callable[[Sequence[SimulatedUse]], Sequence[SimulatedUse]]) -> None:
    """Replace the uses by the result of ``change``. Write only a difference. Raises StorageError."""
    try:
        descriptor = lock_file(path.with_name(f"{path.name}.lock"), timeout_s=_LOCK_S)
        try:
            former, _ = read_uses(path)
            uses = tuple(change(former))
            if uses != former:
                document = {
                    "version": VERSION,
                    "uses": [
                        {**msgspec.to_builtins(use), "steps": steps_as_json(use.steps)} for use in uses[:MAX_USES]
                    ],
                }
                replace_file(path, json.dumps(document, indent=1).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path.name}: {error}: see that its folder can be written") from error


def _use(item: object) -> SimulatedUse:
    fields = item if isinstance(item, dict) else {}
    return convert({**fields, "steps": steps_of(fields.get("steps"))}, SimulatedUse)


log = logging.getLogger(__name__)

IDLE_MW: Final = 60_000
BUSY_MW: Final = 400_000
WITH_GPM: Final = frozenset({"Hopper", "Blackwell"})
CLAIM_VARIABLE: Final = b"DRA_SIMULATED_CLAIM"
"""Prefix of the variables of a container with simulated GPUs; the value of each is a claim UID."""
MAX_ENVIRON: Final = 256 * 1024
_PID: Final = re.compile(r"[0-9]+")
MAX_STEP_S: Final = 3600.0
"""Most seconds between samples that count for energy: after a longer gap the machine slept or the clock jumped."""


class SnapshotSource(Protocol):
    def snapshot(self) -> Snapshot: ...


class _Active(Struct, frozen=True, kw_only=True):
    """A process that uses a GPU now. ``percent``: of the GPU; ``busy``: of its busiest engine since the last sample."""

    pid: int
    gi_id: int | None
    memory_bytes: int
    percent: int
    busy: int


class SimulatedUsage:
    """Reads ``gpus`` and the file, in one thread. ``proc`` is the host's /proc, None to find no PIDs."""

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
        self._reported: frozenset[str] = frozenset()

    def sample(self) -> None:
        """Each sample covers all steps since the last one."""

    def close(self) -> None:
        """Nothing is open."""

    def usage(self) -> tuple[GpuUsage, ...]:
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
            active = [one for use in uses if use.gpu_uuid == gpu.uuid for one in _active(use, now, step_s, of_claims)]
            percent = min(100, sum(one.percent for one in active))
            power = IDLE_MW + (BUSY_MW - IDLE_MW) * percent // 100
            self._energy[gpu.uuid] = self._energy.get(gpu.uuid, 0.0) + power * step_s
            usage = _gpu_usage(gpu, active, is_first=is_first, percent=percent, power_mw=power)
            usage = replace(usage, energy_mj=int(self._energy[gpu.uuid]))
            found.append(replace(usage, processes=None, problem=problems[0]) if problems and not uses else usage)
        # their labels are their UUIDs (hardware.py)
        found += [GpuUsage(gpu_uuid=GpuUuid(each.label), unreadable=each.reason) for each in snapshot.left_out]
        return tuple(sorted(found, key=lambda each: each.gpu_uuid))

    def _complain(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._reported:
                log.warning("simulated use ignored", extra={"reason": problem})
        self._reported = frozenset(problems)

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


def _active(use: SimulatedUse, now: float, elapsed_s: float, of_claims: Mapping[str, Sequence[int]]) -> list[_Active]:
    step = step_at(use.steps, now - use.since)
    pids = use.pids if use.claim_uid is None else of_claims.get(use.claim_uid, ())
    if step is None or not pids or not step.processes:
        return []
    pids = pids[: step.processes]
    memory, percent = step.memory_bytes // len(pids), step.percent // len(pids)
    busy = busiest(use.steps, now - use.since - elapsed_s, now - use.since)
    return [_Active(pid=pid, gi_id=use.gi_id, memory_bytes=memory, percent=percent, busy=busy) for pid in pids]


def _gpu_usage(gpu: Gpu, active: Sequence[_Active], *, is_first: bool, percent: int, power_mw: int) -> GpuUsage:
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
        busy_percent=max((one.busy for one in active), default=0) if tells else None,
        power_mw=power_mw,
        temperature_c=30 + percent // 2,
        sm_clock_mhz=1980 if percent else 345,
        memory_clock_mhz=2619,
        mig_enabled=gpu.mig_enabled,
        instances=tuple(_instance_usage(gpu, one, active) for one in gpu.mig_instances) if gpu.mig_enabled else (),
        processes=tuple(
            ProcessUsage(
                pid=one.pid,
                gi_id=one.gi_id if gpu.mig_enabled else None,
                memory_bytes=one.memory_bytes,
                sm_percent=one.percent if tells and not is_first else None,
                memory_percent=one.percent // 2 if tells and not is_first else None,
                busy_percent=one.busy if tells and not is_first else None,
            )
            for one in active
        ),
    )


def _instance_usage(gpu: Gpu, instance: MigInstance, active: Sequence[_Active]) -> InstanceUsage:
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
        busy_percent=max((one.busy for one in mine), default=0) if gpu.architecture in WITH_GPM else None,
    )
