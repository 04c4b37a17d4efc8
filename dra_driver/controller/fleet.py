"""What the controller keeps of ResourceSlices: how many GPUs there are, and which devices have NoExecute taints. Pure.

Fields: resource.k8s.io/v1 ResourceSlice. As in Kubernetes' own eviction, slices of an older generation of a pool are
left out (kubernetes/kubernetes 1.36 pkg/controller/devicetainteviction/device_taint_eviction.go getTaintedDevices).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from dra_driver.core.model.health_rules import GRACE_ATTRIBUTE
from dra_driver.core.time import parse_time
from dra_driver.kube.objects.resource import Device, ResourceSlice, ResourceSliceSpec
from dra_driver.kube.shapes import read

NO_EXECUTE: Final = "NoExecute"
# The attributes that say which GPU a device is or is part of (published/names.py, as NVIDIA's driver has them).
_GPU_ATTRIBUTES: Final = ("parentUUID", "uuid")
LONGEST_GRACE_S: Final = 3600
"""What a GpuPolicy may ask for; an attribute beyond it counts as this."""


class EvictingTaint(Struct, frozen=True, kw_only=True):
    """A taint with effect NoExecute; ``added`` in UTC."""

    key: str
    value: str
    added: datetime

    def __str__(self) -> str:
        """``key=value:effect``, as kubectl writes it."""
        return f"{self.key}={self.value}:{NO_EXECUTE}" if self.value else f"{self.key}:{NO_EXECUTE}"


class TaintedDevice(Struct, frozen=True, kw_only=True):
    """A published device with such taints. ``grace_s`` is that of the GPU's policy, None without it."""

    pool: str
    name: str
    gpu: str
    slice_name: str
    taints: tuple[EvictingTaint, ...]
    grace_s: int | None = None


class SliceView(Struct, frozen=True, kw_only=True):
    """What is kept of one slice."""

    pool: str
    generation: int
    gpus: frozenset[str]
    tainted: tuple[TaintedDevice, ...]


class Fleet(Struct, frozen=True, kw_only=True):
    """All slices together: the GPUs, and the tainted devices by pool and device name."""

    gpus: frozenset[str]
    tainted: Mapping[tuple[str, str], TaintedDevice]


def slice_view(item: Mapping[str, object]) -> SliceView | None:
    """From the API object; None if it is malformed. A taint without a time that can be read evicts nothing."""
    try:
        found = read(ResourceSlice, item)
    except ValueError:
        return None
    spec = found.spec
    gpus = frozenset(_gpu(device, spec) for device in spec.devices)
    tainted = tuple(_tainted(spec, found.metadata.name))
    return SliceView(pool=spec.pool.name, generation=spec.pool.generation or 0, gpus=gpus, tainted=tainted)


def fleet_of(slices: Iterable[SliceView]) -> Fleet:
    views = list(slices)
    newest: dict[str, int] = {}
    for view in views:
        newest[view.pool] = max(view.generation, newest.get(view.pool, view.generation))
    current = [view for view in views if view.generation == newest[view.pool]]
    gpus: frozenset[str] = frozenset().union(*(view.gpus for view in current))
    return Fleet(gpus=gpus, tainted={(found.pool, found.name): found for view in current for found in view.tainted})


def _tainted(spec: ResourceSliceSpec, slice_name: str) -> Iterator[TaintedDevice]:
    for device in spec.devices:
        taints = tuple(
            EvictingTaint(key=taint.key, value=taint.value, added=added)
            for taint in device.taints
            if taint.effect == NO_EXECUTE and (added := parse_time(taint.time_added)) is not None
        )
        if taints:
            yield TaintedDevice(
                pool=spec.pool.name,
                name=device.name,
                gpu=_gpu(device, spec),
                slice_name=slice_name,
                taints=taints,
                grace_s=_grace_s(device),
            )


def _grace_s(device: Device) -> int | None:
    attribute = device.attributes.get(GRACE_ATTRIBUTE)
    seconds = attribute.int_ if attribute is not None else None
    return min(seconds, LONGEST_GRACE_S) if seconds is not None and seconds >= 0 else None


def _gpu(device: Device, spec: ResourceSliceSpec) -> str:
    """A device without such an attribute counts as a GPU of its own."""
    known = device.attributes
    found = (known.get(name) or known.get(f"{spec.driver}/{name}") for name in _GPU_ATTRIBUTES)
    uuids = (attribute.string for attribute in found if attribute is not None and attribute.string)
    return next(uuids, f"{spec.pool.name}/{device.name}")
