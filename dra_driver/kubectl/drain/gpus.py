"""Which GPUs a node publishes, and whether new claims can still get them. From ResourceSlices; pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.kube.devices import attribute_text, newest_slices, pool_of
from dra_driver.kube.published import names

Wire = Mapping[str, Any]
_PARTITION: Final = "-mig-"
"""Between the GPU's name and the rest of a partition's name (``model.mig.partition_name``)."""


class PublishedGpu(Struct, frozen=True, kw_only=True):
    """One GPU in all of its forms. ``name`` is that of the whole GPU, ``devices`` are the names of all forms.

    ``drained``: all devices have the taint of a drain, ``marked``: some have; ``detached``: some have that of a detach.
    """

    uuid: GpuUuid
    name: str
    product: str
    devices: frozenset[str]
    drained: bool
    marked: bool
    detached: bool


def gpus_of(slices: Iterable[Wire], node: str, driver: str) -> tuple[PublishedGpu, ...]:
    """The GPUs that ``driver`` publishes on ``node``, by name. Only the newest generation of a pool counts."""
    found: dict[str, list[Wire]] = {}
    for device in _devices(slices, node, driver):
        attributes = device.get("attributes")
        parent = attribute_text(attributes, driver, names.PARENT_UUID)
        uuid = parent or attribute_text(attributes, driver, names.UUID)
        if uuid.startswith("GPU-"):
            found.setdefault(uuid, []).append(device)
    gpus = [_gpu(GpuUuid(uuid), devices, driver) for uuid, devices in found.items()]
    return tuple(sorted(gpus, key=lambda gpu: (len(gpu.name), gpu.name)))


def is_settled(slices: Iterable[Wire], node: str, driver: str) -> bool:
    """Whether each pool has all resource slices of its newest generation: a change in several steps is over."""
    pools: dict[tuple[str, str], list[int]] = {}
    for item in newest_slices(_own(slices, node, driver)):
        pools.setdefault(pool_of(item), []).append(int((item["spec"].get("pool") or {}).get("resourceSliceCount") or 0))
    return all(len(counts) >= max(counts) for counts in pools.values())


def selected(gpus: Sequence[PublishedGpu], wanted: Sequence[str]) -> tuple[GpuUuid, ...]:
    """The UUIDs that ``wanted`` (UUIDs or names such as ``gpu-3``) means. Raises ConfigurationError.

    A UUID that is not published is taken as it is: a GPU that fell off the bus is published no more.
    """
    by_name = {gpu.name: gpu.uuid for gpu in gpus}
    unknown = [text for text in wanted if text not in by_name and not text.startswith("GPU-")]
    if unknown:
        known = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in gpus) or "none"
        raise ConfigurationError(
            f"--gpu {', '.join(unknown)}: not a GPU of this node; expected a UUID or a name. Published are: {known}"
        )
    return tuple(dict.fromkeys(by_name.get(text, GpuUuid(text)) for text in wanted))


def parent_of(device: str) -> str:
    """The name of the GPU that a device is a form of: ``gpu-0`` for ``gpu-0-mig-1g10gb-19-0``."""
    return device.partition(_PARTITION)[0]


def _devices(slices: Iterable[Wire], node: str, driver: str) -> list[Wire]:
    return [
        device for item in newest_slices(_own(slices, node, driver)) for device in item["spec"].get("devices") or ()
    ]


def _own(slices: Iterable[Wire], node: str, driver: str) -> list[Wire]:
    specs = ((item, item.get("spec") or {}) for item in slices)
    return [item for item, spec in specs if (spec.get("driver"), spec.get("nodeName")) == (driver, node)]


def _gpu(uuid: GpuUuid, devices: Sequence[Wire], driver: str) -> PublishedGpu:
    taints = [{taint.get("key") for taint in device.get("taints") or ()} for device in devices]
    return PublishedGpu(
        uuid=uuid,
        name=parent_of(str(devices[0].get("name"))),
        product=attribute_text(devices[0].get("attributes"), driver, names.PRODUCT_NAME),
        devices=frozenset(str(device.get("name")) for device in devices),
        drained=all(DRAINED_TAINT in keys for keys in taints),
        marked=any(DRAINED_TAINT in keys for keys in taints),
        detached=any(DETACHED_TAINT in keys for keys in taints),
    )
