"""Which taints each device of one GPU gets, within what the API server accepts. Pure.

Asked for are taints of the GPU's terms (its policy, a drain, a detach) and those of its condition. When there are more
than fit, all that was asked for is kept but the last, in whose place the strongest taint of the condition stays: a
device that is not healthy is never published as if it were.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.kube.published import limits
from dra_driver.kube.types import DeviceTaint
from dra_driver.node.slices.gates import ApiServerFeatures

_STRENGTH: Final = {"NoExecute": 0, "NoSchedule": 1, "None": 2}


def blocks(taint: Taint) -> bool:
    """Whether it keeps new claims away."""
    return taint.effect != "None"


class GpuTaints:
    """The taints of one GPU's devices, in wire form. Lists may be shared by devices and must not be changed."""

    def __init__(self, terms: GpuTerms, features: ApiServerFeatures) -> None:
        self._terms, self._features = terms, features
        withheld = (terms.withheld.taint,) if terms.withheld is not None else ()
        self.whole = self._wire((*terms.taints, *terms.whole_taints), terms.condition_taints)
        self._common = self._wire(terms.taints, terms.condition_taints)
        self._withheld = self._wire((*terms.taints, *withheld), terms.condition_taints)

    def of(self, partition: PartitionId, *, withheld: bool = False) -> list[DeviceTaint]:
        """Those of a partition; ``withheld``: it does not exist and cannot be created now."""
        own = self._terms.partition_taints.get(partition)
        if own and not withheld:
            return self._wire(self._terms.taints, (*self._terms.condition_taints, *own))
        return self._withheld if withheld else self._common

    def _wire(self, asked: Sequence[Taint], condition: Iterable[Taint]) -> list[DeviceTaint]:
        if not self._features.taints:
            return []
        most = limits.MAX_TAINTS if self._features.taints_1_35 else limits.MAX_TAINTS_1_34
        return [_taint(taint) for taint in chosen(asked, condition, most, informational=self._features.taints_1_35)]


def chosen(asked: Sequence[Taint], condition: Iterable[Taint], most: int, *, informational: bool) -> tuple[Taint, ...]:
    """At most ``most`` of them: one of the condition per key, the strongest; with effect None if ``informational``."""
    strongest: dict[str, Taint] = {}
    for taint in sorted(condition, key=lambda taint: _STRENGTH[taint.effect]):
        if informational or blocks(taint):
            strongest.setdefault(taint.key, taint)
    found = tuple(strongest.values())
    room = max(most - len(asked), sum(blocks(taint) for taint in found[:1]), 0)
    kept = found[:room]
    return (*asked[: most - len(kept)], *kept)


def _taint(taint: Taint) -> DeviceTaint:
    wire = DeviceTaint(key=taint.key, effect=taint.effect)
    if taint.value:
        wire["value"] = taint.value
    if taint.time_added is not None:
        wire["timeAdded"] = taint.time_added
    return wire
