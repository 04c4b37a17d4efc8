"""Published devices and ResourceSlices in the form that the search works on, and what is allocated of them.

What is computed here is computed once per slice, for all nodes and requests. Records refer to the wire objects and do
not change them. Allocation follows kubernetes/kubernetes
pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go: a result with admin access allocates nothing, one
with a share ID a share, any other the whole device.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from dra_driver.kube.devices import results_of
from dra_driver.scheduler.allocation.capacity import Consumed, nano
from dra_driver.scheduler.allocation.events import DeviceId, Wire

PoolKey = tuple[str, str]


class PoolUse(Struct):
    """What is allocated in one pool, by device name. ``holders`` are the claims, ``namespace/name``."""

    whole: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    consumed: dict[str, Consumed] = field(default_factory=dict)
    holders: dict[str, list[str]] = field(default_factory=dict)


NO_USE = PoolUse()
"""The use of a pool without allocated devices. Not to be changed."""


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


def allocated_devices(claims: Iterable[Wire]) -> Iterable[DeviceId]:
    """Devices that are allocated, whole or in shares. A result with admin access allocates nothing."""
    for claim in claims:
        for result in results_of(claim):
            if not result.get("adminAccess"):
                yield DeviceId(result["driver"], result["pool"], result["device"])


def _name(claim: Wire) -> str:
    metadata = claim.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


Charges = tuple[tuple[int, int], ...]
"""Index of a counter in the pool's supply, and billionths."""

_NOTHING: Final[frozenset[str]] = frozenset()


class PoolDevice(Struct, eq=False):
    """One published device and what is allocated of it. Compared by identity: an ID is unique within a valid pool.

    ``allocated``: an allocated claim has it whole. ``shared``: allocated claims have shares of it, which consume
    ``consumed`` (None if they consume nothing). ``invalid`` makes it a mark that its pool is invalid, with the reason,
    and no device (1.34). ``readable``: selectors of 1.36 can read every attribute. ``readable``
    and ``charges`` are computed on first use.
    """

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
    """One ResourceSlice. ``order`` is its position in the input.

    ``content`` is equal for slices that share their devices and counters, except for values of the attributes in
    ``varying``, which are texts. It is valid as long as the slices live.
    """

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
        """The claims (``namespace/name``) that have the device or shares of it."""
        return tuple(self.use.holders.get(device, ()))


class Contents(Struct, eq=False):
    """Devices in the order of the slice, and the counters they refer to. ``binds``: one has binding conditions."""

    devices: list[PoolDevice] = field(default_factory=list)
    refers_to: dict[str, set[str]] = field(default_factory=dict)
    binds: bool = False


def _shared(items: object) -> tuple[int, frozenset[str]]:
    """A number for the content of a list, and the attributes that it does not cover. A list is equal to itself.

    Lists of `kube.state_templates` with one ``template`` differ only in the values of the attributes in
    ``template.varying``, None when those are unknown. Names of attributes are without a domain.
    """
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
