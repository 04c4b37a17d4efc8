"""Published devices, ResourceSlices and shared counters in the form that the search uses, and their allocated parts;
computed once per slice.

Allocation follows kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go: a result
with admin access allocates nothing, one with a share ID a share, any other the whole device.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from dra_driver.core.quantity import Format, Quantity
from dra_driver.kube.devices import results_of
from dra_driver.scheduler.allocation.capacity import Consumed, amount, nano
from dra_driver.scheduler.allocation.events import CounterShort, DeviceId, Wire

PoolKey = tuple[str, str]


class PoolUse(Struct):
    """Allocations in one pool, by device name. ``holders`` are the claims, ``namespace/name``."""

    whole: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    consumed: dict[str, Consumed] = field(default_factory=dict)
    holders: dict[str, list[str]] = field(default_factory=dict)


NO_USE = PoolUse()  # the use of a pool without allocated devices. Not to be changed.


def pool_uses(claims: Iterable[Wire], *, shares: bool) -> dict[PoolKey, PoolUse]:
    """Use by driver and pool. Without ``shares`` (gate DRAConsumableCapacity off) a share counts as a whole device."""
    uses: dict[PoolKey, PoolUse] = {}
    for claim in claims:
        for result in results_of(claim):
            if result.get("adminAccess"):
                continue
            name = result["device"]
            use = uses.setdefault((result["driver"], result["pool"]), PoolUse())
            use.holders.setdefault(name, []).append(_name(claim))
            if not shares or result.get("shareID") is None:
                use.whole.add(name)
                continue
            use.shared.add(name)
            if result.get("consumedCapacity") is not None:
                total = use.consumed.setdefault(name, {})
                for capacity, value in result["consumedCapacity"].items():
                    total[capacity] = total.get(capacity, 0) + nano(value)
    return uses


def _name(claim: Wire) -> str:
    metadata = claim.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


Charges = tuple[tuple[int, int], ...]  # index of a counter in the pool's supply, and billionths

_NOTHING: Final[frozenset[str]] = frozenset()


class PoolDevice(Struct, eq=False):
    """One published device and its allocations, compared by identity. ``allocated``: a claim has it whole;
    ``shared``: claims have shares of it, which consume ``consumed`` (None for nothing). ``invalid`` marks its pool as
    invalid, with the reason (1.34). ``readable``: selectors of 1.36 can read every attribute."""

    name: str
    wire: Wire
    slice: "PoolSlice"
    allocated: bool
    shared: bool
    consumed: Consumed | None
    readable: bool | None = None
    charges: Charges | None = None
    invalid: str = ""

    @property
    def id(self) -> DeviceId:
        return DeviceId(*self.slice.key, self.name)

    @property
    def placement(self) -> Wire:
        """The object with the node selection of the device: the device itself or its slice's spec."""
        return self.wire if self.slice.per_device else self.slice.spec


class PoolSlice(Struct, eq=False):
    """One ResourceSlice, at position ``order`` of the input. ``content`` is equal for slices that share their devices
    and counters, except for values of the attributes in ``varying``; it is valid as long as the slices live."""

    wire: Wire
    order: int
    spec: Wire
    name: str
    key: PoolKey
    generation: int
    count: int
    has_counters: bool
    per_device: bool
    content: tuple[int, int]
    varying: frozenset[str]
    use: PoolUse = field(default_factory=lambda: NO_USE)
    contents: "Contents | None" = None

    @classmethod
    def read(cls, wire: Wire, order: int) -> "PoolSlice":
        """The slice without its devices, which `read_contents` reads when a node reaches them."""
        spec = wire["spec"]
        pool = spec["pool"]
        devices, varying = _shared(spec.get("devices"))
        counters, varying_counters = _shared(spec.get("sharedCounters"))
        return cls(
            wire=wire,
            order=order,
            spec=spec,
            name=wire["metadata"]["name"],
            key=(spec["driver"], pool["name"]),
            generation=pool.get("generation") or 0,
            count=pool.get("resourceSliceCount") or 0,
            has_counters=bool(spec.get("sharedCounters")),
            per_device=bool(spec.get("perDeviceNodeSelection")),
            content=(devices, counters),
            varying=varying | varying_counters,
        )

    def read_contents(self, use: PoolUse) -> "Contents":
        """Its devices. Two threads may compute this at the same time; both results are equal."""
        if self.contents is None:
            self.use = use
            self.contents = _contents(self, use)
        return self.contents

    def holders(self, device: str) -> tuple[str, ...]:
        return tuple(self.use.holders.get(device, ()))


