"""What the partitions of a GPU are taken from, as numbers that the scheduler subtracts (KEP-4815).

Pure. Owns the dimensions, their two names (capacity and counter), the counter set of a GPU and what a device takes
from it. Names and values are those of NVIDIA's DRA driver but for memory, which is the GPU's real total here. Refuses
to know which devices are published (``forms.py``).

The memory slices are what excludes one partition by another: each is a counter of one, and a placement takes the slices
that it covers. The other counters only must never be in the way of a layout that the hardware allows, and must be
exhausted where an engine is there once (the OFA of the ``+me`` profiles).
"""

from collections.abc import Callable, Iterable
from typing import Final

from dra_driver.kube.types import Counter, CounterSet, DeviceCapacity
from dra_driver.model.gpu import Gpu
from dra_driver.model.mig import MigInstance, MigProfile
from dra_driver.published.limits import MAX_COUNTERS
from dra_driver.quantity import Quantity

MEMORY: Final = "memory"
Amounts = dict[str, int]
"""Counter name to amount; memory in bytes."""

# Capacity name, counter name, and where a profile tells the number (None where it does not).
_DIMENSIONS: Final[tuple[tuple[str, str, Callable[[MigProfile], int | None]], ...]] = (
    ("multiprocessors", "multiprocessors", lambda profile: profile.multiprocessors),
    ("copyEngines", "copy-engines", lambda profile: profile.copy_engines),
    ("decoders", "decoders", lambda profile: profile.decoders),
    ("encoders", "encoders", lambda profile: profile.encoders),
    ("jpegEngines", "jpeg-engines", lambda profile: profile.jpeg_engines),
    ("ofaEngines", "ofa-engines", lambda profile: profile.ofa_engines),
    (MEMORY, MEMORY, lambda profile: profile.memory_bytes),
)
# These add up over partitions and never run out before the memory slices do; engines may be there once for all.
_ADDITIVE: Final = frozenset({"multiprocessors", MEMORY})
MAX_MEMORY_SLICES: Final = MAX_COUNTERS - len(_DIMENSIONS)

_ONE: Final = Counter(value="1")


def set_name(gpu: Gpu) -> str:
    """``gpu-0-counter-set``, as NVIDIA's driver calls it."""
    return f"{gpu.device_name}-counter-set"


def profile_of(gpu: Gpu, instance: MigInstance) -> MigProfile | None:
    """What the instance has: as its GPU lists it, else as it tells itself."""
    return gpu.profile(instance.profile_id) or instance.profile


def capacity_of(profile: MigProfile) -> dict[str, DeviceCapacity]:
    """The capacities of a partition. What the hardware does not tell is absent."""
    known = ((name, _amount(number(profile))) for name, _, number in _DIMENSIONS)
    return {name: DeviceCapacity(value=_text(name, value)) for name, value in known if value is not None}


def greatest_capacity(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """What the whole GPU has beside memory, as NVIDIA's driver tells it: of each number the most that any profile has.

    Less than the board has where no profile gets all of it (98 of 108 multiprocessors of an A100).
    """
    found: dict[str, DeviceCapacity] = {}
    for name, _, number in _DIMENSIONS:
        known = [value for profile in gpu.mig_profiles if (value := _amount(number(profile))) is not None]
        if known and name != MEMORY:
            found[name] = DeviceCapacity(value=_text(name, max(known)))
    return found


def memory_slice_capacity(start: int, size: int) -> dict[str, DeviceCapacity]:
    """``memorySlice<i>`` of a partition that exists, for claims that want two of the same or of other slices."""
    return {f"memorySlice{index}": DeviceCapacity(value="1") for index in range(start, start + size)}


def available(gpu: Gpu, taken: Iterable[MigInstance]) -> Amounts:
    """What partitions may have of the GPU when the instances in ``taken`` have theirs already. Never negative."""
    left = _totals(gpu)
    for instance in taken:
        profile = profile_of(gpu, instance)
        used = _use(profile) if profile is not None else {}
        for name in left.keys() & used.keys():
            left[name] = max(0, left[name] - used[name])
        for index in range(instance.start, instance.start + instance.size):
            if _memory_slice(index) in left:
                left[_memory_slice(index)] = 0
    return left


def wire_set(gpu: Gpu, left: Amounts) -> CounterSet:
    """The counter set as it is published."""
    return CounterSet(
        name=set_name(gpu), counters={name: Counter(value=_text(name, value)) for name, value in left.items()}
    )


def consumed_by(profile: MigProfile, counters: CounterSet) -> dict[str, Counter]:
    """What any partition of the profile takes beside its memory slices; only counters that the set has."""
    known = _use(profile).items()
    return {name: Counter(value=_text(name, value)) for name, value in known if name in counters["counters"]}


def memory_slices_taken(start: int, size: int) -> dict[str, Counter]:
    """The memory slices that a placement takes."""
    return {_memory_slice(index): _ONE for index in range(start, start + size)}


def leaves_enough(profile: MigProfile, start: int, left: Amounts) -> bool:
    """Whether what others left is enough: an engine that is there once may be gone although the slices are free."""
    wanted = {**_use(profile), **{_memory_slice(index): 1 for index in range(start, start + profile.memory_slices)}}
    return all(left[name] >= value for name, value in wanted.items() if name in left)


def _use(profile: MigProfile) -> Amounts:
    known = ((counter, _amount(number(profile))) for _, counter, number in _DIMENSIONS)
    return {counter: value for counter, value in known if value is not None}


def _totals(gpu: Gpu) -> Amounts:
    """All that there is: what the profile of the whole GPU has, NVML's total for memory, one of each memory slice."""
    found = {}
    for _, counter, number in _DIMENSIONS:
        total = _memory_total(gpu) if counter == MEMORY else _total(gpu, counter, number)
        if total is not None:
            found[counter] = total
    return {**found, **{_memory_slice(index): 1 for index in range(gpu.memory_slices)}}


def _memory_total(gpu: Gpu) -> int | None:
    """None on unified memory: then there is nothing to count."""
    if gpu.memory_bytes is None or gpu.memory_bytes <= 0:
        return None
    return max(gpu.memory_bytes, _most(gpu, lambda profile: profile.memory_bytes))


def _total(gpu: Gpu, counter: str, number: Callable[[MigProfile], int | None]) -> int | None:
    """None when no profile tells. Where the profile of the whole GPU does not, the most that any layout can have."""
    known = [value for profile in gpu.mig_profiles if (value := _amount(number(profile))) is not None]
    if not known:
        return None
    spanning = (number(profile) for profile in gpu.mig_profiles if profile.memory_slices == gpu.memory_slices)
    is_told = any(value is not None for value in spanning)
    return max(known) if is_told and counter not in _ADDITIVE else max(*known, _most(gpu, number))


def _most(gpu: Gpu, number: Callable[[MigProfile], int | None]) -> int:
    """The most that placements which do not overlap have together (weighted intervals, from left to right)."""
    best = [0]
    for end in range(1, gpu.memory_slices + 1):
        ending = (
            best[end - profile.memory_slices] + (number(profile) or 0)
            for profile in gpu.mig_profiles
            if end - profile.memory_slices in profile.starts
        )
        best.append(max(best[-1], *ending, 0))
    return best[-1]


def _amount(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _memory_slice(index: int) -> str:
    return f"memory-slice-{index}"


def _text(name: str, value: int) -> str:
    return str(Quantity.from_bytes(value)) if name == MEMORY else str(value)
