"""Capacities of GPUs and partitions. Names and values match NVIDIA's DRA driver, except for the memory of a whole
GPU, which is its real total. Numbers that the hardware does not report are absent.

A shared GPU has consumable capacity (KEP-5075): memory and compute default to all of it; a policy may lower the
defaults. Its ``memory`` is NVML's total without `reserve`: shares that add up to the total would run out of memory
below their limits. The API server requires ``min`` <= ``default`` <= ``max`` <= value, ``default`` and ``max`` whole
steps above ``min``, and ``min`` + ``step`` <= value (pkg/apis/resource/validation), so memory is rounded down to whole
MiB.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.model.terms import SharingTerms, Strategy
from dra_driver.core.quantity import Quantity
from dra_driver.kube.objects.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_driver.kube.published.names import ALL_PERCENT, COMPUTE_PERCENT, MEMORY, SHARES


class Dimension(NamedTuple):
    """One number of a partition: the names of its capacity and its counter, and how to read it from a profile."""

    capacity: str
    counter: str
    read: Callable[[MigProfile], int | None]

    def of(self, profile: MigProfile) -> int | None:
        value = self.read(profile)
        return value if value is not None and value >= 0 else None


DIMENSIONS: Final = (
    Dimension("multiprocessors", "multiprocessors", lambda profile: profile.multiprocessors),
    Dimension("copyEngines", "copy-engines", lambda profile: profile.copy_engines),
    Dimension("decoders", "decoders", lambda profile: profile.decoders),
    Dimension("encoders", "encoders", lambda profile: profile.encoders),
    Dimension("jpegEngines", "jpeg-engines", lambda profile: profile.jpeg_engines),
    Dimension("ofaEngines", "ofa-engines", lambda profile: profile.ofa_engines),
    Dimension(MEMORY, MEMORY, lambda profile: profile.memory_bytes),
)
"""In the order in which they are published."""


def of_profile(profile: MigProfile) -> dict[str, DeviceCapacity]:
    known = ((each.capacity, each.of(profile)) for each in DIMENSIONS)
    return {name: DeviceCapacity(value=amount_text(name, value)) for name, value in known if value is not None}


def of_whole(gpu: Gpu, *, beside_partitions: bool) -> dict[str, DeviceCapacity]:
    """The capacities of a whole GPU that is not shared. ``beside_partitions``: it also has all capacities of the
    partitions published next to it, so that a selector finds them on both."""
    found = _greatest(gpu) if beside_partitions else {}
    if gpu.memory_bytes is not None and gpu.memory_bytes > 0:
        # The real total: a 7g instance has less.
        found[MEMORY] = DeviceCapacity(value=amount_text(MEMORY, gpu.memory_bytes))
    return found


def of_shared_profile(gpu: Gpu, profile: MigProfile, sharing: SharingTerms) -> dict[str, DeviceCapacity]:
    """The capacities of a shared partition. A share without a request consumes none of the engines, which all shares
    of the partition use in turns: without a default, the first share would consume them all."""
    engines = {name: _not_consumed(str(each.value)) for name, each in of_profile(profile).items()}
    return engines | capacity_of(memory_view(gpu, profile), sharing)


def memory_view(gpu: Gpu, profile: MigProfile | None) -> Gpu:
    """``gpu`` with the memory of one partition, of which the driver's reserve is not a part."""
    memory = profile.memory_bytes if profile is not None else None
    return replace(gpu, memory_bytes=memory, reserved_bytes=0)


def memory_slices(start: int, size: int, *, shared: bool = False) -> dict[str, DeviceCapacity]:
    """``memorySlice<i>`` of an existing partition, for claims that want two of the same or of other memory slices."""
    one = _not_consumed("1") if shared else DeviceCapacity(value="1")
    return {f"memorySlice{index}": one for index in range(start, start + size)}


def _not_consumed(value: str) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default="0", valid_range=CapacityRequestPolicyRange(min="0"))
    return DeviceCapacity(value=value, request_policy=policy)


def amount_text(name: str, value: int) -> str:
    """``value`` as it is published under ``name``, a capacity or a counter; memory is in bytes."""
    return str(Quantity.from_bytes(value)) if name == MEMORY else str(value)


