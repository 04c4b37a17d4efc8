"""The search itself: depth first, first fit, claims by requests by devices, every choice revisable.

Owns which device may be taken for which request. Follows ``allocateOne`` of k8s.io/dynamic-resource-allocation
structured/internal/incubating/allocator_incubating.go; its measured behaviour (Kubernetes 1.36.2) wins where
KEP-4381 says less. Devices with shared counters or several allocations are passed over: nothing is double-booked.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.allocation.constraints import Constraint, parse_constraints
from dra_driver.allocation.pools import Device, DeviceId, Pool
from dra_driver.allocation.requests import MAX_DEVICES, Alternative, Request, claim_label, parse_requests
from dra_driver.cel import DeviceView
from dra_driver.errors import AllocationError, CelEvaluationError
from dra_driver.quantity import Quantity

Wire = Mapping[str, Any]

# A realistic search looks at some hundred devices; the real scheduler stops after ten seconds.
_MAX_STEPS: Final = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """One device for one request."""

    alternative: Alternative
    device: Device


class Search:
    """One scheduling attempt of one pod on one node. Used once, by one thread."""

    def __init__(
        self, claims: Sequence[Wire], classes: Mapping[str, Wire], pools: Sequence[Pool], taken: Collection[DeviceId]
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._taken = taken
        self._requests: list[list[Request]] = [parse_requests(claim, classes) for claim in claims]
        self._constraints: list[list[Constraint]] = [parse_constraints(claim) for claim in claims]
        self._devices = [device for pool in pools if not (pool.incomplete or pool.invalid) for device in pool.devices]
        self._picks: list[list[Pick]] = [[] for _ in claims]
        self._chosen: list[list[Alternative]] = [[] for _ in claims]
        self._allocating: set[DeviceId] = set()
        self._selected: dict[tuple[int, DeviceId], bool] = {}
        self._views: dict[DeviceId, DeviceView] = {}
        self._all: dict[int, list[Device]] = {}
        self._steps = 0
        self._completions = 0
        self.stuck_at = ""

    def run(self) -> list[list[Pick]] | None:
        """Picks per claim, None when they do not fit. Raises AllocationError and the errors of `cel`."""
        for index, requests in enumerate(self._requests):
            self._list_all(index, requests)
        return self._picks if self._claim(0) else None

    @property
    def chosen(self) -> list[list[Alternative]]:
        """The alternative that was taken for each request of each claim, after a successful `run`."""
        return self._chosen

    def _claim(self, claim: int) -> bool:
        return claim == len(self._claims) or self._request(claim, 0)

    def _request(self, claim: int, index: int) -> bool:
        if index == len(self._requests[claim]):
            return self._claim(claim + 1)
        request = self._requests[claim][index]
        self.stuck_at = f"{claim_label(self._claims[claim])}, request {request.name}"
        for alternative in request.alternatives:
            if not self._within_limit(claim, index, alternative):
                continue
            self._chosen[claim].append(alternative)
            search = self._take_all if alternative.wants_all else self._take_some
            if search(claim, index, alternative, 0, 0):
                return True
            self._chosen[claim].pop()
        return False

    def _take_some(self, claim: int, index: int, alternative: Alternative, have: int, start: int) -> bool:
        """Combinations, not permutations: the next device stands behind the one before."""
        if have == alternative.count:
            self._completions += 1
            return self._request(claim, index + 1)
        free_choice = not any(constraint.applies(alternative) for constraint in self._constraints[claim])
        for position in range(start, len(self._devices)):
            device = self._devices[position]
            if self._usable(claim, alternative, device) and self._add(claim, alternative, device):
                before = self._completions
                if self._take_some(claim, index, alternative, have + 1, position + 1):
                    return True
                self._remove(claim, alternative)
                if free_choice and self._completions == before:
                    return False  # too few devices from here on; without constraints later ones are fewer still
        return False

    def _take_all(self, claim: int, index: int, alternative: Alternative, have: int, _start: int) -> bool:
        wanted = self._all[id(alternative)]
        if not wanted:
            return False
        if have == len(wanted):
            return self._request(claim, index + 1)
        device = wanted[have]
        if not self._free(claim, alternative, device) or not _tolerates(alternative, device):
            return False
        if not self._add(claim, alternative, device):
            label = f"{claim_label(self._claims[claim])}, request {alternative.name}"
            raise AllocationError(
                f"{label}: cannot add device {device.id} because a claim constraint would not be satisfied"
            )
        if self._take_all(claim, index, alternative, have + 1, 0):
            return True
        self._remove(claim, alternative)
        return False

    def _list_all(self, claim: int, requests: Sequence[Request]) -> None:
        label = claim_label(self._claims[claim])
        least = 0
        for request in requests:
            for alternative in request.alternatives:
                if alternative.wants_all:
                    self._check_pools(f"{label}, request {alternative.name}")
                    matches = [device for device in self._devices if self._fits(alternative, device)]
                    self._all[id(alternative)] = matches
            least += self._least(request)
        if least > MAX_DEVICES:
            raise AllocationError(
                f"{label}: number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
            )

    def _size(self, alternative: Alternative) -> int:
        return len(self._all[id(alternative)]) if alternative.wants_all else alternative.count

    def _least(self, request: Request) -> int:
        return min(self._size(alternative) for alternative in request.alternatives)

    def _within_limit(self, claim: int, index: int, alternative: Alternative) -> bool:
        """Whether the claim can still end with at most 32 devices when this alternative is taken."""
        later = sum(self._least(request) for request in self._requests[claim][index + 1 :])
        return len(self._picks[claim]) + self._size(alternative) + later <= MAX_DEVICES

    def _check_pools(self, label: str) -> None:
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                raise AllocationError(f"{label}: asks for all devices, but resource pool {pool} is currently {state}")

    def _usable(self, claim: int, alternative: Alternative, device: Device) -> bool:
        return (
            self._free(claim, alternative, device)
            and self._fits(alternative, device)
            and _tolerates(alternative, device)
        )

    def _free(self, claim: int, alternative: Alternative, device: Device) -> bool:
        if alternative.admin_access:
            return all(pick.device.id != device.id for pick in self._picks[claim])
        return device.id not in self._taken and device.id not in self._allocating

    def _fits(self, alternative: Alternative, device: Device) -> bool:
        """Class and request selectors, then capacity; remembered, because searching back asks again."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise AllocationError(f"{self.stuck_at}: no answer after weighing devices {_MAX_STEPS} times")
        if device.wire.get("consumesCounters") or device.wire.get("allowMultipleAllocations"):
            return False
        key = (id(alternative), device.id)
        if key not in self._selected:
            self._selected[key] = self._selects(alternative, device) and _has_capacity(alternative, device)
        return self._selected[key]

    def _selects(self, alternative: Alternative, device: Device) -> bool:
        for selector in alternative.selectors:
            try:
                if not selector.program.evaluate(self._view(device)):
                    return False
            except CelEvaluationError as error:
                raise CelEvaluationError(
                    f"{selector.where}: CEL runtime error on device {device.id}: {error}"
                ) from error
        return True

    def _view(self, device: Device) -> DeviceView:
        view = self._views.get(device.id)
        if view is None:
            try:
                view = self._views[device.id] = DeviceView(device.id.driver, device.wire)
            except ValueError as error:
                raise CelEvaluationError(f"device {device.id}: {error}") from error
        return view

    def _add(self, claim: int, alternative: Alternative, device: Device) -> bool:
        added: list[Constraint] = []
        for constraint in self._constraints[claim]:
            if constraint.applies(alternative):
                if not constraint.add(alternative, device):
                    for undone in added:
                        undone.remove()
                    return False
                added.append(constraint)
        self._picks[claim].append(Pick(alternative, device))
        if not alternative.admin_access:
            self._allocating.add(device.id)
        return True

    def _remove(self, claim: int, alternative: Alternative) -> None:
        pick = self._picks[claim].pop()
        if not alternative.admin_access:
            self._allocating.discard(pick.device.id)
        for constraint in self._constraints[claim]:
            if constraint.applies(alternative):
                constraint.remove()


def _has_capacity(alternative: Alternative, device: Device) -> bool:
    """A device that is not shared serves a capacity request when it has at least that much."""
    capacities = device.wire.get("capacity") or {}
    for name, wanted in alternative.capacity.items():
        domain, _, identifier = name.partition("/")
        found = capacities.get(name) or (capacities.get(identifier) if domain == device.id.driver else None)
        if found is None or Quantity.parse(found["value"]) < Quantity.parse(wanted):
            return False
    return True


def _tolerates(alternative: Alternative, device: Device) -> bool:
    blocking = [taint for taint in device.wire.get("taints") or () if taint["effect"] in ("NoSchedule", "NoExecute")]
    return all(any(_covers(toleration, taint) for toleration in alternative.tolerations) for taint in blocking)


def _covers(toleration: Wire, taint: Wire) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
