"""Into how little a claim would have fitted, by the most memory that it had. Pure.

A suggestion for a person, not a plan: it knows nothing of compute, and nothing of what the program will do next week.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

GIB: Final = 2**30
MARGIN: Final = 1.2
"""Room above the peak: the window has not seen everything, and allocators of frameworks keep reserves."""


class Profile(Struct, frozen=True, kw_only=True):
    """A MIG profile of the claim's GPU."""

    name: str
    memory_bytes: int


class EnoughMemory(Struct, frozen=True, kw_only=True):
    """What would be enough. ``profile`` is the smallest MIG profile, None if none is smaller than what the claim has;
    ``share_bytes`` is a whole number of GiB."""

    share_bytes: int
    profile: str | None = None


def fit(peak_bytes: int | None, held_bytes: int | None, profiles: Iterable[Profile] = ()) -> EnoughMemory | None:
    """What would be enough for ``peak_bytes``; None unless it is at most half of what the claim has.

    None too for a peak that is not known, and for a claim that used nothing: it is idle, not too large.
    """
    if not peak_bytes or not held_bytes:
        return None
    needed = int(peak_bytes * MARGIN)
    share = max(1, -(-needed // GIB)) * GIB
    enough = [each for each in profiles if needed <= each.memory_bytes < held_bytes]
    smallest = min(enough, key=lambda each: (each.memory_bytes, each.name), default=None)
    if share * 2 > held_bytes:
        return None
    return EnoughMemory(share_bytes=share, profile=smallest.name if smallest is not None else None)