def _greatest(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """For each number but memory, the greatest of all profiles, as NVIDIA's driver publishes it: 98 of 108
    multiprocessors of an A100."""
    found: dict[str, DeviceCapacity] = {}
    for each in DIMENSIONS:
        known = [value for profile in gpu.mig_profiles if (value := each.of(profile)) is not None]
        if known and each.capacity != MEMORY:
            found[each.capacity] = DeviceCapacity(value=amount_text(each.capacity, max(known)))
    return found


MIB: Final = 2**20  # the step of ``memory``, in bytes
_LEAST: Final = 2 * MIB  # the least ``memory`` for which a range is valid

MPS_SERVER_BYTES: Final = 64 * MIB
"""Memory reserved for the MPS server of a GPU. nvidia-smi reported 25, 27 and 30 MiB for it (a V100 in
nebuly-ai/nos#39, DCGM's documentation of dcgmproftester, Azure's of GPU sharing), however many clients it has. The
contexts of clients count against the clients' own limits (MPS documentation, "Volta MPS Device Memory Limit")."""

ESTIMATED_PERCENT: Final = 3
LEAST_ESTIMATE, MOST_ESTIMATE = 256 * MIB, 1024 * MIB
"""The driver's part where NVML does not report it (before R510). Reported were 393 MiB (T4, 2.6 %) to 834 MiB (A100
80GB, 1.0 %); KAI-Scheduler#2212 has 450 MiB (2.9 %) for a T4 and proposes 3 percent and at least 256Mi."""


def total_memory(gpu: Gpu) -> int | None:
    """All memory of a GPU in bytes that allocated shares may add up to, a multiple of `MIB`. None when ``memory`` is
    not published: the GPU reports none, or less than two steps."""
    memory = gpu.memory_bytes
    return None if memory is None or memory < _LEAST else memory // MIB * MIB


def reserve(gpu: Gpu, sharing: SharingTerms) -> int:
    """The bytes that shares cannot have: the policy's, else the needs of the driver and the MPS server, at most half of
    the memory."""
    if sharing.reserved_bytes is not None:
        return sharing.reserved_bytes
    memory = gpu.memory_bytes or 0
    estimate = min(max(memory * ESTIMATED_PERCENT // 100, LEAST_ESTIMATE), MOST_ESTIMATE)
    driver = estimate if gpu.reserved_bytes is None else gpu.reserved_bytes
    server = MPS_SERVER_BYTES if sharing.strategy is Strategy.MPS else 0
    return min(driver + server, memory // 2)


def shareable_memory(gpu: Gpu, sharing: SharingTerms) -> int | None:
    """Return the bytes that claims can request together, a multiple of `MIB`; None as in `total_memory`."""
    if total_memory(gpu) is None or gpu.memory_bytes is None:
        return None
    return max(_LEAST, (gpu.memory_bytes - reserve(gpu, sharing)) // MIB * MIB)


def default_memory(gpu: Gpu, sharing: SharingTerms) -> int | None:
    """Return the bytes of ``memory`` of a claim that does not request it, a multiple of `MIB`; None as in
    `total_memory`."""
    memory, share = shareable_memory(gpu, sharing), sharing.default_share
    if memory is None or share is None:
        return memory
    wanted = memory // share.parts // MIB if share.parts is not None else -(-share.memory_bytes // MIB)
    return min(memory, max(wanted, 1) * MIB)


def default_percent(gpu: Gpu, sharing: SharingTerms) -> int:
    """Return the ``computePercent`` of a claim that does not request it. On a GPU without ``memory``, only compute
    keeps claims apart: it is everything there, unless a default share divides it."""
    memory, share = shareable_memory(gpu, sharing), sharing.default_share
    if share is None:
        return ALL_PERCENT if memory is None else sharing.default_percent
    if share.parts is not None:
        return ALL_PERCENT // share.parts
    if share.percent is not None:
        return share.percent if memory is not None else share.percent or ALL_PERCENT
    return ALL_PERCENT if memory is None else max(1, (default_memory(gpu, sharing) or 0) * ALL_PERCENT // memory)


def capacity_of(gpu: Gpu, sharing: SharingTerms) -> dict[str, DeviceCapacity]:
    """Return ``computePercent``, ``memory`` if its size was read, and ``shares`` (1 per claim) if limited in number."""
    found = {COMPUTE_PERCENT: _percent(default_percent(gpu, sharing))}
    memory = shareable_memory(gpu, sharing)
    if memory is not None:
        found[MEMORY] = _memory(memory, default_memory(gpu, sharing) or memory)
    if sharing.max_shares is not None:
        found[SHARES] = _shares(max(1, sharing.max_shares))
    return found


def _percent(default: int) -> DeviceCapacity:
    span = CapacityRequestPolicyRange(min=str(min(1, default)), max=str(ALL_PERCENT), step="1")
    policy = CapacityRequestPolicy(default=str(default), valid_range=span)
    return DeviceCapacity(value=str(ALL_PERCENT), request_policy=policy)


def _memory(memory_bytes: int, default_bytes: int) -> DeviceCapacity:
    total, default = str(Quantity.from_bytes(memory_bytes)), str(Quantity.from_bytes(default_bytes))
    span = CapacityRequestPolicyRange(min="1Mi", max=total, step="1Mi")
    return DeviceCapacity(value=total, request_policy=CapacityRequestPolicy(default=default, valid_range=span))


def _shares(count: int) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default="1", valid_range=CapacityRequestPolicyRange(min="1", step="1"))
    if count == 1:  # a range must have room for one step
        policy = CapacityRequestPolicy(default="1", valid_values=("1",))
    return DeviceCapacity(value=str(count), request_policy=policy)
