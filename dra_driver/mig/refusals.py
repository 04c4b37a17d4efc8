"""Decides when a GPU's partitions are withheld because it cannot be cut. Pure: refusals and times in, state out.

A GPU that a monitor has open refuses every first GPU instance (see `manager`), and each pod that the scheduler sends
there waits for minutes. After ``LIMIT`` refusals within ``WITHIN_S`` its partitions that do not exist yet are withheld
for ``WITHHELD_S``; then claims try again. A creation that succeeds ends it at once and forgets the refusals.

Times are seconds of any clock. One that jumps back neither prolongs the withholding beyond ``WITHHELD_S`` from then on
nor counts old refusals for longer than ``WITHIN_S``.
"""

from dataclasses import dataclass, replace
from typing import Final

from dra_driver.model.mig import PartitionId

LIMIT: Final = 3
WITHIN_S: Final = 600.0
WITHHELD_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRefusals:
    """The refusals of one GPU that still count: at most ``LIMIT`` times, ascending.

    ``partitions`` are those whose creation was refused: claims wait for them. ``withheld_since`` is None unless
    partitions are withheld.
    """

    times: tuple[float, ...] = ()
    partitions: frozenset[PartitionId] = frozenset()
    withheld_since: float | None = None

    @property
    def withheld(self) -> bool:
        """Whether partitions that do not exist yet are withheld."""
        return self.withheld_since is not None


NO_REFUSALS: Final = CutRefusals()


def after_refusal(state: CutRefusals, partition: PartitionId, now: float) -> CutRefusals:
    """The state after a creation was given up at ``now``. While partitions are withheld it prolongs nothing."""
    state = at(state, now)
    partitions = state.partitions | {partition}
    if state.withheld:
        return replace(state, partitions=partitions)
    times = (*state.times, now)[-LIMIT:]
    since = now if len(times) == LIMIT else None
    return CutRefusals(times=times, partitions=partitions, withheld_since=since)


def at(state: CutRefusals, now: float) -> CutRefusals:
    """The state at ``now``, without what is over."""
    if state.withheld_since is not None:
        since = min(state.withheld_since, now)
        return NO_REFUSALS if now - since >= WITHHELD_S else replace(state, withheld_since=since)
    times = tuple(min(time, now) for time in state.times if now - time < WITHIN_S)
    return replace(state, times=times) if times else NO_REFUSALS
