"""Processes on a GPU that belong to no claim ("who else is on this GPU?"). Pure.

A pod with ``privileged: true`` and NVIDIA_VISIBLE_DEVICES, a program on the host, or a pod of the device plugin takes
memory that the scheduler believes to be free. Nothing is done about such processes but to tell them: whose they are is
not known, and that is no reason to end anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage_findings import MAX_COMMAND, MAX_COMMANDS, MAX_UNATTRIBUTED, Unattributed
from dra_driver.node.usage.values import GpuUse, SeenProcess, began, step_s, total

CONFIRM_S: Final = 30.0
"""A container's first processes are on the GPU before the kubelet tells whose they are."""
GROWTH: Final = 1.1
DRIVER_PROGRAMS: Final = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced"})
"""Programs of the driver, cut to the 15 characters of /proc/PID/comm below, which claims do not have but need."""
_DRIVER_COMMANDS: Final = frozenset(name[:15] for name in DRIVER_PROGRAMS)


class ForeignWatched(Struct, frozen=True, kw_only=True):
    """Of one GPU: for how long each process was seen (s), and what is told."""

    seen_s: Mapping[int, float]
    told: Unattributed | None = None


ForeignState = Mapping[GpuUuid, ForeignWatched]


def watch_foreign(
    state: ForeignState, gpus: Iterable[GpuUse], elapsed_s: float, now: datetime
) -> tuple[ForeignState, tuple[Unattributed, ...]]:
    """The next state by GPU, and what is told of each GPU, in the order of their names. Skips GPUs whose processes are
    not known.

    A process is told after it was seen for `CONFIRM_S`. ``elapsed_s`` and ``now`` are as those of `watchdog.watch`.
    """
    counted_s = step_s(elapsed_s)
    found = {
        gpu.gpu_uuid: _next(state.get(gpu.gpu_uuid), gpu, gpu.unattributed, counted_s, now)
        for gpu in gpus
        if gpu.unattributed is not None and gpu.device
    }
    told = sorted((each.told for each in found.values() if each.told is not None), key=lambda each: each.device)
    return found, tuple(told[:MAX_UNATTRIBUTED])


def _next(
    former: ForeignWatched | None, gpu: GpuUse, processes: Sequence[SeenProcess], counted_s: float, now: datetime
) -> ForeignWatched:
    known = former.seen_s if former is not None else {}
    foreign = [each for each in processes if each.command[:15] not in _DRIVER_COMMANDS]
    seen_s = {each.pid: known[each.pid] + counted_s if each.pid in known else 0.0 for each in foreign}
    lasting = [each for each in foreign if seen_s[each.pid] >= CONFIRM_S]
    if not lasting:
        return ForeignWatched(seen_s=seen_s)
    before = former.told if former is not None else None
    longest_s = max(seen_s[each.pid] for each in lasting)
    fresh = _told(gpu, lasting, before.since if before is not None else began(now, longest_s))
    return ForeignWatched(seen_s=seen_s, told=_steady(before, fresh))


def _told(gpu: GpuUse, lasting: Sequence[SeenProcess], since: datetime) -> Unattributed:
    by_size = sorted(lasting, key=lambda each: (-(each.memory_bytes or 0), each.pid))
    commands = dict.fromkeys(each.command[:MAX_COMMAND] for each in by_size if each.command)
    return Unattributed(
        gpu_uuid=gpu.gpu_uuid,
        device=gpu.device,
        processes=len(lasting),
        bytes_used=total(each.memory_bytes for each in lasting),
        since=since,
        commands=tuple(commands)[:MAX_COMMANDS],
    )


def _steady(before: Unattributed | None, fresh: Unattributed) -> Unattributed:
    """Memory that changed by less than a tenth is told as before."""
    if before is None or before.bytes_used is None or fresh.bytes_used is None:
        return fresh
    low, high = sorted((before.bytes_used, fresh.bytes_used))
    return replace(fresh, bytes_used=before.bytes_used) if high <= low * GROWTH else fresh
