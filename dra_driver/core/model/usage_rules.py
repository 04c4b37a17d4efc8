"""A GpuPolicy's rules for the use of a GPU by claims. ``config/policy.py`` reads them, ``node/usage/`` applies them."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field

DEFAULT_OVERHEAD_BYTES: Final = 512 * 2**20
"""Memory of a process beyond its allocations: a CUDA context with its kernels and libraries takes 300 to 500 MiB on
current GPUs, and NVML counts it as the process' memory."""


class OverGrantAction(StrEnum):
    """Action on a claim whose processes together have more memory than it was granted."""

    REPORT = "Report"
    EVICT = "Evict"


class IdleAction(StrEnum):
    """Action on a claim that does not use its GPU."""

    REPORT = "Report"
    RECLAIM = "Reclaim"


class PodProtection(StrEnum):
    """Protection of a pod by its annotation and disruption budgets when its claim exceeds its grant."""

    HONOR = "Honor"
    IGNORE = "Ignore"


Seconds = Annotated[int, Meta(ge=0, le=366 * 86400)]


class UsageRules(Struct, frozen=True, kw_only=True):
    """Rules for one GPU; ``assignments.json`` has the names of `field`. A share may have ``overhead_bytes`` per process
    on top of its grant. ``grace_s`` is the time from the first report to the eviction. A claim is idle after
    ``idle_after_min`` minutes without use, None for never."""

    over_grant: OverGrantAction = field(default=OverGrantAction.REPORT, name="onOverGrant")
    grace_s: Seconds = field(default=60, name="graceSeconds")
    overhead_bytes: Annotated[int, Meta(ge=0, le=2**60)] = field(
        default=DEFAULT_OVERHEAD_BYTES, name="overheadBytesPerProcess"
    )
    idle_after_min: Annotated[int, Meta(ge=1, le=366 * 86400)] | None = field(default=None, name="idleAfterMinutes")
    idle: IdleAction = field(default=IdleAction.REPORT, name="onIdle")
    protection: PodProtection = field(default=PodProtection.HONOR, name="podProtection")


DEFAULT_USAGE: Final = UsageRules()  # claims over their grant are reported, and no claim counts as idle


def idle_after_min(rules: Sequence[UsageRules]) -> int | None:
    """The longest time of the GPUs of a claim; None if the policy of one of them says never."""
    minutes = [each.idle_after_min for each in rules if each.idle_after_min is not None]
    return max(minutes) if minutes and len(minutes) == len(rules) else None
