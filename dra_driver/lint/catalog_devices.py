"""The devices that the catalog of GPU models stands for, as they would be published.

Owns the wire form of a catalog device, which must be the one of ``slices.build`` (a test compares them; rooms on one
floor do not import each other): whole GPUs, whole GPUs that a policy lets claims share, and one MIG device for each
profile. Owns also what of it differs from machine to machine, so that nothing is concluded from an invented value.
Refuses to know expressions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from dra_driver.cel import DeviceView
from dra_driver.gpu import catalog
from dra_driver.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.model.gpu import Gpu
from dra_driver.quantity import Quantity
from dra_driver.semver import from_loose

DRIVER: Final = "gpu.nvidia.com"
STANDARD: Final = "resource.kubernetes.io"
VARYING: Final = frozenset(
    {"uuid", "parentUUID", "driverVersion", "cudaDriverVersion", "addressingMode", "placementStart"}
    | {f"{STANDARD}/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")}
)
"""Attributes of a catalog device whose value says nothing about the machines that a claim will meet."""

OPTIONAL: Final = frozenset({"addressingMode", f"{STANDARD}/pcieRoot", f"{STANDARD}/numaNode"})
"""Attributes that some machines do not have at all."""

# Published by versions and settings of NVIDIA's driver other than the ones that catalog devices follow.
OTHER_ATTRIBUTES: Final = frozenset(
    {"deviceID", "vendorID", "numa", "iommuFDEnabled", "gpuModuleID", "index", "minor"}
    | {f"partition{size}" for size in (1, 2, 4, 8)}
)
OTHER_CAPACITIES: Final = frozenset(
    {"addressableMemory", "shares", "memory", "multiprocessors", "copyEngines", "decoders", "encoders"}
    | {"jpegEngines", "ofaEngines"}
    | {f"memorySlice{index}" for index in range(16)}
)
STRATEGIES: Final = ("MPS", "TimeSlicing")
"""How a policy may let claims share a GPU: values of ``sharingStrategy``."""

LARGEST_MEMORY: Final = "320Gi"
"""More than any board of the catalog has whose memory it does not tell."""
_LABEL: Final = re.compile(r"(\d+)gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device to try expressions on.

    ``label`` names it for people. Of ``varying`` attributes the value means nothing; ``unsure`` are names that the
    catalog has no value for although devices have them; of memory ``extremes`` are the device with far too little and
    with far too much, for both of which an expression must be false to be false. ``label_gigabytes`` is what the
    product's name says.
    ``bare`` devices lack what is optional and only show which expressions fail then; several claims may have a
    ``shared`` one. ``per_gpu`` is how many of them a GPU of the ``model`` can be cut into, 0 for another form of a
    device that is counted already; ``nodes`` counts the devices of this shape per node of a cluster.
    """

    driver: str
    label: str
    wire: Mapping[str, Any]
    view: DeviceView
    varying: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    label_gigabytes: int | None = None
    extremes: tuple[DeviceView, ...] = ()
    bare: bool = False
    shared: bool = False
    model: str = ""
    per_gpu: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)


@cache
def catalog_devices() -> tuple[KnownDevice, ...]:
    """Every whole GPU, alone and shared, and every MIG device of the catalog. Made once per process; immutable."""
    models = list(catalog.models().values())
    found = [device for model in models for device in _of_model(model)]
    first = next(model for model in models if model.mig is not None)
    whole, *others = _of_model(first)
    return (*found, _bare(whole), _bare(next(device for device in others if not device.shared)))


def _of_model(model: catalog.GpuModel) -> Iterator[KnownDevice]:
    gpu = invent(model, 0, "catalog")
    attributes = whole_attributes(gpu)
    memory = {} if gpu.memory_bytes is None else {"memory": {"value": str(Quantity.from_bytes(gpu.memory_bytes))}}
    # Beside partitions only, as slices have it: where MIG mode can be switched while the node runs.
    capacity = {**(_greatest(model.mig.profiles) if model.mig and gpu.mig_resetless else {}), **memory}
    name = model.product_name
    gigabytes, unsure = _gigabytes(model.key), frozenset({"memory"}) - set(capacity)
    yield _device(name, attributes, capacity, model=model.key, gigabytes=gigabytes, per_gpu=1, unsure=unsure)
    yield from _shared(gpu, attributes, model=model.key, unsure=unsure | {"shares"})
    for profile in model.mig.profiles if model.mig else ():
        inside = {key: value for key, value in attributes.items() if key != "uuid"}
        inside |= {"type": {"string": "mig"}, "profile": {"string": profile.name}, "parentUUID": attributes["uuid"]}
        inside |= {"placementSize": {"int": profile.memory_slices}, "placementStart": {"int": profile.starts[0]}}
        numbers = _capacities(profile)
        known = {key: {"value": str(value)} for key, value in numbers.items() if value is not None}
        label = f"{profile.name} of {name}"
        unsure = frozenset(key for key, value in numbers.items() if value is None) | {"uuid"}
        gigabytes, count = _gigabytes(profile.name), len(profile.starts)
        yield _device(label, inside, known, unsure=unsure, model=model.key, gigabytes=gigabytes, per_gpu=count)


