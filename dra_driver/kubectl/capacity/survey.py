"""Counts what is free, used, fragmented and stranded in a cluster, and what would still fit (terms: ``report.py``).

Visits all nodes and their pools. The allocator (`dra_driver.scheduler.allocation`) decides which pools a node reaches,
so a pool counts exactly when the scheduler would use it.

Other requirements of pods (CPU, affinity, node taints) and requests that mix kinds are ignored. Devices that several
nodes reach are a separate place: a claim for several GPUs never fits partly there and partly on a node.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.core.errors import DraError
from dra_driver.kube.devices import Wire
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity.fit_count import Aggregate, FitCounter, Options
from dra_driver.kubectl.capacity.report import CapacityReport, NodeCapacity
from dra_driver.kubectl.capacity.units import Unit, node_problem, units_of, units_of_devices
from dra_driver.scheduler.allocation import (
    NO_USE,
    Allocator,
    Limits,
    Pool,
    PoolDevice,
    PoolKey,
    PoolSlice,
    guarded,
    pool_uses,
)

ANYWHERE: Final = ""
_MAX_NOTES: Final = 10
_DEFAULTS: Final = Options()


def survey(state: ClusterState, options: Options = _DEFAULTS, *, driver: str = "", node: str = "") -> CapacityReport:
    """Counts the capacity of a cluster; ``driver`` and ``node`` select a part. Slices must include taints of rules.

    Raises AllocationError for objects that no API server returns. Runs about ``options.timeout_s`` at most.
    """
    wires = {"slices": state.slices, "allocated": state.claims}
    return guarded(lambda: _Survey(state, options, driver, node).report(), wires)


class _Survey:
    def __init__(self, state: ClusterState, options: Options, driver: str, node: str) -> None:
        self._state = state
        self._only_node = node
        self._driver = driver
        self._shares = options.features.consumable_capacity
        self._allocator = Allocator(
            slices=state.slices,
            classes=(),
            allocated=state.claims,
            features=options.features,
            quirks=options.quirks,
            limits=Limits(clock=options.clock),
        )
        self._fit_counter = FitCounter(options)
        self._notes: dict[str, int] = {}
        self._broken: dict[PoolKey, str] = {}
        self._counted_units: set[tuple[str, ...]] = set()
        self._places: dict[str, Aggregate] = {}

    def report(self) -> CapacityReport:
        problems = dict(map(self._count_node, self._nodes()))
        self._count_broken()
        whole = Aggregate()
        for place in self._places.values():
            whole.join(place)
        places = list(self._places.values())
        return CapacityReport(
            source=self._state.source,
            server_version=self._state.server_version,
            gaps=tuple(self._state.gaps),
            notes=self._note_texts(),
            models=tuple(whole.models(places)),
            stranded_shapes=tuple(whole.stranded(places)),
            nodes=tuple(
                NodeCapacity(node=name, problem=problems.get(name, ""), models=tuple(place.models()))
                for name, place in sorted(self._places.items())
            ),
        )

    def _nodes(self) -> Iterator[tuple[Wire, str]]:
        """Yields nodes with the reason why they take no ordinary pods, then nodes that only slices name.

        Without any node in the state the nodes are unknown, and those that slices name are assumed to be usable.
        """
        known = set()
        for node in self._state.nodes:
            known.add(node["metadata"]["name"])
            if self._only_node in ("", node["metadata"]["name"]):
                yield node, node_problem(node)
        missing = "no-such-node" if known else ""
        for item in self._state.slices:
            for name in _node_names(item["spec"]):
                if name not in known and self._only_node in ("", name):
                    known.add(name)
                    yield {"metadata": {"name": name}}, missing

    def _count_node(self, pair: tuple[Wire, str]) -> tuple[str, str]:
        node, problem = pair
        name = node["metadata"]["name"]
        try:
            reach = self._allocator.reachable(node)
        except DraError as error:
            self._note(f"node {name}: its devices cannot be determined: {error}")
            return name, problem
        for pool in reach.broken:
            if pool.key not in self._broken and self._wanted(pool.key):
                self._broken[pool.key] = pool.why
                self._note(f"pool {pool} is {pool.why}: {pool.detail}")
        for pool in reach.pools:
            if self._wanted(pool.key):
                self._count(pool, name, problem)
        return name, problem

    def _count(self, pool: Pool, node: str, problem: str) -> None:
        for unit in units_of(pool, shares=self._shares):
            local = unit.is_local()
            if not local:
                # Other nodes reach it, too: it is counted once, with the first usable node.
                if problem or unit.key in self._counted_units:
                    continue
                self._counted_units.add(unit.key)
            self._add(unit, node if local else ANYWHERE, problem)

    def _add(self, unit: Unit, place: str, problem: str) -> None:
        counted = self._fit_counter.count_fits(unit)
        if counted.problem:
            self._note(f"{'/'.join(unit.key)}: {counted.problem}", by=counted.problem)
        self._places.setdefault(place, Aggregate()).add(unit, counted, problem)

    def _count_broken(self) -> None:
        """Counts the devices of pools that the scheduler ignores."""
        if not self._broken:
            return
        uses = pool_uses(self._state.claims, shares=self._shares)
        newest: dict[PoolKey, list[PoolSlice]] = {}
        for order, wire in enumerate(self._state.slices):
            item = PoolSlice.read(wire, order)
            if item.key in self._broken:
                have = newest.setdefault(item.key, [])
                if have and item.generation > have[0].generation:
                    have.clear()
                if not have or item.generation == have[0].generation:
                    have.append(item)
        for key, slices in newest.items():
            by_node: dict[str, list[PoolDevice]] = {}
            for item in slices:
                for device in item.read_contents(uses.get(key, NO_USE)).devices:
                    by_node.setdefault(device.placement.get("nodeName") or ANYWHERE, []).append(device)
            for node, devices in by_node.items():
                if self._only_node and node not in (ANYWHERE, self._only_node):
                    continue
                for unit in units_of_devices(key[0], devices, shares=self._shares):
                    self._add(unit, node, f"{self._broken[key]}-pool")

    def _wanted(self, key: PoolKey) -> bool:
        return not self._driver or key[0] == self._driver

    def _note(self, text: str, *, by: str = "") -> None:
        """Adds a note once per text, or once per ``by`` if many devices have the same problem."""
        if by and any(known.endswith(by) for known in self._notes):
            return
        self._notes[text] = self._notes.get(text, 0) + 1

    def _note_texts(self) -> Sequence[str]:
        notes = list(self._notes)
        more = len(notes) - _MAX_NOTES
        return (*notes[:_MAX_NOTES], *([f"and {more} more"] if more > 0 else []))


def _node_names(spec: Wire) -> Iterator[str]:
    if spec.get("nodeName"):
        yield spec["nodeName"]
    elif spec.get("perDeviceNodeSelection"):
        for device in spec.get("devices") or ():
            if device.get("nodeName"):
                yield device["nodeName"]
