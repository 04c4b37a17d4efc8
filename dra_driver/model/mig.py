"""MIG as plain values: how a GPU can be cut, and how it is cut now.

Owns names and shapes. Refuses to know how they were read (``gpu/``), who made an instance (``owned`` is told by whoever
keeps the books) and how partitions are published (``slices/``).

Words are NVML's (nvml.h): a *GPU instance* (GI) owns memory slices, a *compute instance* (CI) inside it owns
multiprocessors and is what programs see; a *profile* is a size, a *placement* where it begins, in memory slices.
A *partition* here is a profile at a placement, made or not: a GI with one CI that spans it.
"""

import re
from dataclasses import dataclass

from dra_driver.model.ids import DeviceName, GpuUuid, MigUuid

_PARTITION = re.compile(r"gpu-(0|[1-9][0-9]*)-mig-(.+)-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_FOREIGN_TO_LABELS = re.compile(r"[^a-z0-9-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One size of partition that a GPU offers, as NVML tells it.

    ``name`` is ``1g.10gb+me``, without NVML's prefix "MIG ". ``starts`` are the placements, ascending; each covers
    ``memory_slices`` memory slices. ``max_instances`` is NVML's and wrong on some boards: placements decide. Numbers
    are None where they are not known.
    """

    name: str
    profile_id: int
    compute_slices: int
    memory_slices: int
    max_instances: int
    starts: tuple[int, ...]
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """One CI. ``spans`` tells whether it has all of its GPU instance; ``uuid`` is None while it cannot be read."""

    ci_id: int
    uuid: MigUuid | None
    spans: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One GPU instance that exists, with its compute instances in order of id.

    ``owned`` is True for those that this driver's journal says it made (or is about to make or destroy); any other
    belongs to somebody else and is never destroyed. ``profile`` is what its own device tells of its size, without
    placements, where the GPU does not list the profile (in a vGPU guest); None everywhere else.
    """

    gi_id: int
    profile_id: int
    profile_name: str
    start: int
    size: int
    compute: tuple[ComputeInstance, ...] = ()
    owned: bool = False
    profile: MigProfile | None = None

    @property
    def device(self) -> ComputeInstance | None:
        """The one compute instance that spans it all; None when it is half made or cut in another way."""
        return self.compute[0] if len(self.compute) == 1 and self.compute[0].spans and self.compute[0].uuid else None

    def overlaps(self, start: int, size: int) -> bool:
        """Whether it covers any memory slice of ``[start, start + size)``."""
        return self.start < start + size and start < self.start + self.size


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """One partition of one GPU, whether it exists or not: what intents, locks and lookups are about."""

    gpu_uuid: GpuUuid
    profile_id: int
    start: int

    def __str__(self) -> str:
        return f"MIG profile {self.profile_id} at memory slice {self.start} of {self.gpu_uuid}"


def partition_name(minor: int, profile_name: str, profile_id: int, start: int) -> DeviceName:
    """``gpu-0-mig-1g10gb-me-20-4``: NVIDIA's rule, so that names in logs and dashboards mean the same.

    Dots are dropped, other characters that a DNS label cannot hold become dashes.
    """
    label = _FOREIGN_TO_LABELS.sub("-", profile_name.lower().replace(".", "")).strip("-")
    return DeviceName(f"gpu-{minor}-mig-{label}-{profile_id}-{start}")


@dataclass(frozen=True, slots=True)
class PartitionName:
    """What a partition's device name says; the profile's text is not needed, its id is."""

    minor: int
    profile_id: int
    start: int


def parse_partition_name(name: str) -> PartitionName | None:
    """The reverse of `partition_name`; None for any other name."""
    match = _PARTITION.fullmatch(name)
    return PartitionName(int(match[1]), int(match[3]), int(match[4])) if match else None
