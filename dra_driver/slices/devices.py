"""The devices of one GPU as wire objects.

Pure. Owns how attributes, capacities, counters and taints are put together, and that no device has more of them than
the API server takes. Refuses to know which forms are published (``forms.py``) and what slices are (``layout.py``).

A node with eight GPUs has hundreds of devices that say nearly the same, so they share what they have in common: what
this file returns is never changed by anybody.
"""

from collections.abc import Iterator

from dra_driver.kube.types import Counter, CounterSet, Device, DeviceCapacity, DeviceCounterConsumption, DeviceTaint
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.mig import MigInstance, MigProfile, partition_name
from dra_driver.model.terms import GpuTerms
from dra_driver.published import attributes, shares
from dra_driver.published.limits import MAX_ATTRIBUTES_AND_CAPACITIES
from dra_driver.quantity import Quantity
from dra_driver.slices import counters
from dra_driver.slices.forms import Forms
from dra_driver.slices.gates import ApiServerFeatures


class GpuDevices:
    """Builds the devices of one GPU. ``notes`` are sentences about what did not fit, complete after ``build``."""

    def __init__(
        self, gpu: Gpu, snapshot: Snapshot, terms: GpuTerms, forms: Forms, features: ApiServerFeatures
    ) -> None:
        self._gpu, self._forms = gpu, forms
        self._board = attributes.board(gpu, snapshot)
        self._extra, refused = attributes.added(terms.attributes)
        self._taints = [_taint(taint.key, taint.value, taint.effect) for taint in terms.taints if features.taints]
        self.counter_set: CounterSet | None = counters.wire_set(gpu, forms.left) if forms.placements else None
        self._left_out: set[str] = set(refused)
        self._policy = terms.policy

    def build(self) -> tuple[Device, ...]:
        """In the order in which the scheduler is to try them (1.36: devices are tried as they are listed)."""
        return tuple(self._devices())

    @property
    def notes(self) -> tuple[str, ...]:
        """Empty when everything is published that was wanted."""
        if not self._left_out:
            return ()
        names = ", ".join(repr(name[:MAX_NAME_SHOWN]) for name in sorted(self._left_out)[:4])
        return (
            f"attributes that policy {self._policy} adds to {self._gpu.device_name} are left out: {names}; a name is a "
            "C identifier that the driver does not use itself, a text has at most 64 bytes, and a device has room for "
            f"{MAX_ATTRIBUTES_AND_CAPACITIES} attributes and capacities",
        )

    def _devices(self) -> Iterator[Device]:
        for instance in self._forms.foreign_instances:
            yield self._foreign_device(instance)
        if self._forms.whole:
            yield self._whole()
        yield from self._placements()

    def _whole(self) -> Device:
        gpu, sharing = self._gpu, self._forms.sharing
        found = attributes.of_whole(gpu, self._board, sharing.strategy.value if sharing is not None else None)
        device = self._device(gpu.device_name, found, self._capacity_of_whole())
        if self.counter_set is not None:
            device["consumesCounters"] = self._consumes(self.counter_set["counters"])
        if sharing is not None:
            device["allowMultipleAllocations"] = True
        return device

    def _capacity_of_whole(self) -> dict[str, DeviceCapacity]:
        """Beside partitions it has what they have, so that a selector which compares it fails on neither.

        Not where it is shared: the first share consumes all of a capacity without a request policy (types.go,
        DeviceCapacity.requestPolicy), and no second would fit.
        """
        gpu, sharing = self._gpu, self._forms.sharing
        if sharing is not None:
            return shares.capacity_of(gpu.memory_bytes, sharing)
        return {**(counters.greatest_capacity(gpu) if self._forms.placements else {}), **_memory_of(gpu)}

    def _placements(self) -> Iterator[Device]:
        common: dict[int, tuple[attributes.Attributes, dict[str, DeviceCapacity], dict[str, Counter]]] = {}
        for profile, start in self._forms.placements:
            known = common.get(profile.profile_id)
            if known is None:
                known = common[profile.profile_id] = self._common(profile)
            described, capacity, taken = known
            device = self._device(self._name(profile.name, profile.profile_id, start),
                                  attributes.of_partition(start, described), capacity)  # fmt: skip
            device["consumesCounters"] = self._consumes(
                {**taken, **counters.memory_slices_taken(start, profile.memory_slices)}
            )
            yield device

    def _common(
        self, profile: MigProfile
    ) -> tuple[attributes.Attributes, dict[str, DeviceCapacity], dict[str, Counter]]:
        described = attributes.of_profile(self._gpu, profile.name, profile.memory_slices, self._board)
        taken = counters.consumed_by(profile, self.counter_set) if self.counter_set is not None else {}
        return described, counters.capacity_of(profile), taken

    def _foreign_device(self, instance: MigInstance) -> Device:
        """Somebody else's partition: with its UUID, and without counters, as what it has is not in the set."""
        profile = counters.profile_of(self._gpu, instance)
        shared = attributes.of_profile(self._gpu, instance.profile_name, instance.size, self._board)
        found = attributes.of_partition(instance.start, shared, instance)
        capacity = counters.capacity_of(profile) if profile is not None else {}
        slices = counters.memory_slice_capacity(instance.start, instance.size)
        if len(found) + len(capacity) + len(slices) <= MAX_ATTRIBUTES_AND_CAPACITIES:
            capacity |= (
                slices  # of boards with twelve memory slices the widest have no room; the placement says it, too
            )
        name = self._name(instance.profile_name, instance.profile_id, instance.start)
        return self._device(name, found, capacity)

    def _name(self, profile_name: str, profile_id: int, start: int) -> str:
        return partition_name(self._gpu.minor, profile_name, profile_id, start)

    def _device(self, name: str, found: attributes.Attributes, capacity: dict[str, DeviceCapacity]) -> Device:
        if self._extra:
            left = MAX_ATTRIBUTES_AND_CAPACITIES - len(found) - len(capacity)
            self._left_out.update(list(self._extra)[left:])
            found = {**found, **dict(list(self._extra.items())[:left])}
        device = Device(name=name, attributes=found)
        if capacity:
            device["capacity"] = capacity
        if self._taints:
            device["taints"] = self._taints
        return device

    def _consumes(self, taken: dict[str, Counter]) -> list[DeviceCounterConsumption]:
        return [DeviceCounterConsumption(counterSet=counters.set_name(self._gpu), counters=taken)]


MAX_NAME_SHOWN = 80  # of a name that may be anything


def _memory_of(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """The real total: what a 7g instance has is less."""
    if gpu.memory_bytes is None or gpu.memory_bytes <= 0:
        return {}
    return {"memory": DeviceCapacity(value=str(Quantity.from_bytes(gpu.memory_bytes)))}


def _taint(key: str, value: str, effect: str) -> DeviceTaint:
    return DeviceTaint(key=key, value=value, effect=effect) if value else DeviceTaint(key=key, effect=effect)
