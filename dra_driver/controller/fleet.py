"""What the controller keeps of ResourceSlices: how many GPUs there are, and which devices have NoExecute taints. Pure.

Fields: resource.k8s.io/v1 ResourceSlice. As in Kubernetes' own eviction, slices of an older generation of a pool are
left out (kubernetes/kubernetes 1.36 pkg/controller/devicetainteviction/device_taint_eviction.go getTaintedDevices).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.model.health_rules import GRACE_ATTRIBUTE
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import attribute_text, generation_of

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


def slice_view(item: Mapping[str, Any]) -> SliceView | None:
    """From the API object; None if it is malformed. A taint without a time that can be read evicts nothing."""
    try:
        spec, name = item["spec"], str(item["metadata"]["name"])
        pool, generation = str(spec["pool"]["name"]), generation_of(item)
        driver = str(spec.get("driver") or "")
        devices = [device for device in spec.get("devices") or () if isinstance(device, dict)]
        gpus = frozenset(_gpu(device, pool, driver) for device in devices)
        return SliceView(
            pool=pool, generation=generation, gpus=gpus, tainted=tuple(_tainted(devices, pool, driver, name))
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def fleet_of(slices: Iterable[SliceView]) -> Fleet:
    views = list(slices)
    newest: dict[str, int] = {}
    for view in views:
        newest[view.pool] = max(view.generation, newest.get(view.pool, view.generation))
    current = [view for view in views if view.generation == newest[view.pool]]
    gpus: frozenset[str] = frozenset().union(*(view.gpus for view in current))
    return Fleet(gpus=gpus, tainted={(found.pool, found.name): found for view in current for found in view.tainted})


def _tainted(devices: list[dict[str, Any]], pool: str, driver: str, slice_name: str) -> Iterator[TaintedDevice]:
    for device in devices:
        found = (_evicting(taint) for taint in device.get("taints") or ())
        taints = tuple(taint for taint in found if taint is not None)
        if taints:
            gpu, name = _gpu(device, pool, driver), str(device["name"])
            yield TaintedDevice(
                pool=pool, name=name, gpu=gpu, slice_name=slice_name, taints=taints, grace_s=_grace_s(device)
            )


def _evicting(taint: Mapping[str, Any]) -> EvictingTaint | None:
    added = parse_time(taint.get("timeAdded"))
    if taint.get("effect") != NO_EXECUTE or added is None:
        return None
    return EvictingTaint(key=str(taint.get("key") or ""), value=str(taint.get("value") or ""), added=added)


def _grace_s(device: Mapping[str, Any]) -> int | None:
    seconds = ((device.get("attributes") or {}).get(GRACE_ATTRIBUTE) or {}).get("int")
    return min(seconds, LONGEST_GRACE_S) if isinstance(seconds, int) and seconds >= 0 else None


def _gpu(device: Mapping[str, Any], pool: str, driver: str) -> str:
    """A device without such an attribute counts as a GPU of its own."""
    found = (attribute_text(device.get("attributes"), driver, name) for name in _GPU_ATTRIBUTES)
    return next(filter(None, found), "") or f"{pool}/{device['name']}"
