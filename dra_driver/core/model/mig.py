"""MIG profiles, instances and partitions as plain values, in NVML's terms (nvml.h).

A *GPU instance* (GI) owns memory slices; a *compute instance* (CI) inside it owns multiprocessors and is the device of
programs; a *profile* is a size, a *placement* its first memory slice. A *partition* is a profile at a placement,
existing or not: a GI with one CI that spans it.
"""

import re
from typing import Final

from msgspec import Struct

from dra_driver.core.model.ids import DeviceName, GpuUuid, MigUuid

_PARTITION = re.compile(r"gpu-(0|[1-9][0-9]*)-mig-(.+)-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_FOREIGN_TO_LABELS = re.compile(r"[^a-z0-9-]")
COMPUTE: Final = re.compile(r"\b[1-9][0-9]*c\.(?=[1-9][0-9]*g\.[1-9][0-9]*gb)")
"""The start of the profile of a compute instance that is smaller than its GPU instance: ``1c.`` of ``1c.3g.20gb``."""
_COMPUTE_PROFILE: Final = re.compile(COMPUTE.pattern + r"[1-9][0-9]*g\.[1-9][0-9]*gb")


def no_compute_instance(text: str) -> str | None:
    """The reason why no device has the profile of a compute instance in ``text``; None without one."""
    found = _COMPUTE_PROFILE.search(text)
    if found is None:
        return None
    gpu_instance = COMPUTE.sub("", found[0])
    return (
        f"compute instances smaller than their GPU instance ({found[0]}) are not supported: request the GPU instance "
        f"{gpu_instance}"
    )


class MigProfile(Struct, frozen=True, kw_only=True):
    """One size of partition of a GPU, as NVML reports it. ``name`` is ``1g.10gb+me``. ``starts`` are the placements,
    ascending; each covers ``memory_slices`` memory slices. ``max_instances`` is NVML's and wrong on some boards.
    Unknown numbers are None."""

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


class ComputeInstance(Struct, frozen=True, kw_only=True):
    """One CI. ``spans``: it has all of its GPU instance. ``uuid`` is None when it cannot be read."""

    ci_id: int
    uuid: MigUuid | None
    spans: bool = True


class MigInstance(Struct, frozen=True, kw_only=True):
    """One existing GPU instance, compute instances in order of id. ``owned``: this driver's journal records that the
    driver created it, or is about to create or destroy it; others are never destroyed. ``profile`` is set only if the
    GPU does not list the profile (in a vGPU guest): the size that the instance reports, without placements."""

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
        """The single compute instance that spans it; None when it is incomplete or divided."""
        return self.compute[0] if len(self.compute) == 1 and self.compute[0].spans and self.compute[0].uuid else None

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether it covers any memory slice of ``[start, start + size)``."""
        return self.start < start + size and start < self.start + self.size


class PartitionId(Struct, frozen=True, order=True):
    """One partition of one GPU, whether it exists or not."""

    gpu_uuid: GpuUuid
    profile_id: int
    start: int

    def __str__(self) -> str:
        return f"MIG profile {self.profile_id} at memory slice {self.start} of {self.gpu_uuid}"


def partition_name(minor: int, profile_name: str, profile_id: int, start: int) -> DeviceName:
    """``gpu-0-mig-1g10gb-me-20-4``, as NVIDIA's driver names it: without dots, other characters that a DNS label lacks
    as dashes."""
    label = _FOREIGN_TO_LABELS.sub("-", profile_name.lower().replace(".", "")).strip("-")
    return DeviceName(f"gpu-{minor}-mig-{label}-{profile_id}-{start}")


MONITOR_SUFFIX: Final = "-monitor"
"""``gpu-0-monitor`` is the device of gpu-0 for admin access only."""


def parent_name(device: str) -> str:
    """The name of the GPU that a device is a form of: ``gpu-0`` for ``gpu-0-mig-1g10gb-19-0``, ``gpu-0-monitor`` and
    for itself."""
    return device.partition("-mig-")[0].removesuffix(MONITOR_SUFFIX)


class PartitionName(Struct, frozen=True):
    """The parts of a partition's device name, without the profile's text."""

    minor: int
    profile_id: int
    start: int


def parse_partition_name(name: str) -> PartitionName | None:
    """The reverse of `partition_name`; None for any other name."""
    match = _PARTITION.fullmatch(name)
    return PartitionName(int(match[1]), int(match[3]), int(match[4])) if match else None
