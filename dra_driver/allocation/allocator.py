"""Allocation of a pod's claims, node by node: pure, from API objects to AllocationResults.

Owns the entry point, the shape of an answer, and what is shared between nodes. Refuses to know an API server or a
scheduler's queue; the clock that bounds an attempt is handed in.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.allocation.allocated import pool_uses
from dra_driver.allocation.events import PoolLeftOut, SearchRecorder
from dra_driver.allocation.limits import Limits, SearchBudget
from dra_driver.allocation.malformed import guarded
from dra_driver.allocation.node_equivalence import Solution, SolutionCache
from dra_driver.allocation.pools import PoolIndex, ReachablePools
from dra_driver.allocation.requests import ClaimDecoder, DecodedClaim
from dra_driver.allocation.result import allocation_result
from dra_driver.allocation.scheduler_quirks import V1_36, SchedulerFeatures, SchedulerQuirks, SchedulerRules
from dra_driver.allocation.search import Search
from dra_driver.allocation.selectors import DeviceSelector, SelectorSet
from dra_driver.allocation.state import AllocationState

Wire = Mapping[str, Any]
_DEFAULT_FEATURES: Final = SchedulerFeatures()
_DEFAULT_LIMITS: Final = Limits()


def random_share_id() -> str:
    """A random UUID (version 4), as the scheduler gives to each share."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationOutcome:
    """``allocations``: one AllocationResult per claim in their order, or None with the ``reason`` why not.

    ``invalid_pools`` are pools that the node reaches and that contradict themselves; they may be why nothing fits, and
    the scheduler then reports them as an error of this node.
    """

    allocations: Sequence[dict[str, Any]] | None
    reason: str = ""
    invalid_pools: tuple[str, ...] = ()


class Question:
    """A pod's claims, ready to be asked about any node. Thread-safe."""

    def __init__(self, allocator: "Allocator", claims: Sequence[Wire], decoded: Sequence[DecodedClaim]) -> None:
        self._allocator = allocator
        self._claims = claims
        self.decoded = decoded
        self.solutions = SolutionCache()

    def on(self, node: Wire, recorder: SearchRecorder | None = None) -> AllocationOutcome:
        """Devices for all of the claims on ``node``, or why they do not fit there.

        Raises AllocationError, CelSyntaxError or CelEvaluationError when the attempt has to end for all nodes.
        """
        wires = {"node": node, "claims": self._claims, **self._allocator.wires}
        return guarded(lambda: self._allocator.answer(self, node, recorder), wires)