class Contents(Struct, eq=False):
    """Devices in the order of the slice, and the counters they refer to. ``binds``: one has binding conditions."""

    devices: list[PoolDevice] = field(default_factory=list)
    refers_to: dict[str, set[str]] = field(default_factory=dict)
    binds: bool = False


def _shared(items: object) -> tuple[int, frozenset[str]]:
    """A number for the content of a list, and the attributes that it does not cover. Lists of `kube.state_templates`
    with one ``template`` differ only in the attributes of ``template.varying``, None when those are unknown; names are
    without a domain."""
    template = getattr(items, "template", None)
    if template is None or template.varying is None:
        return (id(items) if items else 0), _NOTHING
    return id(template), template.varying


def _contents(of: PoolSlice, use: PoolUse) -> Contents:
    found = Contents()
    whole, shared, consumed = use.whole, use.shared, use.consumed
    untouched = not (whole or shared)
    refers_to, append = found.refers_to, found.devices.append
    for wire in of.spec.get("devices") or ():
        name = wire["name"]
        if untouched:
            append(PoolDevice(name, wire, of, False, False, None))
        else:
            append(PoolDevice(name, wire, of, name in whole, name in shared, consumed.get(name)))
        for entry in wire.get("consumesCounters") or ():
            counters = entry.get("counters") or ()
            known = refers_to.get(entry["counterSet"])
            if known is None:
                refers_to[entry["counterSet"]] = set(counters)
            else:
                known.update(counters)
        if wire.get("bindingConditions") is not None:
            found.binds = True
    return found


class CounterSupply(Struct, frozen=True, eq=False):
    """The numbered counters of a pool and what allocated devices leave of them (billionths; may be negative)."""

    index: Mapping[tuple[str, str], int]
    left: Sequence[int]
    formats: Sequence[Format]

    def charges(self, device: Wire) -> Charges:
        """Return the device's consumption of these counters; counters of other sets are ignored."""
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
    """Charges of one search to one supply. ``overdrawn`` counters are below zero; one of them blocks every device
    of the pool that consumes counters (``checkAvailableCounters`` compares all counters). Allocated devices that
    together exceed a counter cause this."""

    __slots__ = ("left", "overdrawn", "supply")

    def __init__(self, supply: CounterSupply) -> None:
        self.supply = supply
        self.left = list(supply.left)
        self.overdrawn = sum(value < 0 for value in self.left)

    def charge(self, charges: Charges) -> CounterShort | None:
        """Charge the counters, or return the first one that prevents it; then nothing is charged."""
        self.move(charges, -1)
        if not self.overdrawn:
            return None
        touched = [place for place, _ in charges if self.left[place] < 0]
        place = touched[0] if touched else next(place for place, value in enumerate(self.left) if value < 0)
        self.move(charges, 1)
        counter_set, counter = next(name for name, at in self.supply.index.items() if at == place)
        wanted = sum(value for at, value in charges if at == place)
        return CounterShort(
            counter_set=counter_set,
            counter=counter,
            wanted=str(Quantity(wanted, self.supply.formats[place])),
            free=str(Quantity(self.left[place], self.supply.formats[place])),
            own=bool(touched),
        )

    def move(self, charges: Charges, direction: int) -> None:
        """Charge (``direction`` -1) or refund (1)."""
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
        self.account.move(self.charges, 1)


class CounterLedger:
    """The accounts of one search. ``supply_of`` returns the supply of a pool. With ``by_name`` all pools of one name
    use the account of the pool that is charged first, whatever their drivers."""

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
        return account.charge(charges) or Charge(account, charges)

    def _charges(self, device: PoolDevice, charged: CounterSupply, own: CounterSupply) -> Charges:
        if charged is not own:
            return charged.charges(device.wire)
        if device.charges is None:
            device.charges = own.charges(device.wire)
        return device.charges
