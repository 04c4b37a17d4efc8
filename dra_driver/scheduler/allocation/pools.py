"""The pools of devices that one node reaches, and which of their ResourceSlices count. Follows
structured/internal/incubating/pools_incubating.go of k8s.io/dynamic-resource-allocation (Kubernetes 1.36): relevant
slices, newest generation, completeness, validity, and the order of pools. Parts that do not depend on the node are
computed once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field

from dra_driver.scheduler.allocation.devices import (
    NO_USE,
    CounterSupply,
    PoolDevice,
    PoolKey,
    PoolSlice,
    PoolUse,
    read_supply,
)
from dra_driver.scheduler.allocation.events import Wire
from dra_driver.scheduler.allocation.nodes import reaches
from dra_driver.scheduler.allocation.scheduler_quirks import SchedulerRules

ContentKey = tuple[object, ...]


class Pool(Struct, eq=False):
    """Devices of one pool that a node reaches, in the order in which they are tried; none if ``why`` is ``incomplete``
    or ``invalid``, with a ``detail``. ``elsewhere`` are devices in slices for other nodes, which consume counters of
    the pool too."""

    key: PoolKey
    why: str = ""
    detail: str = ""
    devices: list[PoolDevice] = field(default_factory=list)
    elsewhere: list[PoolDevice] = field(default_factory=list)
    counter_slices: Sequence[PoolSlice] = ()
    binds: bool = False
    shares_hide_counters: bool = False
    _supply: CounterSupply | None = None

    def __str__(self) -> str:
        return "/".join(self.key)

    @property
    def supply(self) -> CounterSupply:
        if self._supply is None:
            taken = [
                device
                for device in chain(self.devices, self.elsewhere)
                if device.allocated or (device.shared and not self.shares_hide_counters)
            ]
            sets = (entry for item in self.counter_slices for entry in item.spec["sharedCounters"])
            self._supply = read_supply(sets, [device.wire for device in taken])
        return self._supply


class ReachablePools(Struct, kw_only=True):
    """Pools that one node reaches: ``pools`` in the order of trial, and ``broken`` or ``obsolete`` pools."""

    pools: list[Pool]
    broken: list[Pool]
    obsolete: list[PoolKey]


class PoolIndex:
    """All ResourceSlices of a cluster at one moment. Thread-safe. The caller must not change the wire objects."""

    def __init__(self, slices: Sequence[Wire], uses: Mapping[PoolKey, PoolUse], rules: SchedulerRules) -> None:
        self._uses = uses
        self._features = rules.features
        self._quirks = rules.quirks
        self._by_pool: dict[PoolKey, list[PoolSlice]] = {}
        self._on_node: dict[str, list[PoolSlice]] = {}
        self._anywhere: list[PoolSlice] = []
        self._counters: dict[PoolKey, list[PoolSlice]] = {}
        for order, wire in enumerate(slices):
            self._add(PoolSlice.read(wire, order))
        self._known: dict[tuple[int, ...], Pool | None] = {}
        self._foreign: list[Pool] | None = None

    def __del__(self) -> None:
        """Part slices from their devices, so that a cluster's are freed without garbage collection. A slice that
        outlives this object reads its devices again."""
        for items in getattr(self, "_by_pool", {}).values():
            for item in items:
                item.contents = None

    def reachable(self, node: Wire) -> ReachablePools:
        """The node's pools by driver and name, pools with binding conditions last. Raises AllocationError."""
        groups: dict[PoolKey, list[PoolSlice]] = {}
        for item in self._relevant(node):
            groups.setdefault(item.key, []).append(item)
        found = ReachablePools(pools=[], broken=[], obsolete=[])
        for key, items in groups.items():
            pool = self._pool(key, items)
            if pool is None:
                found.obsolete.append(key)
            else:
                if pool.why:
                    found.broken.append(pool)
                if not pool.why or self._quirks.pools_as_seen:
                    found.pools.append(pool)
        foreign = self._foreign_broken()
        if foreign:
            found.broken += [pool for pool in foreign if pool.key not in groups]
        if len(found.pools) > 1:
            found.pools.sort(key=lambda pool: (pool.binds, pool.key))
        found.broken.sort(key=lambda pool: pool.key)
        return found

    def _add(self, item: PoolSlice) -> None:
        self._by_pool.setdefault(item.key, []).append(item)
        spec = item.spec
        if not self._features.partitionable_devices:
            counted = item.has_counters and not self._quirks.pools_as_seen
            if counted or spec.get("perDeviceNodeSelection") is not None:
                return
        elif item.has_counters and self._quirks.counter_slices_everywhere:
            self._counters.setdefault(item.key, []).append(item)
            return
        if spec.get("nodeName"):
            self._on_node.setdefault(spec["nodeName"], []).append(item)
        else:
            self._anywhere.append(item)

    def _relevant(self, node: Wire) -> Iterable[PoolSlice]:
        """The node's own slices, then those for several nodes, both in the order of the input. `_foreign_broken`
        handles counter slices of other pools."""
        own = self._on_node.get(node["metadata"]["name"], [])
        shared = [item for item in self._anywhere if _selects(item, node)] if self._anywhere else []
        if self._counters:
            keys = dict.fromkeys(item.key for item in chain(own, shared))
            counters = [item for key in keys for item in self._counters.get(key, ())]
            shared = sorted([*shared, *counters], key=_by_order) if shared else counters
        if self._features.stable:
            return sorted([*own, *shared], key=_by_order)
        if self._quirks.slices_as_listed:
            return sorted([*own, *shared], key=self._binding_last)
        return chain(own, shared)

    def _binding_last(self, item: PoolSlice) -> tuple[bool, int]:
        return not item.has_counters and item.read_contents(self._uses.get(item.key, NO_USE)).binds, item.order

    def _foreign_broken(self) -> list[Pool]:
        """Broken pools of other nodes: their counter slices are relevant on every node, so they break every node."""
        if self._foreign is None:
            self._foreign = list(self._broken_by_counters())
        return self._foreign

    def _broken_by_counters(self) -> Iterator[Pool]:
        usable: set[ContentKey] = set()
        for key, items in self._counters.items():
            like = slices_content_key(self._by_pool[key], by_name=True)
            if like in usable:
                continue
            pool = self._pool(key, items)
            if pool is not None and pool.why:
                yield pool
            elif pool is not None:
                usable.add(like)

    def content_key(self, node: Wire, reads: frozenset[str]) -> ContentKey | None:
        """A key that is equal for nodes with the same answer, except for pool names, to a question that reads the
        attributes ``reads`` (without a domain). None when the devices have no template, or when other nodes reach them.
        """
        name = node["metadata"]["name"]
        if self._anywhere or name not in self._on_node:
            return None
        parts: list[object] = []
        pool_names: list[str] = []
        for key in self.own_pools(node):
            items = self._by_pool[key]
            if not all(item.spec.get("nodeName") == name and item.varying.isdisjoint(reads) for item in items):
                return None
            if key[1] not in pool_names:
                pool_names.append(key[1])
            like = slices_content_key(items, by_name=not self._features.stable)
            parts.append((key[0], pool_names.index(key[1]), like, _use_key(self._uses.get(key))))
        return tuple(parts)

    def own_pools(self, node: Wire) -> list[PoolKey]:
        """The pools with slices for this node alone, sorted."""
        return sorted({item.key for item in self._on_node.get(node["metadata"]["name"], ())})

    def _pool(self, key: PoolKey, relevant: Sequence[PoolSlice]) -> Pool | None:
        known_as = tuple([item.order for item in relevant])
        if known_as not in self._known:
            self._known[known_as] = self._assemble(key, relevant)
        return self._known[known_as]

    def _assemble(self, key: PoolKey, relevant: Sequence[PoolSlice]) -> Pool | None:
        newest = max(item.generation for item in relevant)
        current = [item for item in relevant if item.generation == newest]
        expected = current[0].count
        if self._quirks.pools_as_seen:
            return self._build_as_seen(key, current)
        every: list[PoolSlice] = []
        if len(current) != expected:
            whole = self._by_pool[key]
            if any(item.generation > newest for item in whole):
                return None
            every = [item for item in whole if item.generation == newest]
            if len(every) != expected:
                detail = f"{len(every)} of {expected} slices of generation {newest} are published"
                return Pool(key, why="incomplete", detail=detail)
        if not (self._features.stable or self._quirks.slices_as_listed):
            current.sort(key=lambda item: item.name)
        return self._build(key, current, every)

    def _build(self, key: PoolKey, current: Sequence[PoolSlice], every: Sequence[PoolSlice]) -> Pool:
        use = self._uses.get(key, NO_USE)
        counted = self._features.partitionable_devices
        pool = Pool(key, shares_hide_counters=self._quirks.shares_hide_counters)
        offering = [item for item in current if not (counted and item.has_counters)]
        for item in offering:
            contents = item.read_contents(use)
            pool.devices += contents.devices
            pool.binds = pool.binds or (contents.binds and not self._features.stable)
        problem = _duplicate("device", [device.name for device in pool.devices])
        if counted and not problem:
            names = {item.name for item in current}
            others = [item for item in every if item.name not in names] if len(every) > len(current) else []
            pool.counter_slices = [item for item in current if item.has_counters]
            consumers = [*current, *others]
            if not self._quirks.counter_slices_everywhere:
                pool.counter_slices = [item for item in consumers if item.has_counters]
                others = [item for item in others if not item.has_counters]
                consumers = [*offering, *others]
            pool.elsewhere = [device for item in others for device in item.read_contents(use).devices]
            problem = _counter_problem(pool.counter_slices, consumers, use)
        return Pool(key, why="invalid", detail=problem) if problem else pool

    def _build_as_seen(self, key: PoolKey, current: Sequence[PoolSlice]) -> Pool:
        """Follow 1.34: counter sets are in the slices of their devices, and other slices are not searched."""
        use = self._uses.get(key, NO_USE)
        pool = Pool(key, shares_hide_counters=True)
        for item in current:
            contents = item.read_contents(use)
            pool.devices += contents.devices
            pool.binds = pool.binds or contents.binds
        pool.counter_slices = [item for item in current if item.has_counters]
        if len(current) != current[0].count:
            pool.why = "incomplete"
            pool.detail = f"{len(current)} of {current[0].count} slices are published for the node"
        problem = _duplicate("device", [device.name for device in pool.devices])
        if problem:
            pool.why = "invalid" if not pool.why else pool.why
            pool.detail = pool.detail or problem
            mark = PoolDevice("", {"name": ""}, current[0], False, False, None, invalid=f"pool {key[1]} is invalid")
            pool.devices = [mark]
        return pool


