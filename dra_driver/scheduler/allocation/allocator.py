"""Allocate a pod's claims node by node, from API objects to AllocationResults, without I/O. Parts that do not depend on
the node (pools, classes, selectors) are computed once.

Results follow the end of ``Allocate`` and ``createNodeSelector`` in
structured/internal/incubating/allocator_incubating.go of k8s.io/dynamic-resource-allocation; fields that the API of
1.36 lacks are dropped.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation.devices import PoolKey, pool_uses
from dra_driver.scheduler.allocation.events import PoolLeftOut, SearchRecorder, Wire, guarded
from dra_driver.scheduler.allocation.node_equivalence import Solution, SolutionCache
from dra_driver.scheduler.allocation.pools import ContentKey, PoolIndex, ReachablePools
from dra_driver.scheduler.allocation.requests import Alternative, ClaimDecoder, DecodedClaim
from dra_driver.scheduler.allocation.scheduler_quirks import V1_36, SchedulerFeatures, SchedulerQuirks, SchedulerRules
from dra_driver.scheduler.allocation.search import Search
from dra_driver.scheduler.allocation.selectors import DeviceSelector, SelectorSet
from dra_driver.scheduler.allocation.state import AllocationState, Limits, Pick, SearchBudget

_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_REQUIREMENT: Final = ("key", "operator", "values")


def allocation_result(
    claim: DecodedClaim,
    picks: Sequence[Pick],
    chosen: Sequence[Alternative],
    *,
    node: Wire,
    rules: SchedulerRules,
    new_share_id: Callable[[], str],
) -> dict[str, object]:
    features, quirks = rules.features, rules.quirks
    devices: dict[str, object] = {}
    if picks:
        devices["results"] = [_result(pick, rules, new_share_id) for pick in picks]
    config = [*_class_configs(chosen), *_claim_configs(claim.wire, chosen, quirks)]
    if not quirks.config_keeps_names:
        config = [_for_all(entry, chosen) for entry in config]
    if config:
        devices["config"] = config
    allocation: dict[str, object] = {"devices": devices}
    selector = _node_selector(claim, picks, node, features)
    if selector is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _result(pick: Pick, rules: SchedulerRules, new_share_id: Callable[[], str]) -> dict[str, object]:
    features, quirks = rules.features, rules.quirks
    driver, pool, device = pick.device.id
    result: dict[str, object] = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.alternative.tolerations and not quirks.tolerations_dropped:
        result["tolerations"] = [_only(_TOLERATION, item) for item in pick.alternative.tolerations]
    if features.binding_conditions:
        for field in ("bindingConditions", "bindingFailureConditions"):
            if pick.device.wire.get(field):
                result[field] = list(pick.device.wire[field])
    if pick.consumed is not None:
        result["shareID"] = new_share_id()
        if pick.consumed:
            result["consumedCapacity"] = {name: value.text for name, value in pick.consumed.items()}
    return result


def _only(fields: Sequence[str], of: Wire) -> dict[str, object]:
    return {field: of[field] for field in fields if of.get(field) not in (None, "")}


def _configuration(of: Wire) -> dict[str, object]:
    opaque = of.get("opaque")
    if opaque is None:
        return {}
    return {"opaque": {field: opaque[field] for field in ("driver", "parameters") if field in opaque}}


def _class_configs(chosen: Sequence[Alternative]) -> list[Wire]:
    users: dict[str, list[Alternative]] = {}
    for alternative in chosen:
        users.setdefault(alternative.device_class["metadata"]["name"], []).append(alternative)
    return [
        {"source": "FromClass", "requests": [user.name for user in group], **_configuration(config)}
        for group in users.values()
        for config in group[0].device_class["spec"].get("config") or ()
    ]


def _claim_configs(claim: Wire, chosen: Sequence[Alternative], quirks: SchedulerQuirks) -> list[Wire]:
    """Entries without request names once. Others once for each named request in 1.36, once from 1.37 on."""
    configs: list[Wire] = []
    for config in (claim["spec"].get("devices") or {}).get("config") or ():
        entry = {"source": "FromClaim", **_configuration(config)}
        names = config.get("requests") or ()
        if not names:
            configs.append(entry)
            continue
        entry["requests"] = list(names)
        count = sum(alternative.base in names or alternative.name in names for alternative in chosen)
        configs += [entry] * (count if quirks.config_per_name else min(count, 1))
    return configs


def _for_all(entry: Wire, chosen: Sequence[Alternative]) -> Wire:
    """The entry without request names if it applies to every request, which means the same."""
    names = entry.get("requests")
    if names and all(one.base in names or one.name in names for one in chosen):
        return {field: value for field, value in entry.items() if field != "requests"}
    return entry


def _node_selector(
    claim: DecodedClaim, picks: Sequence[Pick], node: Wire, features: SchedulerFeatures
) -> dict[str, object] | None:
    term: dict[str, list[Wire]] = {"matchExpressions": [], "matchFields": []}
    for pick in picks:
        placement = pick.device.placement
        local = placement.get("nodeName") is not None
        if local or (pick.device.wire.get("bindsToNode") and not features.stable):
            only = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        _merge(claim, placement.get("nodeSelector"), term)
    filled = {part: requirements for part, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [filled]} if filled else None


def _merge(claim: DecodedClaim, selector: Wire | None, term: dict[str, list[Wire]]) -> None:
    terms: Sequence[Wire] = (selector or {}).get("nodeSelectorTerms") or []
    if len(terms) > 1:
        why = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
        raise AllocationError(f"create NodeSelector for {claim.label}: {why}")
    for part, known in term.items():
        for item in terms[0].get(part) or () if terms else ():
            if not any(_same(item, other) for other in known):
                known.append(_only(_REQUIREMENT, item))


def _same(left: Wire, right: Wire) -> bool:
    values = [set(item.get("values") or ()) for item in (left, right)]
    return values[0] == values[1] and all(left.get(part) == right.get(part) for part in ("key", "operator"))


_DEFAULT_FEATURES: Final = SchedulerFeatures()
_DEFAULT_LIMITS: Final = Limits()


class AllocationOutcome(Struct, frozen=True, kw_only=True):
    """The answer for one node: ``allocations`` has one AllocationResult per claim, in their order, or is None for
    ``reason``. The scheduler reports ``invalid_pools``, with contradictory slices, as an error of this node when the
    claims do not fit."""

    allocations: Sequence[dict[str, Any]] | None
    reason: str = ""
    invalid_pools: tuple[str, ...] = ()


class Question:
    """A pod's claims, decoded once for any number of nodes. Thread-safe."""

    def __init__(self, allocator: "Allocator", claims: Sequence[Wire], decoded: Sequence[DecodedClaim]) -> None:
        self._allocator = allocator
        self._claims = claims
        self.decoded = decoded
        self.solutions = SolutionCache()
        self._reads = _attributes_read(decoded)

    def content_key(self, node: Wire) -> ContentKey | None:
        """A key that is equal for nodes with the same answer, except for pool and node names; None if unknown. Compares
        the templates of their ResourceSlices (`PoolSlice.content`), not their devices."""
        if self._reads is None:
            return None
        return self._allocator.content_key(node, self._reads)

    def on(self, node: Wire, recorder: SearchRecorder | None = None) -> AllocationOutcome:
        """The devices for all claims on ``node``, or why the claims do not fit there. Raises AllocationError,
        CelSyntaxError or CelEvaluationError where the scheduler ends the attempt for all nodes."""
        wires = {"node": node, "claims": self._claims, **self._allocator.wires}
        return guarded(lambda: self._allocator.answer(self, node, recorder), wires)


