"""What the partitions of a GPU are taken from, as numbers that the scheduler subtracts (KEP-4815).

Pure. Owns the dimensions, their two names (capacity and counter), the counter set of a GPU and what a device takes
from it. Names and values are those of NVIDIA's DRA driver but for memory, which is the GPU's real total here. Refuses
to know which devices are published (``forms.py``).

The memory slices are what excludes one partition by another: each is a counter of one, and a placement takes the slices
that it covers. The other counters only must never be in the way of a layout that the hardware allows, and must be
exhausted where an engine is there once (the OFA of the ``+me`` profiles).
"""

from collections.abc import Iterable
from typing import Final

from dra_driver.kube.types import Counter, CounterSet
from dra_driver.model.gpu import Gpu
from dra_driver.model.mig import MigInstance, MigProfile
from dra_driver.published.capacities import DIMENSIONS, Dimension, amount_text
from dra_driver.published.limits import MAX_COUNTERS
from dra_driver.published.names import MEMORY

Amounts = dict[str, int]
"""Counter name to amount; memory in bytes."""

# These add up over partitions and never run out before the memory slices do; engines may be there once for all.
_ADDITIVE: Final = frozenset({"multiprocessors", MEMORY})
MAX_MEMORY_SLICES: Final = MAX_COUNTERS - len(DIMENSIONS)

_ONE: Final = Counter(value="1")


def set_name(gpu: Gpu) -> str:
    """``gpu-0-counter-set``, as NVIDIA's driver calls it."""
    return f"{gpu.device_name}-counter-set"


def profile_of(gpu: Gpu, instance: MigInstance) -> MigProfile | None:
    """What the instance has: as its GPU lists it, else as it tells itself."""
    return gpu.profile(instance.profile_id) or instance.profile


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
        name=set_name(gpu), counters={name: Counter(value=amount_text(name, value)) for name, value in left.items()}
    )


def consumed_by(profile: MigProfile, counters: CounterSet) -> dict[str, Counter]:
    """What any partition of the profile takes beside its memory slices; only counters that the set has."""
    known = _use(profile).items()
    return {name: Counter(value=amount_text(name, value)) for name, value in known if name in counters["counters"]}


def memory_slices_taken(start: int, size: int) -> dict[str, Counter]:
    """The memory slices that a placement takes."""
    return {_memory_slice(index): _ONE for index in range(start, start + size)}


def leaves_enough(profile: MigProfile, start: int, left: Amounts) -> bool:
    """Whether what others left is enough: an engine that is there once may be gone although the slices are free."""
    wanted = {**_use(profile), **{_memory_slice(index): 1 for index in range(start, start + profile.memory_slices)}}
    return all(left[name] >= value for name, value in wanted.items() if name in left)


def _use(profile: MigProfile) -> Amounts:
    known = ((each.counter, each.of(profile)) for each in DIMENSIONS)
    return {counter: value for counter, value in known if value is not None}


def _totals(gpu: Gpu) -> Amounts:
    """All that there is: what the profile of the whole GPU has, NVML's total for memory, one of each memory slice."""
    found = {}
    for each in DIMENSIONS:
        total = _memory_total(gpu, each) if each.counter == MEMORY else _total(gpu, each)
        if total is not None:
            found[each.counter] = total
    return {**found, **{_memory_slice(index): 1 for index in range(gpu.memory_slices)}}


def _memory_total(gpu: Gpu, memory: Dimension) -> int | None:
    """None on unified memory: then there is nothing to count."""
    if gpu.memory_bytes is None or gpu.memory_bytes <= 0:
        return None
    return max(gpu.memory_bytes, _most(gpu, memory))


def _total(gpu: Gpu, dimension: Dimension) -> int | None:
    """None when no profile tells. Where the profile of the whole GPU does not, the most that any layout can have."""
    known = [value for profile in gpu.mig_profiles if (value := dimension.of(profile)) is not None]
    if not known:
        return None
    spanning = [profile for profile in gpu.mig_profiles if profile.memory_slices == gpu.memory_slices]
    is_told = any(dimension.read(profile) is not None for profile in spanning)
    return max(known) if is_told and dimension.counter not in _ADDITIVE else max(*known, _most(gpu, dimension))


def _most(gpu: Gpu, dimension: Dimension) -> int:
    """The most that placements which do not overlap have together (weighted intervals, from left to right)."""
    best = [0]
    for end in range(1, gpu.memory_slices + 1):
        ending = (
            best[end - profile.memory_slices] + (dimension.read(profile) or 0)
            for profile in gpu.mig_profiles
            if end - profile.memory_slices in profile.starts
        )
        best.append(max(best[-1], *ending, 0))
    return best[-1]


def _memory_slice(index: int) -> str:
    return f"memory-slice-{index}"
