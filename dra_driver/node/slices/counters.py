"""Compute the counter set of a GPU, and the amounts that each partition consumes (KEP-4815). No I/O.

Names and values equal the counters of NVIDIA's DRA driver, except for memory: the GPU's real total. Memory slices make
partitions exclude each other. The remaining counters must allow each layout that the hardware allows, and must run out
where an engine exists once (the OFA of the ``+me`` profiles).
"""

from collections.abc import Iterable
from typing import Final

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.kube.objects.resource import Counter, CounterSet
from dra_driver.kube.published import DIMENSIONS, MEMORY, Dimension, amount_text, limits

Amounts = dict[str, int]
"""Counter name to amount; memory in bytes."""

# These add up over partitions and never run out before the memory slices do; an engine may exist only once.
_ADDITIVE: Final = frozenset({"multiprocessors", MEMORY})
MAX_MEMORY_SLICES: Final = limits.MAX_COUNTERS - len(DIMENSIONS)

_ONE: Final = Counter(value="1")


def set_name(gpu: Gpu) -> str:
    return f"{gpu.device_name}-counter-set"


def profile_of(gpu: Gpu, instance: MigInstance) -> MigProfile | None:
    """The size of the instance: from the GPU's list of profiles, else from the instance itself."""
    return gpu.profile(instance.profile_id) or instance.profile


def available(gpu: Gpu, taken: Iterable[MigInstance]) -> Amounts:
    """The GPU's remaining amounts for partitions next to the instances in ``taken``. Never negative."""
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
    return CounterSet(
        name=set_name(gpu), counters={name: Counter(value=amount_text(name, value)) for name, value in left.items()}
    )


def consumed_by(profile: MigProfile, counters: CounterSet) -> dict[str, Counter]:
    """The amounts, except memory slices, that any partition of the profile consumes of the set's counters."""
    known = _use(profile).items()
    return {name: Counter(value=amount_text(name, value)) for name, value in known if name in counters.counters}


def memory_slices_taken(start: int, size: int) -> dict[str, Counter]:
    return {_memory_slice(index): _ONE for index in range(start, start + size)}


def leaves_enough(profile: MigProfile, start: int, left: Amounts) -> bool:
    """Return whether ``left`` suffices: a unique engine may be in use although the memory slices are free."""
    wanted = {**_use(profile), **{_memory_slice(index): 1 for index in range(start, start + profile.memory_slices)}}
    return all(left[name] >= value for name, value in wanted.items() if name in left)


def placements_within(placements: Iterable[tuple[MigProfile, int]], left: Amounts, maximum: int, *, whole: bool) -> int:
    """Count the placements, from the first on, that consume at most ``maximum`` counters together, by name of counter.

    The whole GPU, where it is offered too, consumes each of ``left``.
    """
    used, found = len(left) if whole else 0, 0
    for profile, _ in placements:
        used += len(_use(profile).keys() & left.keys()) + profile.memory_slices
        if used > maximum:
            break
        found += 1
    return found


def _use(profile: MigProfile) -> Amounts:
    known = ((each.counter, each.of(profile)) for each in DIMENSIONS)
    return {counter: value for counter, value in known if value is not None}


def _totals(gpu: Gpu) -> Amounts:
    """The GPU's totals: the profile of the whole GPU, NVML's total for memory, and one of each memory slice."""
    found = {}
    for each in DIMENSIONS:
        if each.counter != MEMORY:
            total = _total(gpu, each)
        else:  # None on unified memory, where the total is unknown
            total = max(gpu.memory_bytes, _most(gpu, each)) if gpu.memory_bytes and gpu.memory_bytes > 0 else None
        if total is not None:
            found[each.counter] = total
    return {**found, **{_memory_slice(index): 1 for index in range(gpu.memory_slices)}}


def _total(gpu: Gpu, dimension: Dimension) -> int | None:
    """The whole GPU's profile, else the most that a layout can have; None when no profile reports it."""
    known = [value for profile in gpu.mig_profiles if (value := dimension.of(profile)) is not None]
    if not known:
        return None
    spanning = [profile for profile in gpu.mig_profiles if profile.memory_slices == gpu.memory_slices]
    is_reported = any(dimension.read(profile) is not None for profile in spanning)
    return max(known) if is_reported and dimension.counter not in _ADDITIVE else max(*known, _most(gpu, dimension))


def _most(gpu: Gpu, dimension: Dimension) -> int:
    """The greatest sum over placements that do not overlap (weighted intervals, from left to right)."""
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
