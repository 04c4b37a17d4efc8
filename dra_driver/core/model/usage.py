"""What is in use on the GPUs of a node at one moment, as values. ``hardware/gpu/`` reads it, ``node/usage/`` says
whose it is."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid, MigUuid


class ProcessUsage(Struct, frozen=True, kw_only=True):
    """One process on one GPU, or on one of its GPU instances.

    ``pid`` is the host's. ``gi_id`` is None on a GPU without MIG mode. ``memory_bytes`` is None where the driver does
    not attribute memory to processes (NVML_VALUE_NOT_AVAILABLE). ``sm_percent`` and ``memory_percent`` are 0 to 100 of
    the whole GPU, averaged over the time since the previous look, None where the driver does not report them (on a GPU
    in MIG mode never: NVML reference, nvmlDeviceGetProcessesUtilizationInfo); a process without a sample in that time
    used nothing and has 0.
    """

    pid: int
    gi_id: int | None = None
    memory_bytes: int | None = None
    sm_percent: int | None = None
    memory_percent: int | None = None


class InstanceUsage(Struct, frozen=True, kw_only=True):
    """One GPU instance. Memory is in bytes; ``sm_percent`` is 0 to 100 of the instance, None where nothing tells it
    (GPM needs Hopper or newer)."""

    gi_id: int
    uuid: MigUuid | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    sm_percent: int | None = None


class GpuUsage(Struct, frozen=True, kw_only=True):
    """One look at one GPU. Everything is None where hardware or driver do not report it.

    Memory is in bytes: ``memory_used`` is what processes have, without ``memory_reserved`` of the driver (version 2 of
    nvmlDeviceGetMemoryInfo). Percentages are 0 to 100 and None in MIG mode. ``energy_mj`` counts millijoules since the
    driver was loaded and begins again at 0 then. ``power_mw`` is the average of a second. ``processes`` is ()
    where there are none, and None where they cannot be listed; ``problem`` then says why. ``unreadable`` says why the
    GPU does not answer; the rest is None then.
    """

    gpu_uuid: GpuUuid
    unreadable: str | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    memory_used: int | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    energy_mj: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    mig_enabled: bool = False
    instances: tuple[InstanceUsage, ...] = ()
    processes: tuple[ProcessUsage, ...] | None = None
    problem: str | None = None


GIB: Final = 2**30
MARGIN: Final = 1.2
"""Room above the peak: the window has not seen everything, and allocators of frameworks keep reserves."""


class Profile(Struct, frozen=True, kw_only=True):
    """A MIG profile of the claim's GPU."""

    name: str
    memory_bytes: int


class EnoughMemory(Struct, frozen=True, kw_only=True):
    """What would be enough. ``profile`` is the smallest MIG profile, None if none is smaller than what the claim has;
    ``share_bytes`` is a whole number of GiB."""

    share_bytes: int
    profile: str | None = None


def fit(peak_bytes: int | None, held_bytes: int | None, profiles: Iterable[Profile] = ()) -> EnoughMemory | None:
    """What would be enough for ``peak_bytes``; None unless it is at most half of what the claim has.

    None too for a peak that is not known, and for a claim that used nothing: it is idle, not too large.
    """
    if not peak_bytes or not held_bytes:
        return None
    needed = int(peak_bytes * MARGIN)
    share = max(1, -(-needed // GIB)) * GIB
    enough = [each for each in profiles if needed <= each.memory_bytes < held_bytes]
    smallest = min(enough, key=lambda each: (each.memory_bytes, each.name), default=None)
    if share * 2 > held_bytes:
        return None
    return EnoughMemory(share_bytes=share, profile=smallest.name if smallest is not None else None)
