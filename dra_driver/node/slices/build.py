"""Builds the devices and counter sets of a node.

Pure: a snapshot, terms and the API server's features in, wire objects out.
"""

from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.kube.names import is_pool_name, is_subdomain
from dra_driver.kube.published import in_order, islands_of
from dra_driver.kube.types import CounterSet, Device
from dra_driver.node.slices.devices import GpuDevices
from dra_driver.node.slices.forms import forms_of
from dra_driver.node.slices.gates import NO_FEATURES, ApiServerFeatures

MAX_DRIVER_NAME = 63
NO_TERMS: Final[Terms] = MappingProxyType({})
"""The default terms for every GPU."""


class GpuGroup(Struct, frozen=True, kw_only=True):
    """The devices of one GPU, which stay together in one ResourceSlice.

    ``max_devices`` is how many devices the GPU may get later without moving other GPUs to other ResourceSlices.
    """

    devices: tuple[Device, ...] = ()
    counter_set: CounterSet | None = None
    max_devices: int = 1


class Built(Struct, frozen=True, kw_only=True):
    """What a node publishes, GPUs in the order of `published.in_order`, and what it does not publish, with reasons.

    Wire objects share parts with each other and must not be changed.
    """

    groups: tuple[GpuGroup, ...] = ()
    left_out: tuple[LeftOutGpu, ...] = ()

    @property
    def devices(self) -> list[Device]:
        return [device for group in self.groups for device in group.devices]

    @property
    def counter_sets(self) -> list[CounterSet]:
        """All counter sets: those of GPUs that offer partitions."""
        return [group.counter_set for group in self.groups if group.counter_set is not None]


def build_devices(snapshot: Snapshot, terms: Terms = NO_TERMS, features: ApiServerFeatures = NO_FEATURES) -> Built:
    """What is published. Without ``features``, nothing that needs a gated field."""
    groups: list[GpuGroup] = []
    left_out: list[LeftOutGpu] = []
    taken: dict[DeviceName, Gpu] = {}
    islands = islands_of(snapshot.gpus)
    for gpu in sorted(snapshot.gpus, key=lambda gpu: gpu.minor):
        other = taken.setdefault(gpu.device_name, gpu)
        if other is not gpu:
            reason = f"{gpu.device_name} is taken by {other.uuid}, which reports the same minor number"
            left_out.append(LeftOutGpu(label=gpu.uuid, reason=reason))
    for gpu in in_order(taken.values(), islands):
        agreed = terms_of(terms, gpu.uuid)
        forms = forms_of(gpu, agreed, features)
        built = GpuDevices(gpu, snapshot, agreed, forms, features, island=islands.get(gpu.uuid))
        devices = built.build()
        groups.append(GpuGroup(devices=devices, counter_set=built.counter_set, max_devices=forms.max_devices))
        left_out += [LeftOutGpu(label=gpu.uuid, reason=reason) for reason in (*forms.reasons, *built.notes)]
    return Built(groups=tuple(groups), left_out=tuple(left_out))


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
