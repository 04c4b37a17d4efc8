"""The order in which a GPU's partitions are published, chosen so that first fit packs well. No I/O.

The scheduler (1.36, structured/internal of k8s.io/dynamic-resource-allocation) takes the first device that fits, so the
order is the placement policy. Sizes ascend: a request without a profile takes the smallest that satisfies it. Within a
profile, the placement that blocks the fewest compute slices of all overlapping placements comes first. On boards with
seven compute and eight memory slices this fills from the end.

Measured with ``python -m tests.bench.packing``: of the 216 orders of an A100 that differ by more than symmetry, this
one strands within 4 % of the best, which does worse where no claim requests double-memory profiles.
"""

import functools
from collections.abc import Sequence

from dra_driver.core.model.mig import MigProfile

Placement = tuple[MigProfile, int]


def placement_order(profiles: Sequence[MigProfile]) -> tuple[Placement, ...]:
    """All (profile, start) pairs of a GPU, whatever the order of ``profiles``. Cached: GPUs of one board have the
    same."""
    return _order(tuple(profiles))


@functools.lru_cache(maxsize=64)
def _order(profiles: tuple[MigProfile, ...]) -> tuple[Placement, ...]:
    everything = [(profile, start) for profile in profiles for start in profile.starts]

    def blocked(profile: MigProfile, start: int) -> int:
        end = start + profile.memory_slices
        overlapping = (other for other, at in everything if start < at + other.memory_slices and at < end)
        return sum(other.compute_slices for other in overlapping)

    # Ties go to the end of the GPU, so that the free part begins at 0, where large profiles can begin.
    return tuple(sorted(everything, key=lambda one: (*_size(one[0]), blocked(*one), -one[1])))


def _size(profile: MigProfile) -> tuple[int, ...]:
    """Sort key: small first, then fewer engines, which are scarcer than slices."""
    engines = (profile.copy_engines, profile.decoders, profile.encoders, profile.jpeg_engines, profile.ofa_engines)
    return (
        profile.memory_slices,
        profile.compute_slices,
        profile.multiprocessors or 0,
        sum(count or 0 for count in engines),
        -profile.max_instances,
        profile.profile_id,
    )


def fixed_placements(wanted: Sequence[MigProfile]) -> tuple[Placement, ...] | None:
    """Places for all of ``wanted`` at once, which do not overlap; None when they do not fit. Larger ones come first, so
    that small ones do not block their few places."""
    if any(sum(other is profile for other in wanted) > profile.max_instances for profile in wanted):
        return None
    ordered = sorted(wanted, key=lambda profile: (-profile.memory_slices, profile.profile_id))

    def search(left: Sequence[MigProfile], taken: frozenset[int]) -> tuple[Placement, ...] | None:
        if not left:
            return ()
        first = left[0]
        for start in sorted(first.starts):
            covered = frozenset(range(start, start + first.memory_slices))
            if covered & taken:
                continue
            rest = search(left[1:], taken | covered)
            if rest is not None:
                return ((first, start), *rest)
        return None

    return search(ordered, frozenset()) if wanted else None
