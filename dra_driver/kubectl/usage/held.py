"""How long claims held which part of which GPU: from what Prometheus recorded, or from the claims that exist. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dra_driver.core.quantity import Quantity
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import allocation_results
from dra_driver.kubectl.usage.claim_labels import Labels
from dra_driver.kubectl.usage.cost import Held
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.usage.exporter_answer import number, text
from dra_driver.kubectl.usage.history import vector

GPUS_QUERY: Final = "max by (node, device, model) (max_over_time(dra_gpu_memory_total_bytes[{window}s]))"
_PARTITION: Final = "-mig-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A GPU's product name, "" when unknown, and its memory in bytes."""

    model: str
    memory_bytes: int


Gpus = Mapping[tuple[str, str], DeviceMemory]
"""By node (or pool) and name of the GPU."""


def gpu_of(device: str) -> str:
    """The name of the GPU that a device is or is a part of: partitions are named ``<gpu>-mig-...``."""
    return device.partition(_PARTITION)[0]


def gpus_in(answer: Any) -> dict[tuple[str, str], DeviceMemory]:
    """GPUs of an answer to `GPUS_QUERY`. Raises ValueError like `history.vector`."""
    found = {}
    for labels, value in vector(answer):
        size = number(value)
        if size:
            key = (text(labels.get("node")), text(labels.get("device")))
            found[key] = DeviceMemory(model=text(labels.get("model")), memory_bytes=int(size))
    return found


def from_history(uses: Iterable[ClaimDeviceUse], gpus: Gpus, labels: Labels) -> list[Held]:
    """What was held within the window. ``gpus`` has partitions too, where they are published; a claim that is not in
    ``labels`` is gone."""
    found = []
    for use in uses:
        gpu = gpus.get((use.node, gpu_of(use.device)))
        found.append(
            Held(
                namespace=use.namespace,
                claim=use.claim,
                device=use.device,
                model=gpu.model if gpu is not None else "",
                part=_part(use, gpus.get((use.node, use.device)), gpu),
                seconds=use.held_s,
                energy_joules=use.energy_joules,
                energy_estimated=use.energy_estimated,
                labels=labels.get((use.namespace, use.claim)),
            )
        )
    return found


def _part(use: ClaimDeviceUse, device: DeviceMemory | None, gpu: DeviceMemory | None) -> float | None:
    if not use.share and _PARTITION not in use.device:
        return 1.0
    size = use.granted_bytes
    if size is None and not use.share and device is not None:
        size = device.memory_bytes or None
    if gpu is None or not gpu.memory_bytes or size is None:
        return None
    return min(1.0, size / gpu.memory_bytes)


def from_claims(
    claims: Iterable[Mapping[str, Any]],
    slices: Iterable[Mapping[str, Any]],
    driver: str,
    now: datetime,
    labels: Labels,
) -> list[Held]:
    """What the claims that exist have held since they were allocated; admin access is not charged.

    Kubernetes may leave the time of the allocation out: then it is the claim's creation, which is earlier.
    """
    devices = devices_in(slices, driver)
    found = []
    for claim in claims:
        metadata = claim.get("metadata") or {}
        allocation = (claim.get("status") or {}).get("allocation") or {}
        since = parse_time(allocation.get("allocationTimestamp")) or parse_time(metadata.get("creationTimestamp"))
        seconds = None if since is None else max(0.0, (now - since).total_seconds())
        key = (text(metadata.get("namespace")) or "default", text(metadata.get("name")))
        for result in allocation_results(allocation):
            if result.get("driver") != driver or result.get("adminAccess"):
                continue
            pool, name = str(result.get("pool")), str(result.get("device"))
            gpu = devices.get((pool, gpu_of(name)))
            found.append(
                Held(
                    namespace=key[0],
                    claim=key[1],
                    device=text(name),
                    model=gpu.model if gpu is not None else "",
                    part=_allocated_part(result, devices.get((pool, name)), gpu),
                    seconds=seconds,
                    labels=labels.get(key, ()),
                )
            )
    return found


def _allocated_part(result: Mapping[str, Any], device: DeviceMemory | None, gpu: DeviceMemory | None) -> float | None:
    name = str(result.get("device"))
    consumed = (result.get("consumedCapacity") or {}).get("memory") if result.get("shareID") else None
    if result.get("shareID") is None and _PARTITION not in name:
        return 1.0
    size = bytes_of(consumed) if consumed is not None else (device.memory_bytes if device is not None else None)
    if gpu is None or not gpu.memory_bytes or size is None:
        return None
    return min(1.0, size / gpu.memory_bytes)


def devices_in(
    slices: Iterable[Mapping[str, Any]], driver: str, *, by_node: bool = False
) -> dict[tuple[str, str], DeviceMemory]:
    """Every published device of a driver by pool (or node) and name, with its product name and memory."""
    found = {}
    for item in slices:
        spec = item.get("spec") or {}
        if spec.get("driver") != driver:
            continue
        pool = str((spec.get("pool") or {}).get("name"))
        for device in spec.get("devices") or ():
            attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
            model = (attributes.get("productName") or {}).get("string")
            size = bytes_of((capacity.get("memory") or {}).get("value"))
            place = str(device.get("nodeName") or spec.get("nodeName") or "") if by_node else pool
            found[place, str(device.get("name"))] = DeviceMemory(model=text(model), memory_bytes=size or 0)
    return found


def bytes_of(value: Any) -> int | None:
    """A quantity of bytes; None for what is none."""
    try:
        return Quantity.parse(str(value)).as_int() if isinstance(value, str | int) else None
    except ValueError:
        return None
