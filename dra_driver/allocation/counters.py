"""Shared counters: what a pool offers, and what the devices of an attempt consume.

Owns the arithmetic and its faults in Kubernetes 1.36 (``checkAvailableCounters``, ``deallocateCountersForDevice`` of
structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation, KEP-4815). Counters are
numbered per pool, so that charging a device is adding to a few places of a list.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dra_driver.allocation.allocated import PoolKey
from dra_driver.allocation.amounts import amount, nano
from dra_driver.allocation.devices import Charges, PoolDevice
from dra_driver.allocation.events import CounterShort
from dra_driver.quantity import Format, Quantity

Wire = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class CounterSupply:
    """The counters of a pool, numbered, and what allocated devices leave of them (billionths, perhaps negative)."""

    index: Mapping[tuple[str, str], int]
    left: Sequence[int]
    formats: Sequence[Format]

    def charges(self, device: Wire) -> Charges:
        """What the device consumes of these counters; others do not concern this supply."""
        found = []
        for entry in device.get("consumesCounters") or ():
            for name, counter in (entry.get("counters") or {}).items():
                place = self.index.get((entry["counterSet"], name))
                if place is not None:
                    found.append((place, nano(counter["value"])))
        return tuple(found)


def read_supply(sets: Iterable[Wire], allocated: Iterable[Wire]) -> CounterSupply:
    """The supply of counter sets, less the consumption of devices that are allocated whole or in part."""
    index: dict[tuple[str, str], int] = {}
    left: list[int] = []
    formats: list[Format] = []
    for entry in sets:
        for name, counter in (entry.get("counters") or {}).items():
            index[entry["name"], name] = len(left)
            offered = amount(counter["value"]).quantity
            left.append(offered.nano)
            formats.append(offered.format)
    supply = CounterSupply(index, left, formats)
    for device in allocated:
        for place, value in supply.charges(device):
            left[place] -= value
    return supply


class CounterAccount:
    """What one attempt has charged to one supply.

    ``overdrawn`` counts counters below zero; any one blocks every device of the pool that consumes counters, also those
    that do not touch it.
    """

    __slots__ = ("left", "overdrawn", "supply")

    def __init__(self, supply: CounterSupply) -> None:
        self.supply = supply
        self.left = list(supply.left)
        self.overdrawn = sum(value < 0 for value in self.left)

    def charge(self, charges: Charges) -> bool:
        """Take the counters; False, and nothing taken, when some counter of the pool is overdrawn then."""
        self._move(charges, -1)
        if self.overdrawn:
            self._move(charges, 1)
            return False
        return True

    def refund(self, charges: Charges) -> None:
        """Undo one charge."""
        self._move(charges, 1)

    def shortage(self, charges: Charges) -> CounterShort:
        """The first counter that stands in the way of these charges, after `charge` said no."""
        self._move(charges, -1)
        touched = [place for place, _ in charges if self.left[place] < 0]
        place = touched[0] if touched else next(place for place, value in enumerate(self.left) if value < 0)
        self._move(charges, 1)
        counter_set, counter = next(name for name, at in self.supply.index.items() if at == place)
        wanted = sum(value for at, value in charges if at == place)
        return CounterShort(
            counter_set=counter_set,
            counter=counter,
            wanted=str(Quantity(wanted, self.supply.formats[place])),
            free=str(Quantity(self.left[place], self.supply.formats[place])),
            own=bool(touched),
        )

    def _move(self, charges: Charges, direction: int) -> None:
        left = self.left
        for place, value in charges:
            before = left[place]
            after = left[place] = before + direction * value
            if (before < 0) != (after < 0):
                self.overdrawn += 1 if after < 0 else -1


class Charge(NamedTuple):
    """What one device was charged, and where."""

    account: CounterAccount
    charges: Charges

    def refund(self) -> None:
        """Undo the charge, once."""
        self.account.refund(self.charges)


class CounterLedger:
    """The accounts of one attempt. ``supply_of`` gives the supply of a pool.

    With ``by_name`` pools of one name share the account of the pool that is charged first, whatever their drivers.
    """

    __slots__ = ("_accounts", "_by_name", "_supply_of")

    def __init__(self, supply_of: Callable[[PoolKey], CounterSupply], *, by_name: bool) -> None:
        self._supply_of = supply_of
        self._by_name = by_name
        self._accounts: dict[PoolKey | str, CounterAccount] = {}

    def charge(self, device: PoolDevice) -> Charge | CounterShort:
        """Take the device's counters, or say which one is short; then nothing is taken."""
        pool = device.slice.key
        name = pool[1] if self._by_name else pool
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = CounterAccount(self._supply_of(pool))
        charges = self._charges(device, account.supply, self._supply_of(pool))
        return Charge(account, charges) if account.charge(charges) else account.shortage(charges)

    def _charges(self, device: PoolDevice, charged: CounterSupply, own: CounterSupply) -> Charges:
        if charged is not own:
            return charged.charges(device.wire)
        if device.charges is None:
            device.charges = own.charges(device.wire)
        return device.charges
