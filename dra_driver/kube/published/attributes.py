"""Attributes of a GPU and its partitions, each checked (`limits`): one invalid value makes the whole ResourceSlice
invalid. Versions are strict semver 2.0.0. Values that the hardware does not report are absent."""

from collections.abc import Mapping

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.mig import MigInstance
from dra_driver.core.model.terms import AttributeValue
from dra_driver.core.semver import from_loose
from dra_driver.kube.objects.resource import DeviceAttribute
from dra_driver.kube.published import names
from dra_driver.kube.published.islands import Island
from dra_driver.kube.published.limits import MAX_STRING_BYTES, fits, is_attribute_name, is_attribute_value

Attributes = dict[str, DeviceAttribute]


def board(gpu: Gpu, snapshot: Snapshot, *, lists: bool = False) -> Attributes:
    """The common attributes of a GPU and its partitions; ``snapshot`` has the driver's versions. ``lists``: the NUMA
    node is a list of one number, as NVIDIA's driver publishes it behind DRAListTypeAttributes."""
    mode = snapshot.confidential_compute
    found = {
        names.PRODUCT_NAME: _text(gpu.product_name),
        names.BRAND: _text(gpu.brand),
        names.ARCHITECTURE: _text(gpu.architecture),
        names.COMPUTE_CAPABILITY: _version(_dotted(gpu.cuda_compute_capability)),
        names.DRIVER_VERSION: _version(snapshot.driver_version),
        names.CUDA_DRIVER_VERSION: _version(_dotted(snapshot.cuda_driver_version)),
        names.ADDRESSING_MODE: _text(gpu.addressing_mode),
        names.PCI_BUS_ID: _identifier(gpu.pci_bus_id),
        names.PCIE_ROOT: _identifier(gpu.pcie_root),
        names.CONFIDENTIAL_COMPUTE: _identifier(mode.value if mode else None),
        names.NUMA_NODE: _numa_node(gpu.numa_node, lists=lists),
    }
    return _present(found)


def _numa_node(node: int | None, *, lists: bool) -> DeviceAttribute | None:
    if node is None or node < 0:
        return None
    return DeviceAttribute(ints=(node,)) if lists else DeviceAttribute(int_=node)


def of_whole(gpu: Gpu, common: Attributes, strategy: str | None, island: Island | None = None) -> Attributes:
    """The attributes of the whole GPU. ``strategy`` is set where several claims share it. Only the whole GPU has
    NVLinks (NVIDIA's MIG guide: no GPU-to-GPU P2P)."""
    own = {
        names.TYPE: _identifier(names.TYPE_GPU),
        names.UUID: _identifier(gpu.uuid),
        names.SHARING_STRATEGY: _identifier(strategy),
    }
    return {**_present(own), **common, **_present(_nvlink(gpu, island))}


def of_monitor(gpu: Gpu, whole: Attributes) -> Attributes:
    """Return the attributes of the device for admin access: the attributes of the whole GPU with another type."""
    own = {names.TYPE: _identifier(names.TYPE_MONITOR), names.PARENT_UUID: _identifier(gpu.uuid)}
    return {**whole, **_present(own)}


def _nvlink(gpu: Gpu, island: Island | None) -> Mapping[str, DeviceAttribute | None]:
    return {
        names.NVLINK_ISLAND: None if island is None else _identifier(island.name),
        names.NVLINK_ISLAND_SIZE: None if island is None else DeviceAttribute(int_=len(island.members)),
        names.NVLINK_TYPE: None if island is None else _identifier(island.kind),
        names.CLIQUE: _identifier(gpu.nvlinks.clique),
    }


def of_profile(gpu: Gpu, profile: str, size: int, common: Attributes, strategy: str | None = None) -> Attributes:
    """The attributes that all partitions of one profile have in common. ``size`` is in memory slices; ``strategy``
    shares them."""
    own = {
        names.TYPE: _identifier(names.TYPE_MIG),
        names.PARENT_UUID: _identifier(gpu.uuid),
        names.PROFILE: _identifier(profile),
        names.PLACEMENT_SIZE: DeviceAttribute(int_=size),
        names.SHARING_STRATEGY: _identifier(strategy),
    }
    return {**_present(own), **common}


def of_partition(start: int, shared: Attributes, foreign_instance: MigInstance | None = None) -> Attributes:
    """Return the attributes of one partition; ``shared``: the attributes of its profile. ``foreign_instance``: one that
    this driver did not create: its UUID exists and does not change."""
    found: Attributes = {**shared, names.PLACEMENT_START: DeviceAttribute(int_=start)}
    uuid = None
    if foreign_instance is not None and foreign_instance.device is not None:
        uuid = _identifier(foreign_instance.device.uuid)
    if uuid is not None:
        found[names.UUID] = uuid
    return found


def added(wanted: Mapping[str, AttributeValue]) -> tuple[Attributes, tuple[str, ...]]:
    """Attributes that a policy adds, the rail first and others by name: a device may have no room for the last. Also
    returns the names that cannot be published: invalid or reserved."""
    found: Attributes = {}
    refused = []
    for name, value in sorted(wanted.items(), key=lambda item: (item[0] != names.RAIL, item[0])):
        if is_attribute_name(name) and name.rpartition("/")[2] not in names.RESERVED and is_attribute_value(value):
            found[name] = _value(value)
        else:
            refused.append(name)
    return found, tuple(refused)


def _value(value: AttributeValue) -> DeviceAttribute:
    if isinstance(value, bool):  # before int: a bool is an int in Python
        return DeviceAttribute(bool_=value)
    return DeviceAttribute(int_=value) if isinstance(value, int) else DeviceAttribute(string=value)


def _present(found: Mapping[str, DeviceAttribute | None]) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}


def _identifier(value: str | None) -> DeviceAttribute | None:
    """None when it is too long: half an identifier names another object."""
    return DeviceAttribute(string=value) if value and fits(value) else None


def _text(value: str | None) -> DeviceAttribute | None:
    """Cut between characters when it is too long: selectors compare the beginning of a product name."""
    if not value:
        return None
    cut = value.encode("utf-8", "replace")[:MAX_STRING_BYTES].decode("utf-8", "ignore")
    return DeviceAttribute(string=cut)


def _version(value: str | None) -> DeviceAttribute | None:
    """``580.65.06`` becomes ``580.65.6``: leading zeros are not semver. None when no version remains."""
    version = from_loose(value) if value else None
    return DeviceAttribute(version=version) if version and fits(version) else None


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"