def whole_attributes(gpu: Gpu) -> dict[str, dict[str, Any]]:
    """Attributes of a whole GPU, as ``slices.build`` publishes them."""
    capability = gpu.cuda_compute_capability or (0, 0)
    found: dict[str, dict[str, Any]] = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": gpu.product_name},
        "brand": {"string": gpu.brand},
        "architecture": {"string": gpu.architecture},
        "cudaComputeCapability": {"version": from_loose(f"{capability[0]}.{capability[1]}")},
        "driverVersion": {"version": from_loose(DEFAULT_DRIVER_VERSION)},
        "cudaDriverVersion": {"version": from_loose(f"{DEFAULT_CUDA_VERSION[0]}.{DEFAULT_CUDA_VERSION[1]}")},
        "addressingMode": {"string": gpu.addressing_mode or None},
        f"{STANDARD}/pciBusID": {"string": gpu.pci_bus_id},
        f"{STANDARD}/pcieRoot": {"string": gpu.pcie_root},
        f"{STANDARD}/numaNode": {"int": gpu.numa_node},
    }
    return {name: value for name, value in found.items() if next(iter(value.values())) is not None}


def _shared(gpu: Gpu, attributes: Any, *, model: str, unsure: frozenset[str]) -> Iterator[KnownDevice]:
    """The whole GPU as each strategy of a policy publishes it. Their number is the policy's business."""
    capacity = shared_capacities(gpu)
    for strategy in STRATEGIES:
        description = {**attributes, "sharingStrategy": {"string": strategy}}
        label = f"{gpu.product_name} shared by {strategy}"
        yield _device(label, description, capacity, model=model, gigabytes=None, per_gpu=0, unsure=unsure, shared=True)


def shared_capacities(gpu: Gpu) -> dict[str, dict[str, Any]]:
    """Capacities of a shared GPU, as ``slices.build`` publishes them under a policy that says no more than how."""
    span = {"min": "1", "max": "100", "step": "1"}
    found: dict[str, dict[str, Any]] = {
        "computePercent": {"value": "100", "requestPolicy": {"default": "100", "validRange": span}}
    }
    if gpu.memory_bytes is not None:
        total = str(Quantity.from_bytes(gpu.memory_bytes // 2**20 * 2**20))
        span = {"min": "1Mi", "max": total, "step": "1Mi"}
        found["memory"] = {"value": total, "requestPolicy": {"default": total, "validRange": span}}
    return found


def _capacities(profile: catalog.CatalogProfile) -> dict[str, Any]:
    engines = profile.engines
    return {
        "memory": None if profile.memory_mib is None else Quantity.from_bytes(profile.memory_mib * 2**20),
        "multiprocessors": profile.multiprocessors,
        "copyEngines": engines.copy,
        "decoders": engines.decoder,
        "encoders": engines.encoder,
        "jpegEngines": engines.jpeg,
        "ofaEngines": engines.ofa,
    }


def _greatest(profiles: Sequence[catalog.CatalogProfile]) -> dict[str, dict[str, Any]]:
    """Of each number but memory the most that any profile has."""
    found: dict[str, int] = {}
    for profile in profiles:
        numbers = {name: value for name, value in _capacities(profile).items() if name != "memory"}
        found |= {name: max(value, found.get(name, 0)) for name, value in numbers.items() if value is not None}
    return {name: {"value": str(value)} for name, value in found.items()}


def _device(
    label: str, attributes: Any, capacity: Any, *, model: str, gigabytes: int | None, per_gpu: int,
    unsure: frozenset[str] = frozenset(), shared: bool = False,
) -> KnownDevice:  # fmt: skip
    # The catalog says of few boards how they address host memory; the driver and the kernel decide it anyway.
    attributes = {"addressingMode": {"string": "None"}, **attributes}
    wire = {"name": "gpu-0", "attributes": attributes, "capacity": capacity}
    if shared:
        wire["allowMultipleAllocations"] = True
    return KnownDevice(
        driver=DRIVER,
        label=label,
        wire=wire,
        view=DeviceView(DRIVER, wire),
        varying=VARYING,
        unsure=unsure,
        extremes=_extremes(wire) if "memory" in unsure else (),
        label_gigabytes=gigabytes,
        shared=shared,
        model=model,
        per_gpu=per_gpu,
    )


def _extremes(wire: Mapping[str, Any]) -> tuple[DeviceView, ...]:
    capacities = ({**wire["capacity"], "memory": {"value": value}} for value in ("1Gi", LARGEST_MEMORY))
    return tuple(DeviceView(DRIVER, {**wire, "capacity": capacity}) for capacity in capacities)


def _bare(device: KnownDevice) -> KnownDevice:
    attributes = {name: value for name, value in device.wire["attributes"].items() if name not in OPTIONAL}
    wire = {**device.wire, "attributes": attributes}
    label = f"{device.label} on some machines"
    return KnownDevice(
        driver=DRIVER, label=label, wire=wire, view=DeviceView(DRIVER, wire), varying=VARYING, bare=True,
        unsure=device.unsure,
    )  # fmt: skip


def _gigabytes(name: str) -> int | None:
    found = _LABEL.search(name)
    return int(found[1]) if found else None
