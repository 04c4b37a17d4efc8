"""The state of one search: allocated devices, the candidates of each request, and the rest of the budget.

Follows ``allocateDevice`` and ``isSelectable`` of structured/internal/incubating/allocator_incubating.go in
k8s.io/dynamic-resource-allocation: the checks of a device, their order, and deallocation, with the mistakes of
`SchedulerQuirks`. Selectors are evaluated when the search first reaches a free device, so one that fails on a later
device does no harm. The scheduler limits an attempt to ten seconds per node (FilterTimeout of its plugin
dynamicresources).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation import events
from dra_driver.scheduler.allocation.capacity import Amount, Consumed, consumption, shortage
from dra_driver.scheduler.allocation.constraints import (
    Constraint,
    DistinctAttribute,
    DistinctByIdentity,
    DistinctOfAll,
    DistinctSets,
    MatchAttribute,
    MatchSets,
)
from dra_driver.scheduler.allocation.devices import Charge, CounterLedger, PoolDevice
from dra_driver.scheduler.allocation.nodes import reaches, untolerated
from dra_driver.scheduler.allocation.pools import Pool, ReachablePools
from dra_driver.scheduler.allocation.requests import MAX_DEVICES, Alternative, ConstraintSpec, DecodedClaim, too_many
from dra_driver.scheduler.allocation.scheduler_quirks import SchedulerRules
from dra_driver.scheduler.allocation.selectors import SELECTED

TIMEOUT_S: Final = 10.0
MAX_STEPS: Final = 2_000_000
_LOOK_EVERY: Final = 256


class Limits(Struct, frozen=True, kw_only=True):
    """Limits for one node: ``steps`` (devices checked) and seconds of ``clock``. After ``reuse_after`` checks per
    device, a search looks for the cached answer of an equivalent node; earlier, computing the key would take longer
    than the search."""

    reuse_after: int = 3
    steps: int = MAX_STEPS
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.monotonic


class SearchBudget(Struct, eq=False):
    """Remaining limits of one search."""

    limits: Limits
    steps: int = 0
    _end: float = 0.0
    _next_look: int = _LOOK_EVERY

    def __post_init__(self) -> None:
        self._end = self.limits.clock() + self.limits.timeout_s

    def step(self, where: str) -> None:
        """Counts one device check. Raises AllocationError, naming the request, when the budget is spent."""
        self.steps += 1
        if self.steps >= self._next_look:
            self._look(where)

    def _look(self, where: str) -> None:
        self._next_look = min(self.steps + _LOOK_EVERY, self.limits.steps)
        if self.steps >= self.limits.steps:
            raise AllocationError(
                f"{where}: no answer after {self.steps} checks of devices; fewer devices, requests or constraints, or "
                "narrower selectors make the search shorter"
            )
        if self.limits.clock() > self._end:
            raise AllocationError(
                f"{where}: no answer after {self.limits.timeout_s:g} s (filter operation aborted); fewer devices, "
                "requests or constraints, or narrower selectors make the search shorter"
            )


class Candidates(Struct, eq=False):
    """The candidates of one alternative in one search. ``size`` is the number of devices that the request needs;
    ``every`` lists the devices of a request for all devices."""

    _alternative: Alternative
    _devices: Sequence[PoolDevice]
    _checks: "AllocationState"
    size: int = 0
    every: list[PoolDevice] = []
    _has_side_effects: bool = False
    _cursor: int = 0
    _found: list[PoolDevice] = []
    _unchecked: set[PoolDevice] = set()
    _unsuitable: set[PoolDevice] = set()

    def __post_init__(self) -> None:
        alternative, checks = self._alternative, self._checks
        self.size = alternative.count
        constraints = checks.decoded[alternative.claim].constraints
        self._has_side_effects = any(constraints[place].distinct for place in alternative.constraints)

    def list_all(self) -> None:
        checks, alternative = self._checks, self._alternative
        self.every = [
            device
            for device in self._devices
            if checks.is_suitable(alternative, device) and checks.has_capacity(alternative, device)
        ]
        self.size = len(self.every)

    def next(self, position: int) -> tuple[PoolDevice, int] | None:
        """The first device from ``position`` on that could be allocated now, and the position after it."""
        found, checks, alternative = self._found, self._checks, self._alternative
        while position < len(found) or self._extend():
            device = found[position]
            position += 1
            if device in self._unsuitable or checks.is_taken_by_pod(alternative, device):
                continue
            if device in self._unchecked:
                self._unchecked.discard(device)
                if not checks.is_suitable(alternative, device):
                    self._unsuitable.add(device)
                    continue
            if checks.has_capacity(alternative, device):
                return device, position
        return None

    def is_short(self, position: int, needed: int) -> bool:
        """Return whether fewer than ``needed`` devices remain from ``position`` on; False if in doubt. True only if all
        devices are checked and trying them has no effect on later tries: in 1.36 a failed try changes counters and
        distinctAttribute."""
        if self._cursor < len(self._devices) or self._has_side_effects:
            return False
        return len(self._found) - position < needed

    def _extend(self) -> bool:
        checks, alternative, devices = self._checks, self._alternative, self._devices
        while self._cursor < len(devices):
            device = devices[self._cursor]
            self._cursor += 1
            if checks.is_allocated(alternative, device):
                continue
            if checks.is_taken_by_pod(alternative, device):
                self._unchecked.add(device)
            elif not checks.is_suitable(alternative, device):
                continue
            self._found.append(device)
            wire = device.wire
            if wire.get("consumesCounters") or wire.get("allowMultipleAllocations"):
                self._has_side_effects = True
            return True
        return False


_NO_CAPACITY: events.Wire = {}


class Pick(Struct, eq=False):
    """One device for one request. ``consumed`` is set for a share, ``charge`` if counters were charged."""

    alternative: Alternative
    device: PoolDevice
    consumed: dict[str, Amount] | None
    charge: Charge | None


class AllocationState:
    """The search for one pod on one node. Used once, by one thread."""

    def __init__(
        self,
        decoded: Sequence[DecodedClaim],
        *,
        node: events.Wire,
        reachable: ReachablePools,
        rules: SchedulerRules,
        budget: SearchBudget,
        recorder: events.SearchRecorder | None = None,
    ) -> None:
        self.decoded = decoded
        self.picks: list[list[Pick]] = [[] for _ in decoded]
        self.combines = not (rules.features.stable or rules.quirks.same_device_again)
        self.all_continues_as_first = rules.quirks.all_continues_as_first
        self._node = node
        self._features = rules.features
        self._quirks = rules.quirks
        self.budget = budget
        self._recorder = recorder
        self._reachable = reachable
        self._devices = _devices(reachable.pools)
        self._candidates: dict[Alternative, Candidates] = {}
        self._constraints = [[_constraint(at, one, rules) for at, one in enumerate(p.constraints)] for p in decoded]
        self._users: dict[PoolDevice, set[int]] = {}
        self._pending: dict[PoolDevice, Consumed] = {}
        supplies = {pool.key: pool for pool in reachable.pools}
        by_name = rules.quirks.counters_by_pool_name
        self._ledger = CounterLedger(lambda key: supplies[key].supply, by_name=by_name)

    def end(self) -> None:
        """Drop the candidates, which refer to this object: both are freed without garbage collection."""
        self._candidates.clear()

    @property
    def device_count(self) -> int:
        return len(self._devices)

    def prepare(self) -> None:
        """Lists the devices of requests with mode All. Raises AllocationError and the errors of `cel`."""
        for claim in self.decoded:
            least = 0
            for request in claim.requests:
                for alternative in request.alternatives:
                    if alternative.wants_all:
                        self._check_pools(alternative)
                        self.candidates(alternative).list_all()
                least += min(self.candidates(alternative).size for alternative in request.alternatives)
            if least > MAX_DEVICES:
                raise too_many(claim.label, least)

    def candidates(self, alternative: Alternative) -> Candidates:
        candidates = self._candidates.get(alternative)
        if candidates is None:
            candidates = self._candidates[alternative] = Candidates(alternative, self._devices, self)
        return candidates

    # --- checks for `Candidates` ---

    def is_allocated(self, alternative: Alternative, device: PoolDevice) -> bool:
        if not device.allocated or alternative.admin_access:
            return False
        if self._recorder is not None:
            self._reject(alternative, device, events.InUse(holders=device.slice.holders(device.name)))
        return True

    def is_taken_by_pod(self, alternative: Alternative, device: PoolDevice) -> bool:
        users = self._users.get(device)
        if not users or (alternative.admin_access and alternative.claim not in users):
            return False
        if self._recorder is not None:
            self._reject(alternative, device, events.InUse(holders=()))
        return True

    def is_suitable(self, alternative: Alternative, device: PoolDevice) -> bool:
        self.budget.step(alternative.label)
        if device.invalid:
            raise AllocationError(f"{alternative.label}: {device.invalid}")
        cause = self.unsuitable(alternative, device)
        if cause is not None:
            self._reject(alternative, device, cause)
        return cause is None

    def has_capacity(self, alternative: Alternative, device: PoolDevice) -> bool:
        if not self._features.consumable_capacity:
            return True
        capacities = device.wire.get("capacity") or _NO_CAPACITY
        pending = self._pending.get(device)
        short = shortage(
            alternative.capacity, capacities, device.consumed, pending, fractions=not self._quirks.whole_units
        )
        if short is not None:
            self._reject(alternative, device, short)
        return short is None

    def unsuitable(self, alternative: Alternative, device: PoolDevice) -> events.Cause | None:
        """Return why selectors, node selection or a gate exclude the device. Records and counts nothing."""
        wire = device.wire
        if not self._features.binding_conditions and wire.get("bindingConditions"):
            return events.GateOff(gate="DRADeviceBindingConditions")
        verdict = alternative.selection.verdict(device)
        if verdict != SELECTED:
            selector = alternative.selection.selectors[verdict]
            return events.NotSelected(
                class_name=selector.class_name, index=selector.index, expression=selector.expression
            )
        if device.slice.per_device and not reaches(wire, self._node):
            return events.NotOnNode()
        return None

    # --- allocation and deallocation ---

    def allocate(self, alternative: Alternative, device: PoolDevice, *, must: bool, have: int) -> Pick | None:
        """Allocate the device to the request, which has ``have`` devices, if counters, taints and constraints allow it;
        None otherwise. With ``must`` a broken constraint raises AllocationError. `SchedulerQuirks` describes the
        charges that remain after a refusal."""
        self.budget.step(alternative.label)
        shared = self._is_shared(device)
        if must and self._is_taken(alternative, device, shared):
            return None
        charged = self._charge(alternative, device, shared)
        if charged is False:
            return None
        charge = charged if isinstance(charged, Charge) else None
        if self._is_tainted(alternative, device) or not self._constrain(alternative, device, must):
            if charge is not None and not self._quirks.counters_stay_charged:
                charge.refund()
            return None
        if self._quirks.capacity_by_position:
            if self._features.consumable_capacity and not self._has_capacity_at(have, alternative, device, shared):
                return None
        elif must and not self.has_capacity(alternative, device):
            # 1.36 does not undo constraints and counters here.
            if not self._quirks.counters_stay_charged:
                self._release(alternative)
                if charge is not None:
                    charge.refund()
            return None
        consumed = self._consumed(alternative, device)
        if consumed is not None:
            self._share(device, consumed)
        else:
            self._users.setdefault(device, set()).add(alternative.claim)
        pick = Pick(alternative, device, consumed, charge)
        self.picks[alternative.claim].append(pick)
        return pick

    def pick_positions(self) -> list[list[tuple[Alternative, int]]]:
        at = {device: place for place, device in enumerate(self._devices)}
        return [[(pick.alternative, at[pick.device]) for pick in picks] for picks in self.picks]

    def reuse_picks(self, pick_positions: Sequence[Sequence[tuple[Alternative, int]]]) -> None:
        found = [[(alternative, self._devices[at]) for alternative, at in picks] for picks in pick_positions]
        self.picks = [
            [Pick(wanted, has, self._consumed(wanted, has), None) for wanted, has in picks] for picks in found
        ]

    def deallocate(self, alternative: Alternative, pick: Pick) -> None:
        device = pick.device
        self._release(alternative)
        users = self._users.get(device)
        if users is not None:
            users.discard(alternative.claim)
        if pick.consumed:
            self._unshare(device, pick.consumed)
        if pick.charge is not None and (pick.consumed is None or not self._quirks.shares_stay_charged):
            pick.charge.refund()
        self.picks[alternative.claim].pop()
        if (
            pick.consumed == {}
            and not self._quirks.shares_stay_charged
            and not any(other.device is device for picks in self.picks for other in picks)
        ):
            self._pending.pop(device, None)

    # --- the checks ---

    def _is_taken(self, alternative: Alternative, device: PoolDevice, shared: bool) -> bool:
        if alternative.admin_access:
            return not shared and self.is_taken_by_pod(alternative, device)
        return self.is_allocated(alternative, device) or self.is_taken_by_pod(alternative, device)

    def _charge(self, alternative: Alternative, device: PoolDevice, shared: bool) -> Charge | bool:
        """Charges the device's counters; True if it consumes none, False if the device is not available."""
        if not device.wire.get("consumesCounters"):
            return True
        if not self._features.partitionable_devices:
            self._reject(alternative, device, events.GateOff(gate="DRAPartitionableDevices"))
            return False
        if shared and (device.consumed is not None or device in self._pending) and not self._quirks.shares_charge_each:
            return True
        charge = self._ledger.charge(device)
        if isinstance(charge, Charge):
            return charge
        self._reject(alternative, device, charge)
        return False

    def _is_tainted(self, alternative: Alternative, device: PoolDevice) -> bool:
        taints = device.wire.get("taints")
        if not taints or not self._features.device_taints:
            return False
        taint = untolerated(taints, alternative.tolerations, every_effect=self._quirks.every_effect_blocks)
        if taint is not None:
            self._reject(alternative, device, taint)
        return taint is not None

    def _constrain(self, alternative: Alternative, device: PoolDevice, must: bool) -> bool:
        constraints = self._constraints[alternative.claim]
        for count, place in enumerate(alternative.constraints):
            if constraints[place].add(alternative.base, device):
                continue
            if must:
                why = "because a claim constraint would not be satisfied"
                raise AllocationError(f"{alternative.label}: cannot add device {device.id} {why}")
            if self._recorder is not None:
                self._reject(alternative, device, constraints[place].broken_by(device))
            for earlier in alternative.constraints[:count]:
                constraints[earlier].remove(alternative.base)
            return False
        return True

    def _has_capacity_at(self, have: int, alternative: Alternative, device: PoolDevice, shared: bool) -> bool:
        """The check of 1.34 on another device than the one to allocate. A refusal leaves everything as if allocated."""
        others = device.slice.read_contents(device.slice.use).devices
        if have >= len(others):
            raise AllocationError(
                f"{alternative.label}: the scheduler of Kubernetes 1.34 crashes (index out of range) when "
                f"DRAConsumableCapacity is on, and a request reaches its device {have + 1} in a ResourceSlice with "
                f"{len(others)} devices"
            )
        if not shared:
            self._users.setdefault(device, set()).add(alternative.claim)
        return self.has_capacity(alternative, others[have])

    def _release(self, alternative: Alternative) -> None:
        for place in alternative.constraints:
            self._constraints[alternative.claim][place].remove(alternative.base)

    def _is_shared(self, device: PoolDevice) -> bool:
        return self._features.consumable_capacity and bool(device.wire.get("allowMultipleAllocations"))

    def _consumed(self, alternative: Alternative, device: PoolDevice) -> dict[str, Amount] | None:
        """Return the consumption of a share; None for a device that cannot be shared."""
        if not self._is_shared(device):
            return None
        capacities = device.wire.get("capacity") or _NO_CAPACITY
        return consumption(alternative.capacity, capacities, fractions=not self._quirks.whole_units)

    def _share(self, device: PoolDevice, consumed: Mapping[str, Amount]) -> None:
        pending = self._pending.setdefault(device, {})
        for name, value in consumed.items():
            pending[name] = pending.get(name, 0) + value.nano

    def _unshare(self, device: PoolDevice, consumed: Mapping[str, Amount]) -> None:
        pending = self._pending.get(device)
        if pending is None:
            return
        for name, value in consumed.items():
            if name in pending:
                pending[name] -= value.nano
        if not any(pending.values()):
            del self._pending[device]

    def _check_pools(self, alternative: Alternative) -> None:
        for pool in self._reachable.broken:
            state = "being updated" if pool.why == "incomplete" else "invalid"
            why = f"asks for all devices, but resource pool {pool} is currently {state}: {pool.detail}"
            raise AllocationError(f"{alternative.label}: {why}")

    def _reject(self, alternative: Alternative, device: PoolDevice, cause: events.Cause) -> None:
        if self._recorder is not None:
            rejection = events.Rejection(
                claim=alternative.claim, request=alternative.name, device=device.id, cause=cause
            )
            self._recorder.record(rejection)


def _devices(pools: Sequence[Pool]) -> Sequence[PoolDevice]:
    if len(pools) == 1:
        return pools[0].devices
    return [device for pool in pools for device in pool.devices]


def _constraint(place: int, of: ConstraintSpec, rules: SchedulerRules) -> Constraint:
    quirks = rules.quirks
    if rules.features.list_attributes and not quirks.lists_meet_nothing:
        sets = DistinctSets if of.distinct else MatchSets
        return sets(place, of.attribute, of.requests)
    if not of.distinct:
        return MatchAttribute(place, of.attribute, of.requests)
    if quirks.distinct_by_identity:
        return DistinctByIdentity(place, of.attribute, of.requests)
    kind = DistinctAttribute if quirks.distinct_forgets else DistinctOfAll
    return kind(place, of.attribute, of.requests)
