"""Published devices, without counters, taints and attributes of a policy: a whole GPU, shared or not, and partitions.
Devices share parts with each other, so callers must not change their dicts."""

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MONITOR_SUFFIX, MigInstance, MigProfile, partition_name
from dra_driver.core.model.terms import SharingTerms
from dra_driver.kube.objects.resource import Device, DeviceCapacity, NodeAllocatableOverhead, NodeAllocatableResource
from dra_driver.kube.published import attributes, shares
from dra_driver.kube.published.attributes import Attributes
from dra_driver.kube.published.islands import Island
from dra_driver.kube.published.limits import MAX_ATTRIBUTES_AND_CAPACITIES


def memory_overhead(amount: str) -> NodeAllocatableResource:
    """Memory of the node that the scheduler and the kubelet of Kubernetes 1.37 add to each pod with the device."""
    return NodeAllocatableResource(overhead=NodeAllocatableOverhead(per_pod=amount))


class ProfileParts(Struct, frozen=True, kw_only=True):
    """Common values of all partitions of one profile of one GPU."""

    profile: MigProfile
    attributes: Attributes
    capacity: dict[str, DeviceCapacity]
    shared: bool = False


def whole_gpu(
    gpu: Gpu, board: Attributes, sharing: SharingTerms | None, *, beside_partitions: bool, island: Island | None = None
) -> Device:
    """The whole GPU; ``board`` is from `attributes.board`. Under ``sharing`` it has only the capacities of shares: the
    first share would consume all of a capacity without a request policy (types.go, DeviceCapacity.requestPolicy).
    ``beside_partitions`` as in `shares.of_whole`."""
    if sharing is None:
        capacity = shares.of_whole(gpu, beside_partitions=beside_partitions)
        return Device(name=gpu.device_name, attributes=attributes.of_whole(gpu, board, None, island), capacity=capacity)
    described = attributes.of_whole(gpu, board, sharing.strategy.value, island)
    return Device(
        name=gpu.device_name,
        attributes=described,
        capacity=shares.capacity_of(gpu, sharing),
        allow_multiple_allocations=True,
    )


def monitor(gpu: Gpu, exclusive: Device) -> Device:
    """The device of the GPU for admin access only. It has what ``exclusive``, the whole GPU, has: an expression that
    reads a missing attribute or capacity fails the allocation of its claim on every node."""
    name = f"{gpu.device_name}{MONITOR_SUFFIX}"
    return replace(exclusive, name=name, attributes=attributes.of_monitor(gpu, exclusive.attributes))


def profile_parts(
    gpu: Gpu, profile: MigProfile, board: Attributes, sharing: SharingTerms | None = None
) -> ProfileParts:
    described = attributes.of_profile(gpu, profile.name, profile.memory_slices, board, _strategy(sharing))
    capacity = shares.of_profile(profile) if sharing is None else shares.of_shared_profile(gpu, profile, sharing)
    return ProfileParts(profile=profile, attributes=described, capacity=capacity, shared=sharing is not None)


def _strategy(sharing: SharingTerms | None) -> str | None:
    return None if sharing is None else sharing.strategy.value


def placement(gpu: Gpu, parts: ProfileParts, start: int) -> Device:
    name = partition_name(gpu.minor, parts.profile.name, parts.profile.profile_id, start)
    described = attributes.of_partition(start, parts.attributes)
    return Device(name=name, attributes=described, capacity=parts.capacity, allow_multiple_allocations=parts.shared)


def foreign_partition(
    gpu: Gpu, instance: MigInstance, profile: MigProfile, board: Attributes, sharing: SharingTerms | None = None
) -> Device:
    """A partition that this driver did not create, with its UUID; ``profile`` gives its size."""
    parts = profile_parts(gpu, profile, board, sharing)
    shared = attributes.of_profile(gpu, instance.profile_name, instance.size, board, _strategy(sharing))
    described = attributes.of_partition(instance.start, shared, instance)
    capacity = dict(parts.capacity)
    memory_slices = shares.memory_slices(instance.start, instance.size, shared=parts.shared)
    # The widest partitions of boards with twelve memory slices have no room for them; the placement has the same facts.
    if len(described) + len(capacity) + len(memory_slices) <= MAX_ATTRIBUTES_AND_CAPACITIES:
        capacity |= memory_slices
    name = partition_name(gpu.minor, instance.profile_name, instance.profile_id, instance.start)
    return Device(name=name, attributes=described, capacity=capacity, allow_multiple_allocations=parts.shared)
