"""Keep the form of a GPU that is in use, until it is free. Pure.

Newer terms never change a device of a running pod. They apply when the form in use is free:

    in use as          published until it is free
    whole, exclusive   the whole GPU, exclusive
    all of a shared    the whole GPU, shared as the newest terms say: its claim consumed all capacity, which a scheduler
                       counts only while the GPU is published as shared; otherwise it would take the GPU for free
    shared             the whole GPU, shared with the same strategy and interval (a new number of shares applies at
    once) partitions         those partitions; everything else follows the newest terms

The terms say that shares are in use (all of a shared GPU is one), so that the GPU is published as shared or not at all.

While the newest terms cannot apply yet, the remaining devices carry a taint that keeps new claims away
(``gpu.dra-driver.io/draining``, NoSchedule): otherwise one claim after another would take them, and the GPU would never
be free. The taint does not affect pods that are scheduled already.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Form, GpuTerms, Interval, SharingTerms, Strategy, Taint, Use

DRAINING_TAINT: Final = "gpu.dra-driver.io/draining"
_MAX_SHOWN: Final = 3
_SHARED_UNTIL_FREE: Final = SharingTerms(strategy=Strategy.TIME_SLICING)
"""For a shared GPU that one claim has as a whole, when newer terms do not share it: no claim gets a share of it."""


def keep_in_use(wanted: GpuTerms, gpu: Gpu, uses: Sequence[Use]) -> GpuTerms:
    """``wanted``, with the form that ``uses`` of this GPU keep; ``waiting`` says which terms wait for what."""
    partitions = frozenset(use.partition for use in uses if use.partition is not None)
    if any(use.form is not Form.PARTITION for use in uses):
        held = next((use.sharing for use in uses if use.sharing is not None), None)
        if held is None and any(use.of_shared for use in uses):
            held = wanted.sharing or _SHARED_UNTIL_FREE
        return _whole_in_use(replace(wanted, shares_in_use=held is not None), held, partitions)
    return _cut_in_use(wanted, gpu, partitions) if partitions else wanted


def _whole_in_use(wanted: GpuTerms, held: SharingTerms | None, partitions: frozenset[PartitionId]) -> GpuTerms:
    in_use, asked = ((each.strategy, each.interval) if each is not None else None for each in (held, wanted.sharing))
    if wanted.offered and wanted.whole and in_use == asked:
        return wanted
    kept = held
    if held is not None and wanted.sharing is not None and held.strategy is wanted.sharing.strategy:
        kept = replace(wanted.sharing, interval=held.interval)
    last = "its last share is" if held is not None else "it is"
    return replace(
        wanted,
        offered=True,
        whole=True,
        sharing=kept,
        profiles=wanted.profiles if wanted.offered else frozenset(),
        kept=partitions,
        taints=(*wanted.taints, _draining(wanted)),
        waiting=f"the GPU stays {_words(held)} until {last} released; then {_next(wanted, 'it')}",
    )


def _cut_in_use(wanted: GpuTerms, gpu: Gpu, partitions: frozenset[PartitionId]) -> GpuTerms:
    kept = frozenset(part for part in partitions if not wanted.offered or not wanted.allows(part))
    if not kept:
        return wanted
    ends = f"the GPU is only what policy {wanted.policy} allows" if wanted.offered else _next(wanted, "the GPU")
    waiting = f"{_named(gpu, kept)} until released; then {ends}"
    drain = not wanted.offered or wanted.profiles == frozenset()
    return replace(
        wanted,
        offered=True,
        whole=wanted.whole and wanted.offered,
        profiles=wanted.profiles if wanted.offered else frozenset(),
        sharing=wanted.sharing if wanted.offered else None,
        kept=kept,
        taints=(*wanted.taints, *((_draining(wanted),) if drain else ())),
        waiting=waiting,
    )


def _draining(wanted: GpuTerms) -> Taint:
    return Taint(key=DRAINING_TAINT, value=wanted.policy, effect="NoSchedule")


def _named(gpu: Gpu, kept: frozenset[PartitionId]) -> str:
    names = []
    for part in sorted(kept):
        profile = gpu.profile(part.profile_id)
        names.append(f"{profile.name if profile else f'profile {part.profile_id}'} at memory slice {part.start}")
    more = len(names) - _MAX_SHOWN
    text = ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"MIG {text} {'stays' if len(names) == 1 else 'stay'}"


def _next(wanted: GpuTerms, subject: str) -> str:
    """What applies when the GPU is free."""
    source = f" (policy {wanted.policy})" if wanted.policy else ""
    if not wanted.offered:
        return f"{subject} is no longer offered{source}"
    if not wanted.whole:
        return f"{subject} is offered as MIG partitions only{source}"
    return f"{subject} is offered {_words(wanted.sharing)}{source}"


def _words(sharing: SharingTerms | None) -> str:
    if sharing is None:
        return "exclusive"
    if sharing.strategy is Strategy.MPS:
        return "shared by MPS"
    return "time-sliced" if sharing.interval is Interval.DEFAULT else f"time-sliced with interval {sharing.interval}"
