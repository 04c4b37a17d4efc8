"""Compute the capacity that a request consumes, and whether the device has that much left.

Amounts are in billionths. Of k8s.io/apimachinery pkg/api/resource (quantity.go, ParseQuantity) they keep the spelling
(a canonical spelling is printed unchanged) and the fields of the struct, which the scheduler compares in one place.
Consumption follows structured/internal/incubating/consumable_capacity.go of k8s.io/dynamic-resource-allocation
(KEP-5075). For devices that cannot be shared, a request is a lower bound of the capacity.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from dra_driver.core.errors import AllocationError
from dra_driver.core.quantity import NANO, Format, Quantity, WrittenQuantity
from dra_driver.scheduler.allocation.events import CapacityShort, Wire

_INT64: Final = 2**63

Form = tuple[int, int, Format, str]


class Amount(NamedTuple):
    """A quantity. ``form`` is value, power of ten, format and kept text of Go's struct; None if it equals no other."""

    quantity: Quantity
    form: Form | None

    @property
    def nano(self) -> int:
        return self.quantity.nano

    @property
    def text(self) -> str:
        return (self.form[3] if self.form else "") or str(self.quantity)


def amount(text: object) -> Amount:
    """The amount in a field of an API object. Raises ValueError with a full sentence."""
    return _amount(text if isinstance(text, str) else _number(text))


def nano(text: object) -> int:
    """The billionths in a field of an API object. Raises ValueError with a full sentence."""
    return _amount(text if isinstance(text, str) else _number(text)).quantity.nano


def whole(value: int) -> Amount:
    """``value`` whole units, printed with binary suffixes where that loses nothing (``NewQuantity(…, BinarySI)``)."""
    return Amount(Quantity.from_bytes(value), (value, 0, Format.BINARY_SI, ""))


def units(of: Amount) -> int:
    """Whole units, fractions away from zero, as a 64-bit number (``Quantity.Value()``)."""
    return max(-_INT64, min(_INT64 - 1, of.quantity.as_int()))


def in_milli(of: Amount) -> int:
    """Thousandths, fractions away from zero (``Quantity.MilliValue()``)."""
    count = -(-abs(of.nano) // (NANO // 1000))
    return count if of.nano >= 0 else -count


def _number(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{str(value)[:40]!r} is not a quantity: expected text such as 80Gi or 500m")


@lru_cache(maxsize=16384)
def _amount(text: str) -> Amount:
    return Amount(Quantity.parse(text), _form(text))


def _form(text: str) -> Form | None:
    """The fields of Go's fast form of a quantity; None where Go keeps a pointer to a big decimal."""
    if text == "0":
        return 0, 0, Format.DECIMAL_SI, text
    written = WrittenQuantity.parse(text)
    small = written.small()
    if small is None:
        return None
    value, scale = small
    digits = written.whole + written.fraction
    if written.format is Format.BINARY_SI:
        kept = int(digits) & 7 != 0
    else:
        kept = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    return (-value if written.negative else value), scale, written.format, text if kept else ""


Consumed = dict[str, int]  # capacity name -> billionths

_MILLI: Final = NANO // 1000


def shortage(
    requests: Wire | None, capacities: Wire, used: Consumed | None, pending: Consumed | None, *, fractions: bool = False
) -> CapacityShort | None:
    """Return why the request does not fit, None if it fits. Allocated shares consume ``used``, this search ``pending``.
    ``fractions`` counts steps in thousandths and refuses negative requests, as Kubernetes 1.37 does. Raises ValueError
    and AllocationError on policies that the API server refuses."""
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
    return {
        name: _consumption(requests.get(name) if requests else None, capacity, fractions)
        for name, capacity in capacities.items()
    }


def _consumption(asked: object, capacity: Wire, fractions: bool) -> Amount:
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
