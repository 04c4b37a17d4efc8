"""Spread devices over the ResourceSlices of a pool, and name the resource slices. No I/O.

Source: kubernetes/dynamic-resource-allocation resourceslice/resourceslicecontroller.go (1.36: name order is allocation
order, and resource slices are matched by the index in their name). Since 1.35 a resource slice has counter sets, which
come first, or devices. All devices of one GPU are in one slice, and a GPU keeps its place, so one GPU's change is one
write. Kubernetes 1.34 wants a counter set and its devices in one slice: one for each GPU that may be partitioned.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.terms import Terms
from dra_driver.kube.objects.resource import CounterSet, Device
from dra_driver.kube.published import limits
from dra_driver.node.slices.build import Built, GpuGroup, build_devices
from dra_driver.node.slices.gates import NO_FEATURES, ApiServerFeatures

log = logging.getLogger(__name__)

# The API server cuts generateName to 58 characters and adds 5 random ones (apiserver storage/names). Cut here too, so
# that the validated text (at most 253 characters) equals the stored one.
MAX_GENERATE_NAME = 58

_INDEX = re.compile(r"([0-9a-f]{5,15})-")


class DesiredSlice(Struct, frozen=True, kw_only=True):
    """The content of one ResourceSlice of the pool: devices, counter sets or (1.34) both.

    ``accepted`` is the digest (`gates.digest`) of the spec that the API server made of exactly this content before,
    when it differs: it drops gated fields, newer servers may add fields. It counts as equal; otherwise the resource
    slice would be written forever.
    """

    index: int
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    accepted: str | None = None

    @property
    def needs_counters(self) -> bool:
        """Return whether its devices exclude each other only through counters of another resource slice."""
        return not self.counter_sets and any(device.consumes_counters for device in self.devices)

    def says_the_same(self, other: "DesiredSlice") -> bool:
        return (self.index, self.devices, self.counter_sets) == (other.index, other.devices, other.counter_sets)


def split(
    built: Built, *, per_slice: int = limits.MAX_DEVICES, counters_beside_devices: bool = False
) -> tuple[DesiredSlice, ...]:
    """The resource slices of a pool, at least one: an empty one means "no devices", none "not yet known".

    ``counters_beside_devices``: see `ApiServerFeatures`.
    """
    if counters_beside_devices and any(map(_may_be_cut, built.groups)):
        return tuple(_beside(built.groups, per_slice))
    sets, devices = built.counter_sets, list(_by_max_devices(built.groups, per_slice)) or [()]
    starts = range(0, len(sets), limits.MAX_COUNTER_SETS)
    counted = [
        DesiredSlice(index=index, counter_sets=tuple(sets[start : start + limits.MAX_COUNTER_SETS]))
        for index, start in enumerate(starts)
    ]
    return (*counted, *(DesiredSlice(index=index, devices=part) for index, part in enumerate(devices, len(counted))))


def _beside(groups: Sequence[GpuGroup], per_slice: int) -> Iterator[DesiredSlice]:
    """For Kubernetes 1.34: a resource slice for each GPU that may be partitioned, and one for the rest."""
    index = itertools.count()
    uncut: list[GpuGroup] = []
    for group in groups:
        if not _may_be_cut(group):
            uncut.append(group)
            continue
        sets = () if group.counter_set is None else (group.counter_set,)
        yield DesiredSlice(index=next(index), devices=group.devices, counter_sets=sets)
    for devices in _by_max_devices(uncut, per_slice):
        yield DesiredSlice(index=next(index), devices=devices)


def _may_be_cut(group: GpuGroup) -> bool:
    return group.counter_set is not None or group.max_devices > 1


def _by_max_devices(groups: Sequence[GpuGroup], per_slice: int) -> Iterator[tuple[Device, ...]]:
    """Fills resource slices in order by the greatest number of devices of each GPU, not by the present one."""
    devices: list[Device] = []
    reserved = 0
    for group in groups:
        if reserved and reserved + group.max_devices > per_slice:
            yield tuple(devices)
            devices, reserved = [], 0
        devices += group.devices
        reserved += group.max_devices
    if reserved:
        yield tuple(devices)


def generate_name(index: int, driver: str, node: str) -> str:
    """Return ``00000-gpu.nvidia.com-node-a-``; the API server appends a unique suffix."""
    return f"{index:05x}-{driver}-{node}-"[:MAX_GENERATE_NAME]


def index_of(name: str) -> int | None:
    """The index in a resource slice's name; None for a name of another form (drivers up to Kubernetes 1.35)."""
    match = _INDEX.match(name)
    return int(match.group(1), 16) if match else None


class DesiredState:
    """Not thread-safe: its owner holds a lock. ``slices`` is None until `build` has an inventory."""

    def __init__(self) -> None:
        self._inventory: tuple[Snapshot, Terms] | None = None
        self._built: tuple[tuple[Snapshot, Terms], ApiServerFeatures] | None = None
        self.slices: tuple[DesiredSlice, ...] | None = None
        self.left_out: tuple[LeftOutGpu, ...] = ()

    @property
    def has_inventory(self) -> bool:
        return self._inventory is not None

    def offer(self, snapshot: Snapshot, terms: Terms) -> bool:
        """Set the newest inventory; False when it equals the previous one."""
        if self._inventory == (snapshot, terms):
            return False
        self._inventory = (snapshot, terms)
        return True

    def build(self, features: ApiServerFeatures = NO_FEATURES) -> bool:
        """Update ``slices``. True when they changed: most changes of an inventory are not published.

        Unchanged resource slices stay the same object. Logs the unpublished forms when they changed.
        """
        if self._inventory is None or self._built == (self._inventory, features):
            return False
        self._built = (self._inventory, features)
        built = build_devices(*self._inventory, features)
        if built.left_out != self.left_out:
            for gpu in built.left_out:
                log.warning("GPU is not published in every form", extra={"gpu": gpu.label, "reason": gpu.reason})
        self.left_out = built.left_out
        slices = split(built, counters_beside_devices=features.counters and features.counters_beside_devices)
        if slices == self.slices:
            return False
        self.slices = slices
        return True
