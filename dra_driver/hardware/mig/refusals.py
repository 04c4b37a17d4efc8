"""Decides when a GPU's partitions are withheld because it cannot be cut. Pure: refusals and times in, state out.

A GPU that a monitor has open refuses every first GPU instance (see `manager`), and each pod that the scheduler sends
there waits for minutes. After ``LIMIT`` refusals within ``WITHIN_S`` its partitions that do not exist yet are withheld
for ``WITHHELD_S``; then claims try again. A creation that succeeds ends it at once and forgets the refusals.

Refusals of one partition within ``ONE_CALL_S`` count once: a call of the kubelet may try several times, and the kubelet
repeats a failed call after more than a minute.

Times are seconds of any clock. One that jumps back neither prolongs the withholding beyond ``WITHHELD_S`` from then on
nor counts old refusals for longer than ``WITHIN_S``.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.mig import PartitionId

LIMIT: Final = 3
WITHIN_S: Final = 600.0
WITHHELD_S: Final = 600.0
ONE_CALL_S: Final = 45.0


class CutRefusals(Struct, frozen=True, kw_only=True):
    """The refusals of one GPU that still count, ascending, at most ``LIMIT``. Claims wait for ``partitions``.
    ``withheld_since`` is None unless partitions are withheld."""

    counted: tuple[tuple[float, PartitionId], ...] = ()
    partitions: frozenset[PartitionId] = frozenset()
    withheld_since: float | None = None

    @property
    def withheld(self) -> bool:
        return self.withheld_since is not None


NO_REFUSALS: Final = CutRefusals()


def after_refusal(state: CutRefusals, partition: PartitionId, now: float) -> CutRefusals:
    """The state after a creation was given up at ``now``. While partitions are withheld it prolongs nothing."""
    state = at(state, now)
    state = replace(state, partitions=state.partitions | {partition})
    if state.withheld or any(each == partition and now - time < ONE_CALL_S for time, each in state.counted):
        return state
    counted = (*state.counted, (now, partition))[-LIMIT:]
    return replace(state, counted=counted, withheld_since=now if len(counted) == LIMIT else None)


def at(state: CutRefusals, now: float) -> CutRefusals:
    """The state at ``now``, without what is over."""
    if state.withheld_since is not None:
        since = min(state.withheld_since, now)
        return NO_REFUSALS if now - since >= WITHHELD_S else replace(state, withheld_since=since)
    counted = tuple((min(time, now), partition) for time, partition in state.counted if now - time < WITHIN_S)
    return replace(state, counted=counted) if counted else NO_REFUSALS
