"""What is said about a GPU in a ResourceSlice: its name, attributes and capacity.

Pure: a snapshot in, wire devices out. Owns names and types of what is published. They are those of NVIDIA's DRA
driver, so that DeviceClasses, CEL selectors and dashboards written for it work unchanged, plus
``resource.kubernetes.io/numaNode``. Refuses to know slices and pools (``layout.py``) and the API server.

Limits: names are C identifiers of at most 32 characters, strings and versions at most 64 bytes, versions strict
semver 2.0.0 (kubernetes/kubernetes pkg/apis/resource/validation/validation.go). A value that breaks a limit would
make the whole slice invalid, so no value leaves this file unchecked.
"""

from collections.abc import Iterator

from dra_driver.errors import ConfigurationError
from dra_driver.kube.names import is_pool_name, is_subdomain
from dra_driver.kube.types import Device, DeviceAttribute, DeviceCapacity
from dra_driver.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.model.ids import PoolName
from dra_driver.quantity import Quantity
from dra_driver.semver import from_loose

MAX_STRING_BYTES = 64
MAX_DRIVER_NAME = 63

# Attributes that several drivers publish under the same name, so that a claim can ask for a GPU and a NIC that match
# (kubernetes/dynamic-resource-allocation deviceattribute). numaNode is standard from 1.37 (KEP-6072); as a plain int
# it is an attribute like any other to every API server from 1.34 on, so it is always published.
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"


def build_devices(snapshot: Snapshot) -> list[Device]:
    """The devices of a node in order of ``minor``, which is also the order in which the scheduler tries them (1.36).

    GPUs that ``unpublished`` names are not among them.
    """
    refused = {id(gpu) for gpu, _ in _refused(snapshot)}
    return [_gpu_device(gpu, snapshot) for gpu in _in_order(snapshot) if id(gpu) not in refused]


def unpublished(snapshot: Snapshot) -> tuple[LeftOutGpu, ...]:
    """GPUs of the snapshot that are not offered, each with the reason a node's owner should read."""
    return tuple(LeftOutGpu(label=gpu.uuid, reason=reason) for gpu, reason in _refused(snapshot))


def pool_name(node: str, driver: str) -> PoolName:
    """``<node>/<driver>``: unique over drivers, because schedulers up to 1.36.2 keep counters by pool name alone.

    Raises ConfigurationError when one of the names cannot be part of a pool name.
    """
    if not is_subdomain(driver) or len(driver) > MAX_DRIVER_NAME:
        raise ConfigurationError(
            f"driver name {driver!r}: expected a DNS subdomain of at most {MAX_DRIVER_NAME} characters, "
            "like gpu.nvidia.com"
        )
    if not is_subdomain(node):
        raise ConfigurationError(f"node name {node!r}: expected the name of a Node object, which is a DNS subdomain")
    name = f"{node}/{driver}"
    if not is_pool_name(name):
        raise ConfigurationError(f"pool name {name!r} is {len(name)} characters long, at most 253 are allowed")
    return PoolName(name)


def _in_order(snapshot: Snapshot) -> list[Gpu]:
    return sorted(snapshot.gpus, key=lambda gpu: gpu.minor)


def _refused(snapshot: Snapshot) -> Iterator[tuple[Gpu, str]]:
    taken: dict[str, Gpu] = {}
    for gpu in _in_order(snapshot):
        if gpu.mig_enabled:
            # In MIG mode the whole GPU runs nothing: only its instances do.
            yield gpu, f"{gpu.device_name} is in MIG mode, so it cannot be used whole; turn MIG mode off to offer it"
        elif (other := taken.get(gpu.device_name)) is not None:
            yield gpu, f"{gpu.device_name} is taken by {other.uuid}, which reports the same minor number"
        else:
            taken[gpu.device_name] = gpu


def _gpu_device(gpu: Gpu, snapshot: Snapshot) -> Device:
    device: Device = {"name": gpu.device_name, "attributes": _attributes(gpu, snapshot)}
    if gpu.memory_bytes is not None and gpu.memory_bytes > 0:
        device["capacity"] = {"memory": DeviceCapacity(value=str(Quantity.from_bytes(gpu.memory_bytes)))}
    return device


def _attributes(gpu: Gpu, snapshot: Snapshot) -> dict[str, DeviceAttribute]:
    found = {
        "type": _identifier("gpu"),
        "uuid": _identifier(gpu.uuid),
        "productName": _text(gpu.product_name),
        "brand": _text(gpu.brand),
        "architecture": _text(gpu.architecture),
        "cudaComputeCapability": _version(_dotted(gpu.cuda_compute_capability)),
        "driverVersion": _version(snapshot.driver_version),
        "cudaDriverVersion": _version(_dotted(snapshot.cuda_driver_version)),
        "addressingMode": _text(gpu.addressing_mode),
        PCI_BUS_ID: _identifier(gpu.pci_bus_id),
        PCIE_ROOT: _identifier(gpu.pcie_root),
        NUMA_NODE: None if gpu.numa_node is None or gpu.numa_node < 0 else DeviceAttribute(int=gpu.numa_node),
    }
    return {name: value for name, value in found.items() if value is not None}


def _identifier(value: str | None) -> DeviceAttribute | None:
    """Absent when it is too long: half an identifier names something else."""
    return DeviceAttribute(string=value) if value and len(value.encode()) <= MAX_STRING_BYTES else None


def _text(value: str | None) -> DeviceAttribute | None:
    """Cut between characters when it is too long: selectors look at how a product name begins."""
    if not value:
        return None
    cut = value.encode("utf-8", "replace")[:MAX_STRING_BYTES].decode("utf-8", "ignore")
    return DeviceAttribute(string=cut)


def _version(value: str | None) -> DeviceAttribute | None:
    """``580.65.06`` becomes ``580.65.6``: leading zeros are not semver. Absent when nothing sensible is left."""
    version = from_loose(value) if value else None
    return DeviceAttribute(version=version) if version and len(version.encode()) <= MAX_STRING_BYTES else None


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"
