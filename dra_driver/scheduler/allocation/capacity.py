"""What a request consumes of a device's capacities, and whether that much is left.

Follows structured/internal/incubating/consumable_capacity.go of k8s.io/dynamic-resource-allocation (KEP-5075): request
policies and sums of shares. Devices that cannot be shared pass the same check; there a request is a lower bound of the
device's capacity.
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.core.errors import AllocationError
from dra_driver.core.quantity import NANO, Quantity
from dra_driver.scheduler.allocation.amounts import Amount, amount, in_milli, nano, units, whole
from dra_driver.scheduler.allocation.events import CapacityShort

Wire = Mapping[str, Any]
Consumed = dict[str, int]
"""Capacity name -> billionths."""

_MILLI: Final = NANO // 1000


def shortage(
    requests: Wire | None, capacities: Wire, used: Consumed | None, pending: Consumed | None, *, fractions: bool = False
) -> CapacityShort | None:
    """Why the request does not fit, None if it does.

    ``used`` is what allocated shares consume, ``pending`` what this search has allocated. ``fractions`` counts steps in
    thousandths and refuses negative requests, as Kubernetes 1.37 does. Raises ValueError and AllocationError on
    policies that the API server refuses.
    """
    for name in requests or ():
        if name not in capacities:
            return CapacityShort(capacity=name, why="undefined", wanted=str((requests or {})[name]), free="")
    for name, capacity in capacities.items():
        asked = requests.get(name) if requests else None
        policy = capacity.get("requestPolicy")
        if asked is None and policy is None and not used and not pending:
            continue
        wanted = _consumption(asked, capacity, fractions)
        if _violates(wanted, policy, fractions) or (fractions and wanted.nano < 0):
            return CapacityShort(capacity=name, why="policy", wanted=wanted.text, free="")
        gone = (used or {}).get(name, 0) + (pending or {}).get(name, 0)
        value = nano(capacity["value"])
        if wanted.nano + gone > value:
            free = str(Quantity(value - gone, amount(capacity["value"]).quantity.format))
            return CapacityShort(capacity=name, why="short", wanted=wanted.text, free=free)
    return None


def consumption(requests: Wire | None, capacities: Wire, *, fractions: bool = False) -> dict[str, Amount]:
    """What a share consumes of every capacity of its device."""
    return {
        name: _consumption(requests.get(name) if requests else None, capacity, fractions)
        for name, capacity in capacities.items()
    }


def _consumption(asked: Any, capacity: Wire, fractions: bool) -> Amount:
    policy = capacity.get("requestPolicy")
    if asked is None:
        default = policy.get("default") if policy else None
        return amount(capacity["value"] if default is None else default)
    wanted = amount(asked)
    if not policy:
        return wanted
    within = policy.get("validRange")
    if within is not None and within.get("min") is not None:
        return _round_up(wanted, within, fractions)
    for value in policy.get("validValues") or ():
        if wanted.nano <= nano(value):
            return amount(value)
    return wanted


def _round_up(wanted: Amount, within: Wire, fractions: bool) -> Amount:
    least = amount(within["min"])
    if wanted.nano < least.nano:
        return least
    if within.get("step") is None:
        return wanted
    step, _ = _step(within, fractions)
    count = in_milli if fractions else units
    above = count(wanted) - count(least)
    total = count(least) + step * (above // step + (1 if above % step else 0))
    if not fractions:
        return whole(total)
    return whole(total // 1000) if total % 1000 == 0 else Amount(Quantity(total * _MILLI), None)


def _violates(wanted: Amount, policy: Wire | None, fractions: bool) -> bool:
    if not policy:
        return False
    if policy.get("default") is not None and wanted.form is not None and wanted.form == amount(policy["default"]).form:
        return False
    within = policy.get("validRange")
    if within is not None:
        if within.get("max") is not None and wanted.nano > nano(within["max"]):
            return True
        if within.get("step") is None:
            return False
        step, least = _step(within, fractions)
        return ((in_milli if fractions else units)(wanted) - least) % step != 0
    values = policy.get("validValues") or ()
    return bool(values) and all(wanted.nano != nano(value) for value in values)


def _step(within: Wire, fractions: bool) -> tuple[int, int]:
    count = in_milli if fractions else units
    if within.get("min") is None:
        raise AllocationError("a validRange with a step has no min: the API server refuses such a requestPolicy")
    step = count(amount(within["step"]))
    if step <= 0:
        raise AllocationError(f"a validRange has the step {within['step']}: expected more than zero")
    return step, count(amount(within["min"]))
