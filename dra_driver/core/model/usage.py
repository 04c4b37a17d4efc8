"""The use of a node's GPUs at one moment, as values. ``hardware/gpu/`` reads it, ``node/usage/`` attributes it to
claims."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid, MigUuid


class ProcessUsage(Struct, frozen=True, kw_only=True):
    """One process on one GPU, or on its GPU instance ``gi_id``. ``pid`` is the host's. ``memory_bytes`` is None where
    the driver does not attribute memory (NVML_VALUE_NOT_AVAILABLE). Percentages are of the whole GPU since the previous
    sample, 0 for a process that used nothing; None where the driver does not report them, always in
    MIG mode (nvmlDeviceGetProcessesUtilizationInfo). ``busy_percent`` is the highest of all engines: multiprocessors,
    memory, encoders, decoders, JPEG and optical flow. ``mps``: a client of MPS, whose server owns its channels."""

    pid: int
    gi_id: int | None = None
    memory_bytes: int | None = None
    sm_percent: int | None = None
    memory_percent: int | None = None
    busy_percent: int | None = None
    mps: bool = False


class InstanceUsage(Struct, frozen=True, kw_only=True):
    """One GPU instance. Memory is in bytes; percentages are of the instance, None before Hopper (GPM)."""

    gi_id: int
    uuid: MigUuid | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    sm_percent: int | None = None
    busy_percent: int | None = None


class GpuUsage(Struct, frozen=True, kw_only=True):
    """One sample of one GPU. Everything is None where hardware or driver do not report it.

    Memory is in bytes: ``memory_used`` excludes ``memory_reserved`` of the driver (version 2 of
    nvmlDeviceGetMemoryInfo). Percentages are None in MIG mode; ``busy_percent`` is as that of a process.
    ``energy_mj`` counts from the load of the driver; ``power_mw`` is the average of a second. ``processes`` is None
    where they cannot be listed; ``problem`` then says why. ``unreadable`` says why the GPU does not answer.
    """

    gpu_uuid: GpuUuid
    unreadable: str | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    memory_used: int | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    busy_percent: int | None = None
    energy_mj: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    mig_enabled: bool = False
    instances: tuple[InstanceUsage, ...] = ()
    processes: tuple[ProcessUsage, ...] | None = None
    problem: str | None = None


def busiest(percents: Iterable[int | None]) -> int | None:
    """The highest; None if one is unknown and the rest are 0."""
    known = list(percents)
    return max((each or 0 for each in known), default=0) or (None if None in known else 0)


GIB: Final = 2**30
MARGIN: Final = 1.2
"""Room above the peak: the window has not seen everything, and allocators of frameworks keep reserves."""


class Profile(Struct, frozen=True, kw_only=True):
    """A MIG profile of the claim's GPU."""

    name: str
    memory_bytes: int


class EnoughMemory(Struct, frozen=True, kw_only=True):
    """Memory that would be enough. ``profile`` is the smallest MIG profile, None if none is smaller than the claim's;
    ``share_bytes`` is a whole number of GiB."""

    share_bytes: int
    profile: str | None = None


def fit(peak_bytes: int | None, held_bytes: int | None, profiles: Iterable[Profile] = ()) -> EnoughMemory | None:
    """The memory that is enough for ``peak_bytes``; None unless it is at most half of the claim's, and for an unknown
    or zero peak: that claim is idle, not too large."""
    if not peak_bytes or not held_bytes:
        return None
    needed = int(peak_bytes * MARGIN)
    share = max(1, -(-needed // GIB)) * GIB
    enough = [each for each in profiles if needed <= each.memory_bytes < held_bytes]
    smallest = min(enough, key=lambda each: (each.memory_bytes, each.name), default=None)
    if share * 2 > held_bytes:
        return None
    return EnoughMemory(share_bytes=share, profile=smallest.name if smallest is not None else None)
