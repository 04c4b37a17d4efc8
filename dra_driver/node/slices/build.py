"""Build the devices and counter sets of a node from a snapshot, terms and the API server's features. No I/O.

A device gets the taints of the GPU's terms (policy, drain, detach) and of its condition. When they do not all fit, the
strongest taint of the condition replaces the last one of the terms: an unhealthy device is never published as healthy.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Taint, Terms, terms_of
from dra_driver.core.quantity import Quantity
from dra_driver.kube.objects.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
)
from dra_driver.kube.published import Island, attributes, devices, in_order, islands_of, limits
from dra_driver.kube.shapes import is_pool_name, is_subdomain
from dra_driver.node.slices import counters
from dra_driver.node.slices.forms import Forms, blocks, forms_of
from dra_driver.node.slices.gates import NO_FEATURES, ApiServerFeatures

MAX_DRIVER_NAME = 63
MAX_NAME_SHOWN = 80  # characters; a policy's name for an attribute can have any length
NO_TERMS: Final[Terms] = MappingProxyType({})
"""The default terms for every GPU."""
MONITOR_TAINT: Final = Taint(key="gpu.dra-driver.io/monitor", effect="NoSchedule")
"""Keeps claims without admin access away. The node process also refuses to prepare them: any claim can tolerate it."""
_STRENGTH: Final = {"NoExecute": 0, "NoSchedule": 1, "None": 2}


class GpuTaints:
    """The taints of the devices of one GPU."""

    def __init__(self, terms: GpuTerms, features: ApiServerFeatures) -> None:
        self._terms, self._features = terms, features
        withheld = (terms.withheld.taint,) if terms.withheld is not None else ()
        self.whole = self._wire((*terms.taints, *terms.whole_taints), terms.condition_taints)
        self.monitor = self._wire((MONITOR_TAINT, *terms.taints), terms.condition_taints)
        self._common = self._wire(terms.taints, terms.condition_taints)
        self._withheld = self._wire((*terms.taints, *withheld), terms.condition_taints)

    def of(self, partition: PartitionId, *, withheld: bool = False) -> tuple[DeviceTaint, ...]:
        """The taints of a partition; ``withheld``: it does not exist and cannot be created now."""
        own = self._terms.partition_taints.get(partition)
        if own and not withheld:
            return self._wire(self._terms.taints, (*self._terms.condition_taints, *own))
        return self._withheld if withheld else self._common

    def _wire(self, asked: Sequence[Taint], condition: Iterable[Taint]) -> tuple[DeviceTaint, ...]:
        if not self._features.taints:
            return ()
        most = limits.MAX_TAINTS if self._features.taints_1_35 else limits.MAX_TAINTS_1_34
        kept = chosen(asked, condition, most, informational=self._features.taints_1_35)
        return tuple(
            DeviceTaint(key=each.key, effect=each.effect, value=each.value, time_added=each.time_added or "")
            for each in kept
        )


def chosen(asked: Sequence[Taint], condition: Iterable[Taint], most: int, *, informational: bool) -> tuple[Taint, ...]:
    """At most ``most`` taints: of the condition, the strongest per key; effect None only if ``informational``."""
    strongest: dict[str, Taint] = {}
    for taint in sorted(condition, key=lambda taint: _STRENGTH[taint.effect]):
        if informational or blocks(taint):
            strongest.setdefault(taint.key, taint)
    found = tuple(strongest.values())
    room = max(most - len(asked), sum(blocks(taint) for taint in found[:1]), 0)
    kept = found[:room]
    return (*asked[: most - len(kept)], *kept)


class GpuDevices:
    """Builds the devices of one GPU."""

    def __init__(
        self,
        gpu: Gpu,
        snapshot: Snapshot,
        terms: GpuTerms,
        forms: Forms,
        features: ApiServerFeatures,
        *,
        island: Island | None = None,
    ) -> None:
        self._gpu, self._forms, self._island = gpu, forms, island
        self._board = attributes.board(gpu, snapshot, lists=features.list_attributes)
        self._extra, refused = attributes.added(terms.attributes)
        self._taints = GpuTaints(terms, features)
        self.counter_set: CounterSet | None = counters.wire_set(gpu, forms.left) if forms.placements else None
        self._left_out: set[str] = set(refused)
        self._host_memory: dict[str, NodeAllocatableResource] = {}
        if terms.host_memory_bytes is not None and features.node_overhead:
            self._host_memory = {"memory": devices.memory_overhead(str(Quantity.from_bytes(terms.host_memory_bytes)))}
        self._terms, self._features = terms, features

    def build(self) -> tuple[Device, ...]:
        """The devices in the order in which the scheduler tries them (1.36: the order of the list)."""
        return tuple(self._devices())

    @property
    def notes(self) -> tuple[str, ...]:
        """The omitted devices, as messages; complete after ``build``."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self._terms.host_memory_bytes is not None and not self._features.node_overhead:
            yield (
                f"hostMemoryPerPod of policy {self._terms.policy} is not published for {self._gpu.device_name}: the API"
                " server does not keep it (Kubernetes 1.37, feature gate DRANodeAllocatableResources)"
            )
        if not self._left_out:
            return
        names = ", ".join(repr(name[:MAX_NAME_SHOWN]) for name in sorted(self._left_out)[:4])
        yield (
            f"attributes that policy {self._terms.policy} adds to {self._gpu.device_name} are left out: {names}; a name"
            " is a C identifier that the driver does not use itself, a text has at most 64 bytes, and a device has"
            f" room for {limits.MAX_ATTRIBUTES_AND_CAPACITIES} attributes and capacities"
        )

    def _devices(self) -> Iterator[Device]:
        for instance in self._forms.foreign_instances:
            profile = counters.profile_of(self._gpu, instance)
            place = PartitionId(self._gpu.uuid, instance.profile_id, instance.start)
            if profile is None:
                continue  # `forms_of` omits it
            partition = devices.foreign_partition(self._gpu, instance, profile, self._board, self._sharing_of(place))
            # Without counters: the counter set lacks the counters of the instance.
            yield self._finished(partition, None, self._taints.of(place))
        if self._forms.whole:
            yield self._whole()
        yield from self._placements()
        if self._forms.monitor:  # last: first-fit requests without a class reach it after all others
            monitor = self._finished(devices.monitor(self._gpu, self._described(None)), None, self._taints.monitor)
            yield replace(monitor, node_allocatable_resources={})

    def _described(self, sharing: SharingTerms | None) -> Device:
        beside = bool(self._forms.placements)
        return devices.whole_gpu(self._gpu, self._board, sharing, beside_partitions=beside, island=self._island)

    def _whole(self) -> Device:
        device = self._described(self._forms.sharing)
        taken = self.counter_set.counters if self.counter_set is not None else None
        return self._finished(device, taken, self._taints.whole)

    def _placements(self) -> Iterator[Device]:
        common: dict[tuple[int, SharingTerms | None], tuple[devices.ProfileParts, dict[str, Counter]]] = {}
        for profile, start in self._forms.placements:
            place = PartitionId(self._gpu.uuid, profile.profile_id, start)
            key = profile.profile_id, self._sharing_of(place)
            if key not in common:
                shared = counters.consumed_by(profile, self.counter_set) if self.counter_set is not None else {}
                common[key] = devices.profile_parts(self._gpu, profile, self._board, key[1]), shared
            parts, taken = common[key]
            device = devices.placement(self._gpu, parts, start)
            withheld = (profile, start) in self._forms.withheld
            taints = self._taints.of(place, withheld=withheld)
            yield self._finished(
                device, {**taken, **counters.memory_slices_taken(start, profile.memory_slices)}, taints
            )

    def _sharing_of(self, place: PartitionId) -> SharingTerms | None:
        return self._terms.sharing_of(place) if place in self._forms.shared else None

    def _finished(self, device: Device, taken: dict[str, Counter] | None, taints: tuple[DeviceTaint, ...]) -> Device:
        """The device with the policy's attributes, its taints and, unless None, its consumed counters."""
        found = device.attributes
        if self._extra:
            left = limits.MAX_ATTRIBUTES_AND_CAPACITIES - len(found) - len(device.capacity)
            self._left_out.update(list(self._extra)[left:])
            found = {**found, **dict(list(self._extra.items())[:left])}
        consumed: tuple[DeviceCounterConsumption, ...] = ()
        if taken is not None:
            consumed = (DeviceCounterConsumption(counter_set=counters.set_name(self._gpu), counters=taken),)
        return replace(
            device,
            attributes=found,
            taints=taints,
            consumes_counters=consumed,
            node_allocatable_resources=self._host_memory,
        )


class GpuGroup(Struct, frozen=True, kw_only=True):
    """The devices of one GPU, which stay together in one ResourceSlice.

    ``max_devices``: devices that the GPU may get later without moving other GPUs to other ResourceSlices.
    """

    devices: tuple[Device, ...] = ()
    counter_set: CounterSet | None = None
    max_devices: int = 1


class Built(Struct, frozen=True, kw_only=True):
    """The published devices of a node, GPUs in the order of `published.in_order`, and the unpublished, with reasons.

    Devices share parts with each other, so the dicts in them must not be changed.
    """

    groups: tuple[GpuGroup, ...] = ()
    left_out: tuple[LeftOutGpu, ...] = ()

    @property
    def devices(self) -> list[Device]:
        return [device for group in self.groups for device in group.devices]

    @property
    def counter_sets(self) -> list[CounterSet]:
        return [group.counter_set for group in self.groups if group.counter_set is not None]


def build_devices(snapshot: Snapshot, terms: Terms = NO_TERMS, features: ApiServerFeatures = NO_FEATURES) -> Built:
    """Build the published devices; without ``features``, nothing that needs a gated field."""
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
    """Return ``<node>/<driver>``: unique over drivers, because schedulers up to 1.36.2 keep counters by pool name only.

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
