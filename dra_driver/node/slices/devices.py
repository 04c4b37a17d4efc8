"""The devices of one GPU as published: `published.devices` with counters, taints and a policy's attributes. Pure.

Devices share parts with each other, so no returned object may be changed.
"""

from collections.abc import Iterator

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms
from dra_driver.kube.published import Island, attributes, devices, limits
from dra_driver.kube.types import Counter, CounterSet, Device, DeviceCounterConsumption, DeviceTaint
from dra_driver.node.slices import counters
from dra_driver.node.slices.forms import Forms
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.taints import GpuTaints

MAX_NAME_SHOWN = 80  # characters; a policy's name for an attribute can have any length


class GpuDevices:
    """Builds the devices of one GPU. ``notes`` are sentences about what did not fit, complete after ``build``."""

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
        self._policy = terms.policy

    def build(self) -> tuple[Device, ...]:
        """The devices in the order in which the scheduler is to try them (1.36: in the order of the list)."""
        return tuple(self._devices())

    @property
    def notes(self) -> tuple[str, ...]:
        """Empty when everything that the terms ask for is published."""
        if not self._left_out:
            return ()
        names = ", ".join(repr(name[:MAX_NAME_SHOWN]) for name in sorted(self._left_out)[:4])
        return (
            f"attributes that policy {self._policy} adds to {self._gpu.device_name} are left out: {names}; a name is a "
            "C identifier that the driver does not use itself, a text has at most 64 bytes, and a device has room for "
            f"{limits.MAX_ATTRIBUTES_AND_CAPACITIES} attributes and capacities",
        )

    def _devices(self) -> Iterator[Device]:
        for instance in self._forms.foreign_instances:
            profile = counters.profile_of(self._gpu, instance)
            partition = devices.foreign_partition(self._gpu, instance, profile, self._board)
            place = PartitionId(self._gpu.uuid, instance.profile_id, instance.start)
            # Without counters: the counter set does not have what the instance uses.
            yield self._finished(partition, None, self._taints.of(place))
        if self._forms.whole:
            yield self._whole()
        yield from self._placements()

    def _whole(self) -> Device:
        gpu, forms = self._gpu, self._forms
        device = devices.whole_gpu(
            gpu, self._board, forms.sharing, beside_partitions=bool(forms.placements), island=self._island
        )
        taken = self.counter_set["counters"] if self.counter_set is not None else None
        return self._finished(device, taken, self._taints.whole)

    def _placements(self) -> Iterator[Device]:
        common: dict[int, tuple[devices.ProfileParts, dict[str, Counter]]] = {}
        for profile, start in self._forms.placements:
            if profile.profile_id not in common:
                shared = counters.consumed_by(profile, self.counter_set) if self.counter_set is not None else {}
                common[profile.profile_id] = devices.profile_parts(self._gpu, profile, self._board), shared
            parts, taken = common[profile.profile_id]
            device = devices.placement(self._gpu, parts, start)
            withheld = (profile, start) in self._forms.withheld
            taints = self._taints.of(PartitionId(self._gpu.uuid, profile.profile_id, start), withheld=withheld)
            yield self._finished(
                device, {**taken, **counters.memory_slices_taken(start, profile.memory_slices)}, taints
            )

    def _finished(self, device: Device, taken: dict[str, Counter] | None, taints: list[DeviceTaint]) -> Device:
        """The device with the policy's attributes, its taints and, unless None, the counters that it consumes."""
        found, capacity = device["attributes"], device.get("capacity", {})
        if self._extra:
            left = limits.MAX_ATTRIBUTES_AND_CAPACITIES - len(found) - len(capacity)
            self._left_out.update(list(self._extra)[left:])
            found = {**found, **dict(list(self._extra.items())[:left])}
        finished = Device(name=device["name"], attributes=found)
        if capacity:
            finished["capacity"] = capacity
        if taints:
            finished["taints"] = taints
        if taken is not None:
            finished["consumesCounters"] = [
                DeviceCounterConsumption(counterSet=counters.set_name(self._gpu), counters=taken)
            ]
        if "allowMultipleAllocations" in device:
            finished["allowMultipleAllocations"] = device["allowMultipleAllocations"]
        return finished