class Allocator:
    """Devices, classes and allocated claims of a cluster at one moment. Thread-safe. ``slices`` are all ResourceSlices
    with device taints merged, ``allocated`` all claims that may have ``status.allocation``, as an API server returns
    them; the caller must not change them afterwards. Raises AllocationError on objects that no API server returns."""

    def __init__(
        self,
        *,
        slices: Sequence[Wire],
        classes: Iterable[Wire],
        allocated: Iterable[Wire],
        features: SchedulerFeatures = _DEFAULT_FEATURES,
        quirks: SchedulerQuirks = V1_36,
        limits: Limits = _DEFAULT_LIMITS,
        new_share_id: Callable[[], str] = lambda: str(uuid.uuid4()),  # the form of the scheduler's share IDs
    ) -> None:
        self._rules = SchedulerRules(features=replace(features, one_allocator=quirks.one_allocator), quirks=quirks)
        self._limits = limits
        self._new_share_id = new_share_id
        self._selector_sets: dict[tuple[tuple[str, str], ...], SelectorSet] = {}
        wires = {"slices": slices, "classes": classes, "allocated": allocated}
        self.wires: Mapping[str, Sequence[Wire]] = guarded(
            lambda: {name: list(items) for name, items in wires.items()}, wires
        )
        self._classes = guarded(lambda: {item["metadata"]["name"]: item for item in self.wires["classes"]}, self.wires)
        self._pool_index = guarded(lambda: self._read(self.wires), self.wires)

    def question(self, claims: Sequence[Wire]) -> Question:
        """Decodes the pod's unallocated claims once for many nodes. Raises AllocationError."""
        decoder = ClaimDecoder(classes=self._classes, features=self._rules.features, selector_set=self._selector_set)
        decoded = guarded(lambda: decoder.read(claims), {"claims": claims, **self.wires})
        return Question(self, claims, decoded)

    def allocate(self, node: Wire, claims: Sequence[Wire], recorder: SearchRecorder | None = None) -> AllocationOutcome:
        return self.question(claims).on(node, recorder)

    def reachable(self, node: Wire) -> ReachablePools:
        """The pools of the node with their devices, for callers that examine devices themselves."""
        return guarded(lambda: self._pool_index.reachable(node), {"node": node})

    def content_key(self, node: Wire, reads: frozenset[str]) -> ContentKey | None:
        return guarded(lambda: self._pool_index.content_key(node, reads), {"node": node, **self.wires})

    def own_pools(self, node: Wire) -> list[PoolKey]:
        """Driver and name of the pools with slices for this node alone, sorted."""
        return guarded(lambda: self._pool_index.own_pools(node), {"node": node})

    def answer(self, question: Question, node: Wire, recorder: SearchRecorder | None) -> AllocationOutcome:
        decoded = question.decoded
        reachable = self._pool_index.reachable(node)
        if recorder is not None:
            _record_left_out(reachable, recorder)
        budget = SearchBudget(self._limits)
        state = AllocationState(
            decoded, node=node, reachable=reachable, rules=self._rules, budget=budget, recorder=recorder
        )
        try:
            return self._searched(question, node, state, reachable, recorder)
        finally:
            state.end()

    def _searched(
        self,
        question: Question,
        node: Wire,
        state: AllocationState,
        reachable: ReachablePools,
        recorder: SearchRecorder | None,
    ) -> AllocationOutcome:
        state.prepare()
        search = Search(state)
        fits = search.run(None if recorder else self._limits.reuse_after * state.device_count)
        if fits is None:
            fits = _solve(question.solutions, state, search, reachable)
        if not fits:
            return _misfit(reachable, search, reports_invalid=not self._rules.quirks.pools_as_seen)
        return AllocationOutcome(
            allocations=[
                allocation_result(claim, picks, chosen, node=node, rules=self._rules, new_share_id=self._new_share_id)
                for claim, picks, chosen in zip(question.decoded, state.picks, search.chosen, strict=True)
            ]
        )

    def _read(self, wires: Mapping[str, Sequence[Wire]]) -> PoolIndex:
        uses = pool_uses(wires["allocated"], shares=self._rules.features.consumable_capacity)
        return PoolIndex(wires["slices"], uses, self._rules)

    def _selector_set(self, selectors: Sequence[DeviceSelector]) -> SelectorSet:
        key = tuple((selector.where, selector.expression) for selector in selectors)
        if key not in self._selector_sets:
            rules = self._rules
            self._selector_sets[key] = SelectorSet(
                selectors,
                sharing=not rules.features.stable,
                lacks=rules.quirks.functions_lacking,
                lists=rules.features.list_attributes,
            )
        return self._selector_sets[key]


