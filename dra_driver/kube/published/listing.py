"""Read ``nvidia-smi -L`` of a container and compare it with the allocated devices. The GPU above a MIG device counts as
a *parent*, not as a GPU of the container.

    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)
      MIG 1g.5gb      Device  0: (UUID: MIG-…)
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct

from dra_driver.kube.published.names import PARENT_UUID, PROFILE, TYPE, TYPE_MIG, UUID

Wire = Mapping[str, Any]

_GPU: Final = re.compile(r"GPU \d+: .+ \(UUID: (GPU-[0-9a-f-]+)\)")
_PARTITION: Final = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9a-f-]+)\)")
UNKNOWN: Final = "(unknown)"
_T = TypeVar("_T")


class Partition(Struct, frozen=True, order=True):
    """A MIG device. ``uuid`` is "" if unknown: a ResourceSlice has no UUID for a device that does not exist yet."""

    parent: str
    profile: str
    uuid: str = ""


class Devices(Struct, frozen=True, kw_only=True):
    """``gpus``: UUIDs of whole GPUs. ``parents``: UUIDs of GPUs with a MIG device in ``partitions``."""

    gpus: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    parents: tuple[str, ...] = ()

    def __add__(self, other: "Devices") -> "Devices":
        partitions = _unique(*self.partitions, *other.partitions)
        return Devices(
            gpus=_unique(*self.gpus, *other.gpus), partitions=partitions, parents=_unique(*self.parents, *other.parents)
        )

    @property
    def listed(self) -> tuple[str, ...]:
        return _unique(*self.gpus, *self.parents)


def observed_devices(log: str) -> Devices:
    """The devices that a log lists in the format of ``nvidia-smi -L``, in order, each once. Ignores other lines."""
    gpus: list[str] = []
    partitions: list[Partition] = []
    parent = ""
    for line in log.splitlines():
        if match := _GPU.fullmatch(line):
            parent = match[1]
            gpus.append(parent)
        elif (match := _PARTITION.fullmatch(line)) and parent:
            partitions.append(Partition(parent, match[1], match[2]))
    parents = {partition.parent for partition in partitions}
    return Devices(
        gpus=_unique(*(gpu for gpu in gpus if gpu not in parents)),
        partitions=_unique(*partitions),
        parents=_unique(*(gpu for gpu in gpus if gpu in parents)),
    )


def described_devices(results: Iterable[Wire], slices: Iterable[Wire]) -> Devices:
    """The devices of allocation results, as ResourceSlices describe them, each once; a share counts as its GPU."""
    published = {
        (spec["driver"], spec["pool"]["name"], device["name"]): device.get("attributes") or {}
        for spec in (item["spec"] for item in slices)
        for device in spec.get("devices") or ()
    }
    gpus: list[str] = []
    partitions: list[Partition] = []
    for key in _unique(*((result["driver"], result["pool"], result["device"]) for result in results)):
        attributes = published.get(key, {})
        if _text(attributes, TYPE) == TYPE_MIG:
            parent = _text(attributes, PARENT_UUID) or UNKNOWN
            partitions.append(Partition(parent, _text(attributes, PROFILE), _text(attributes, UUID)))
        else:
            gpus.append(_text(attributes, UUID) or UNKNOWN)
    return Devices(gpus=tuple(gpus), partitions=tuple(partitions), parents=_unique(*(p.parent for p in partitions)))


def difference(observed: Devices, allocated: Devices) -> str | None:
    """The difference between observed and allocated devices, None for none. Partitions are compared by parent and
    profile, and by UUID if the ResourceSlice has one."""
    if set(observed.gpus) != set(allocated.gpus):
        seen, expected = sorted(observed.gpus), sorted(allocated.gpus)
        return f"its containers see {seen}, its claims were allocated {expected}"
    known = {partition.uuid for partition in allocated.partitions} - {""}
    missing = known - {partition.uuid for partition in observed.partitions}
    if missing or _kinds(observed) != _kinds(allocated):
        return f"its containers see the MIG devices {_shown(observed)}, its claims were allocated {_shown(allocated)}"
    return None


def _kinds(devices: Devices) -> Counter[tuple[str, str]]:
    return Counter((partition.parent, partition.profile) for partition in devices.partitions)


def _shown(devices: Devices) -> str:
    listed = (f"{part.profile} of {part.parent} {part.uuid}".rstrip() for part in sorted(devices.partitions))
    return "[" + ", ".join(listed) + "]"


def _text(attributes: Wire, name: str) -> str:
    return str((attributes.get(name) or {}).get("string") or "")


def _unique(*values: _T) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
