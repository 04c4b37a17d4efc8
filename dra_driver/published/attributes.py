"""What is said about a GPU and its partitions beside numbers: the attributes that selectors look at.

Pure. Owns names and types. They are those of NVIDIA's DRA driver, so that DeviceClasses, CEL selectors and dashboards
written for it work unchanged, plus ``resource.kubernetes.io/numaNode``, where a partition lies (``placementStart``,
``placementSize``), how a GPU is shared (``sharingStrategy``) and what a policy adds. Refuses to know which devices
there are (``forms.py``).

Limits: see ``limits.py``; versions are strict semver 2.0.0. A value that breaks one would make the whole slice invalid,
so no value leaves this file unchecked.
"""

from collections.abc import Mapping

from dra_driver.kube.types import DeviceAttribute
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.mig import MigInstance
from dra_driver.model.terms import AttributeValue
from dra_driver.published.limits import MAX_STRING_BYTES, fits, is_attribute_name, is_attribute_value
from dra_driver.semver import from_loose

# Attributes that several drivers publish under the same name, so that a claim can ask for a GPU and a NIC that match
# (kubernetes/dynamic-resource-allocation deviceattribute). numaNode is standard from 1.37 (KEP-6072); as a plain int
# it is an attribute like any other to every API server from 1.34 on, so it is always published.
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"

# Nobody else may give these a meaning, in whatever domain: ``gpu.nvidia.com/uuid`` is ``uuid`` to a selector.
STANDARD = frozenset(
    {"type", "uuid", "parentUUID", "profile", "placementStart", "placementSize", "sharingStrategy"}
    | {"productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"}
    | {"addressingMode", "pciBusID", "pcieRoot", "numaNode"}
)

Attributes = dict[str, DeviceAttribute]


def board(gpu: Gpu, snapshot: Snapshot) -> Attributes:
    """What a GPU and all its partitions have in common. What the hardware does not tell is absent."""
    found = {
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
    return _present(found)


def of_whole(gpu: Gpu, common: Attributes, strategy: str | None) -> Attributes:
    """Those of the whole GPU; ``strategy`` is set where several claims may have it at once."""
    own = {"type": _identifier("gpu"), "uuid": _identifier(gpu.uuid), "sharingStrategy": _identifier(strategy)}
    return {**_present(own), **common}


def of_profile(gpu: Gpu, profile: str, size: int, common: Attributes) -> Attributes:
    """What all partitions of one profile have in common; ``size`` is in memory slices."""
    own = {
        "type": _identifier("mig"),
        "parentUUID": _identifier(gpu.uuid),
        "profile": _identifier(profile),
        "placementSize": DeviceAttribute(int=size),
    }
    return {**_present(own), **common}


def of_partition(start: int, shared: Attributes, foreign_instance: MigInstance | None = None) -> Attributes:
    """Those of one partition; ``foreign_instance`` is the instance of somebody else, whose UUID is known and stays."""
    found: Attributes = {**shared, "placementStart": DeviceAttribute(int=start)}
    uuid = None
    if foreign_instance is not None and foreign_instance.device is not None:
        uuid = _identifier(foreign_instance.device.uuid)
    if uuid is not None:
        found["uuid"] = uuid
    return found


def added(wanted: Mapping[str, AttributeValue]) -> tuple[Attributes, tuple[str, ...]]:
    """What a policy adds, in order of name, and the names that cannot be published: bad, or standard ones."""
    found: Attributes = {}
    refused = []
    for name, value in sorted(wanted.items()):
        if is_attribute_name(name) and name.rpartition("/")[2] not in STANDARD and is_attribute_value(value):
            found[name] = _value(value)
        else:
            refused.append(name)
    return found, tuple(refused)


def _value(value: AttributeValue) -> DeviceAttribute:
    if isinstance(value, bool):  # before int, which a bool is to Python
        return DeviceAttribute(bool=value)
    return DeviceAttribute(int=value) if isinstance(value, int) else DeviceAttribute(string=value)


def _present(found: Mapping[str, DeviceAttribute | None]) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}


def _identifier(value: str | None) -> DeviceAttribute | None:
    """Absent when it is too long: half an identifier names something else."""
    return DeviceAttribute(string=value) if value and fits(value) else None


def _text(value: str | None) -> DeviceAttribute | None:
    """Cut between characters when it is too long: selectors look at how a product name begins."""
    if not value:
        return None
    cut = value.encode("utf-8", "replace")[:MAX_STRING_BYTES].decode("utf-8", "ignore")
    return DeviceAttribute(string=cut)


def _version(value: str | None) -> DeviceAttribute | None:
    """``580.65.06`` becomes ``580.65.6``: leading zeros are not semver. Absent when nothing sensible is left."""
    version = from_loose(value) if value else None
    return DeviceAttribute(version=version) if version and fits(version) else None


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"