def slices_content_key(items: Sequence[PoolSlice], *, by_name: bool) -> ContentKey:
    """A key that is equal for pools of equal slices, in the order in which they are read, but for varying values."""
    ordered = sorted(items, key=(lambda item: item.name) if by_name else _by_order)
    newest = max(item.generation for item in items)
    distinct = len({item.name for item in items})
    return (distinct, *((item.content, newest - item.generation, item.count, item.has_counters) for item in ordered))


def _use_key(use: PoolUse | None) -> ContentKey:
    if use is None:
        return ()
    consumed = tuple((name, tuple(sorted(part.items()))) for name, part in sorted(use.consumed.items()))
    return (frozenset(use.whole), frozenset(use.shared), consumed)


def _by_order(item: PoolSlice) -> int:
    return item.order


def _selects(item: PoolSlice, node: Wire) -> bool:
    spec = item.spec
    if spec.get("nodeName") or spec.get("allNodes") or spec.get("nodeSelector") is not None:
        return reaches(spec, node)
    if item.per_device:
        return any(reaches(device, node) for device in spec.get("devices") or ())
    return False  # a node selection that 1.36 does not have


def _counter_problem(sources: Sequence[PoolSlice], consumers: Sequence[PoolSlice], use: PoolUse) -> str:
    sets: dict[str, Wire] = {}
    for item in sources:
        for entry in item.spec["sharedCounters"]:
            if entry["name"] in sets:
                return f"duplicate counter set name {entry['name']}"
            sets[entry["name"]] = entry.get("counters") or {}
    for item in consumers:
        for name, counters in item.read_contents(use).refers_to.items():
            if name not in sets:
                return f"counter set {name} not found"
            if not counters <= sets[name].keys():
                return f"counter {min(counters - sets[name].keys())} not found in counter set {name}"
    return ""


def _duplicate(what: str, names: list[str]) -> str:
    if len(set(names)) == len(names):
        return ""
    seen: set[str] = set()
    twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return f"duplicate {what} name {twice}"