def _attributes_read(decoded: Sequence[DecodedClaim]) -> frozenset[str] | None:
    names: set[str] = set()
    for claim in decoded:
        names.update(constraint.attribute.rpartition("/")[2] for constraint in claim.constraints)
        for alternative in (one for request in claim.requests for one in request.alternatives):
            found = alternative.selection.attributes_read()
            if found is None:
                return None
            names |= found
    return frozenset(names)


def _solve(solutions: SolutionCache, state: AllocationState, search: Search, reachable: ReachablePools) -> bool:
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


def _misfit(reachable: ReachablePools, search: Search, *, reports_invalid: bool) -> AllocationOutcome:
    invalid = tuple(str(pool) for pool in reachable.broken if pool.why == "invalid")
    if invalid and reports_invalid:
        reason = f"invalid resource pools were encountered: {', '.join(invalid)}"
        return AllocationOutcome(allocations=None, reason=reason, invalid_pools=invalid)
    return AllocationOutcome(allocations=None, reason=f"{search.stuck_at}: no combination of free devices matches")


def _record_left_out(reachable: ReachablePools, recorder: SearchRecorder) -> None:
    for pool in reachable.broken:
        recorder.record(PoolLeftOut(driver=pool.key[0], pool=pool.key[1], why=pool.why, detail=pool.detail))
    for driver, name in reachable.obsolete:
        detail = "a newer generation exists, with no slice for this node"
        recorder.record(PoolLeftOut(driver=driver, pool=name, why="obsolete", detail=detail))
