"""Shared counters: what a pool offers, and what the devices of a search consume (KEP-4815).

Follows ``checkAvailableCounters`` and ``deallocateCountersForDevice`` of
structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation, with their mistakes in
1.36. Counters are numbered per pool: charging a device adds to a few items of a list.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from dra_driver.core.quantity import Format, Quantity
from dra_driver.scheduler.allocation.capacity import amount, nano
from dra_driver.scheduler.allocation.devices import Charges, PoolDevice, PoolKey
from dra_driver.scheduler.allocation.events import CounterShort, Wire


class CounterSupply(Struct, frozen=True, eq=False):
    """The numbered counters of a pool and what allocated devices leave of them (billionths; may be negative)."""

    index: Mapping[tuple[str, str], int]
    left: Sequence[int]
    formats: Sequence[Format]

    def charges(self, device: Wire) -> Charges:
        """What the device consumes of these counters; counters of other sets are ignored."""
        found = []
        for entry in device.get("consumesCounters") or ():
            for name, counter in (entry.get("counters") or {}).items():
                place = self.index.get((entry["counterSet"], name))
                if place is not None:
                    found.append((place, nano(counter["value"])))
        return tuple(found)


def read_supply(sets: Iterable[Wire], allocated: Iterable[Wire]) -> CounterSupply:
    """The supply of counter sets, less the consumption of devices that are allocated, whole or shared."""
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
    """What one search has charged to one supply.

    ``overdrawn`` is the number of counters below zero. A single one blocks every device of the pool that consumes
    counters, also devices that do not consume this counter: ``checkAvailableCounters`` compares all counters of the
    pool. Allocated devices that exceed a counter together cause this.
    """

    __slots__ = ("left", "overdrawn", "supply")

    def __init__(self, supply: CounterSupply) -> None:
        self.supply = supply
        self.left = list(supply.left)
        self.overdrawn = sum(value < 0 for value in self.left)

    def charge(self, charges: Charges) -> bool:
        """Charges the counters and returns True; False without a charge if a counter of the pool were overdrawn."""
        self._move(charges, -1)
        if self.overdrawn:
            self._move(charges, 1)
            return False
        return True

    def refund(self, charges: Charges) -> None:
        self._move(charges, 1)

    def shortage(self, charges: Charges) -> CounterShort:
        """The first counter that prevents these charges. Call it after `charge` returned False."""
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
    account: CounterAccount
    charges: Charges

    def refund(self) -> None:
        self.account.refund(self.charges)


class CounterLedger:
    """The accounts of one search. ``supply_of`` returns the supply of a pool.

    With ``by_name`` all pools of one name use the account of the pool that is charged first, whatever their drivers.
    """

    __slots__ = ("_accounts", "_by_name", "_supply_of")

    def __init__(self, supply_of: Callable[[PoolKey], CounterSupply], *, by_name: bool) -> None:
        self._supply_of = supply_of
        self._by_name = by_name
        self._accounts: dict[PoolKey | str, CounterAccount] = {}

    def charge(self, device: PoolDevice) -> Charge | CounterShort:
        """Charges the device's counters, or returns which counter is short; then nothing is charged."""
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