class Allocator:
    """Devices, classes and what is taken, at one moment. Thread-safe; the objects handed in are not changed and must
    not change.

    ``slices`` are all ResourceSlices of the cluster with device taints merged, ``allocated`` all claims that may have
    ``status.allocation``. Objects are as an API server returns them, defaults filled in. Raises AllocationError on
    objects that no API server returns.
    """

    def __init__(
        self,
        *,
        slices: Sequence[Wire],
        classes: Iterable[Wire],
        allocated: Iterable[Wire],
        features: SchedulerFeatures = _DEFAULT_FEATURES,
        quirks: SchedulerQuirks = V1_36,
        limits: Limits = _DEFAULT_LIMITS,
        new_share_id: Callable[[], str] = random_share_id,
    ) -> None:
        self._model = SchedulerRules(features=features, quirks=quirks)
        self._limits = limits
        self._new_share_id = new_share_id
        self._selections: dict[tuple[tuple[str, str], ...], SelectorSet] = {}
        wires: dict[str, Any] = {"slices": slices, "classes": classes, "allocated": allocated}
        self.wires: Mapping[str, Any] = guarded(lambda: {name: list(items) for name, items in wires.items()}, wires)
        self._classes = guarded(lambda: _by_name(self.wires["classes"]), self.wires)
        self._catalog = guarded(lambda: self._read(self.wires), self.wires)

    def question(self, claims: Sequence[Wire]) -> Question:
        """Decode the pod's unallocated claims once, to ask about many nodes. Raises AllocationError."""
        decoder = ClaimDecoder(classes=self._classes, features=self._model.features, selection_of=self._selection_of)
        decoded = guarded(lambda: decoder.read(claims), {"claims": claims, **self.wires})
        return Question(self, claims, decoded)

    def allocate(self, node: Wire, claims: Sequence[Wire], recorder: SearchRecorder | None = None) -> AllocationOutcome:
        """The same for one node: ``question(claims).on(node, recorder)``."""
        return self.question(claims).on(node, recorder)

    def reachable(self, node: Wire) -> ReachablePools:
        """The pools of the node with their devices, for those who look at devices by themselves."""
        return guarded(lambda: self._catalog.reachable(node), {"node": node})

    def answer(self, question: Question, node: Wire, recorder: SearchRecorder | None) -> AllocationOutcome:
        """What `Question.on` says."""
        decoded = question.decoded
        reachable = self._catalog.reachable(node)
        if recorder is not None:
            _record_left_out(reachable, recorder)
        budget = SearchBudget(self._limits)
        state = AllocationState(
            decoded, node=node, reachable=reachable, model=self._model, budget=budget, recorder=recorder
        )
        state.prepare()
        search = Search(state)
        fits = search.run(None if recorder else self._limits.reuse_after * state.device_count)
        if fits is None:
            fits = _solve(question.solutions, state, search, reachable)
        if not fits:
            return _misfit(reachable, search)
        return AllocationOutcome(
            allocations=[
                allocation_result(claim, picks, chosen, node=node, model=self._model, new_share_id=self._new_share_id)
                for claim, picks, chosen in zip(decoded, state.picks, search.chosen, strict=True)
            ]
        )

    def _read(self, wires: Mapping[str, Any]) -> PoolIndex:
        uses = pool_uses(wires["allocated"], shares=self._model.features.consumable_capacity)
        return PoolIndex(wires["slices"], uses, self._model)

    def _selection_of(self, selectors: Sequence[DeviceSelector]) -> SelectorSet:
        """The same object for the same selectors, so that claims and nodes share answers."""
        key = tuple((selector.where, selector.expression) for selector in selectors)
        if key not in self._selections:
            self._selections[key] = SelectorSet(selectors, sharing=not self._model.features.stable)
        return self._selections[key]


def _by_name(classes: Iterable[Wire]) -> dict[str, Wire]:
    return {item["metadata"]["name"]: item for item in classes}


def _solve(solutions: SolutionCache, state: AllocationState, search: Search, reachable: ReachablePools) -> bool:
    """Go on with a search that takes long, unless a node that is alike has been searched."""
    key = solutions.key(state, reachable.pools)
    known = solutions.find(key) if key is not None else None
    if known is not None:
        search.chosen, search.stuck_at = [list(one) for one in known.chosen], known.stuck_at
        state.reuse_picks(known.picks)
        return known.fits
    fits = bool(search.run())
    if key is not None:
        picks = state.pick_positions() if fits else []
        solutions.keep(key, Solution(fits, search.stuck_at, [list(one) for one in search.chosen], picks))
    return fits


def _misfit(reachable: ReachablePools, search: Search) -> AllocationOutcome:
    invalid = tuple(str(pool) for pool in reachable.broken if pool.why == "invalid")
    if invalid:
        reason = f"invalid resource pools were encountered: {', '.join(invalid)}"
        return AllocationOutcome(allocations=None, reason=reason, invalid_pools=invalid)
    return AllocationOutcome(allocations=None, reason=f"{search.stuck_at}: no combination of free devices matches")


def _record_left_out(reachable: ReachablePools, recorder: SearchRecorder) -> None:
    for pool in reachable.broken:
        recorder.record(PoolLeftOut(driver=pool.key[0], pool=pool.key[1], why=pool.why, detail=pool.detail))
    for driver, name in reachable.obsolete:
        detail = "a newer generation exists, with no slice for this node"
        recorder.record(PoolLeftOut(driver=driver, pool=name, why="obsolete", detail=detail))
