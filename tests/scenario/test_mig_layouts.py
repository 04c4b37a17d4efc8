"""Every layout that a board allows: published devices, the allocator and simulated hardware agree.

Each walk visits every allowed layout once, adding placements in one order, and tries every later placement at each: an
illegal layout is met when its first illegal part is complete. The catalogue's table is the reference; counters (through
the allocator's arithmetic) and simulated hardware must agree with it at every step.

The rule is the hardware's (NVIDIA's MIG user guide, nvml.h): no memory slice twice, no more compute slices than the
board has, no more instances of a profile than its maximum, no engine twice. `Board` shares no code with the simulated
hardware, the published slices and the allocator, which are compared with it. A number that the table lacks limits
nothing.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import NoRoomError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId, parse_partition_name
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.catalog import CatalogProfile
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.scheduler.allocation import V1_36, V1_37
from dra_driver.scheduler.allocation.devices import CounterAccount, read_supply
from tests.fakes.dra_objects import wire
from tests.fakes.published import Scheduler, built, partition, published
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.simulated_gpus import SimulatedBackend

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
Place = tuple[CatalogProfile, int]
Layout = tuple[Place, ...]


@dataclass(frozen=True)
class Board:
    """One board's table. The order of ``places`` differs from the published one."""

    model: str

    @property
    def table(self) -> catalog.MigTable:
        found = catalog.model(self.model).mig
        assert found is not None
        return found

    @property
    def places(self) -> list[Place]:
        return [(profile, start) for profile in self.table.profiles for start in profile.starts]

    def allows(self, layout: Layout) -> bool:
        slices = [index for profile, start in layout for index in range(start, start + profile.memory_slices)]
        if len(slices) != len(set(slices)) or max(slices, default=0) >= self.table.memory_slices:
            return False
        if sum(profile.compute_slices for profile, _ in layout) > self.table.compute_slices:
            return False
        profiles = [profile for profile, _ in layout]
        if any(profiles.count(profile) > profile.max_instances for profile in profiles):
            return False
        return all(self._has_engines(engine, profiles) for engine in ENGINES)

    def _has_engines(self, engine: str, profiles: list[CatalogProfile]) -> bool:
        whole = max(self.table.profiles, key=lambda profile: (profile.memory_slices, profile.compute_slices))
        there_are = getattr(whole.engines, engine)
        return there_are is None or sum(getattr(p.engines, engine) or 0 for p in profiles) <= there_are

    def layouts(self) -> Iterator[Layout]:
        places = self.places
        waiting: list[tuple[Layout, int]] = [((), 0)]
        while waiting:
            layout, first = waiting.pop()
            yield layout
            for at in range(first, len(places)):
                if self.allows((*layout, places[at])):
                    waiting.append(((*layout, places[at]), at + 1))

    def full_layouts(self) -> list[Layout]:
        return [
            layout
            for layout in self.layouts()
            if not any(place not in layout and self.allows((*layout, place)) for place in self.places)
        ]


MODELS = ["a30-24gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb"]
# The others have more placements, by the same rules; counters and hardware of all are compared in other tests, too.
WALKED = [pytest.param(model, marks=() if model == "a30-24gb" else pytest.mark.slow) for model in MODELS]
# Without b300 and gb300: their engines are unknown, so no counter limits "+me" to one instance. The hardware does.
MORE = ["rtx-pro-6000-blackwell-se-96gb", "h100-nvl-94gb", "gh200-96gb", "gh200-144gb", "gb200-186gb"]
Obj = dict[str, Any]


def in_mig_mode(model: str) -> tuple[SimulatedBackend, GpuUuid]:
    """A node with one such GPU in MIG mode, set by an administrator."""
    backend = SimulatedBackend.from_spec(f"1x{model}+mig", "n")
    return backend, backend.snapshot().gpus[0].uuid


def in_mode_held(model: str) -> Snapshot:
    """One such GPU as this driver partitions it: published whole and as every placement."""
    snapshot = in_mig_mode(model)[0].snapshot()
    return replace(snapshot, gpus=tuple(replace(gpu, mig_mode_owned=True) for gpu in snapshot.gpus))


def places_of(devices: list[Obj]) -> dict[tuple[int, int], Obj]:
    names = ((parse_partition_name(device["name"]), device) for device in devices)
    return {(name.profile_id, name.start): device for name, device in names if name is not None}


class Party(Protocol):
    def take(self, place: Place) -> bool: ...
    def give_back(self, place: Place) -> None: ...


class Counters:
    """The published counters, with the allocator's arithmetic."""

    def __init__(self, snapshot: Snapshot) -> None:
        listed = built(snapshot)
        self.devices: list[Obj] = wire(listed.devices)
        supply = read_supply(wire(listed.counter_sets), ())
        self._places = {key: supply.charges(device) for key, device in places_of(self.devices).items()}
        self._whole = [
            supply.charges(device) for device in self.devices if parse_partition_name(device["name"]) is None
        ]
        self._account = CounterAccount(supply)

    def take(self, place: Place) -> bool:
        charges = self._places.get((place[0].profile_id, place[1]))
        return charges is not None and self._account.charge(charges) is None

    def give_back(self, place: Place) -> None:
        self._account.move(self._places[place[0].profile_id, place[1]], 1)

    def whole_is_free(self) -> bool:
        (charges,) = self._whole
        free = self._account.charge(charges) is None
        if free:
            self._account.move(charges, 1)
        return free

    def nothing_beside_the_whole(self) -> bool:
        (charges,) = self._whole
        assert self._account.charge(charges) is None
        beside = [key for key, wanted in self._places.items() if self._account.charge(wanted) is None]
        self._account.move(charges, 1)
        return not beside


class Hardware:
    def __init__(self, model: str) -> None:
        self._backend, self._gpu = in_mig_mode(model)
        self._made: dict[Place, int] = {}

    def take(self, place: Place) -> bool:
        try:
            self._made[place] = self._backend.create_gpu_instance(self._gpu, place[0].profile_id, place[1])
        except NoRoomError:
            return False
        return True

    def give_back(self, place: Place) -> None:
        self._backend.destroy_gpu_instance(self._gpu, self._made.pop(place))


def walk(board: Board, parties: list[Party], layout: Layout = (), first: int = 0) -> Iterator[Layout]:
    """Visit every allowed layout with its placements allocated at all parties, which must agree with the table."""
    yield layout
    places = board.places
    for at in range(first, len(places)):
        place = places[at]
        allowed = board.allows((*layout, place))
        for party in parties:
            assert party.take(place) is allowed, (
                f"{type(party).__name__}: {described(layout)} and {described((place,))}"
            )
        if allowed:
            yield from walk(board, parties, (*layout, place), at + 1)
            for party in parties:
                party.give_back(place)


def described(layout: Layout) -> str:
    return ", ".join(f"{profile.name}@{start}" for profile, start in layout) or "nothing"


@pytest.mark.parametrize("model", WALKED)
def test_every_layout(model: str) -> None:
    board = Board(model)
    counters = Counters(in_mode_held(model))
    visited = 0
    for layout in walk(board, [counters, Hardware(model)]):
        assert counters.whole_is_free() is (not layout), described(layout)
        visited += 1
    assert visited == len(list(board.layouts()))
    assert counters.nothing_beside_the_whole()


@pytest.mark.parametrize("model", MORE)
def test_every_layout_of_further_boards(model: str) -> None:
    board = Board(model)
    counters = Counters(in_mode_held(model))
    assert sum(1 for _ in walk(board, [counters])) > 700


@pytest.mark.parametrize("model", MODELS)
def test_published_is_what_the_table_has(model: str) -> None:
    board = Board(model)
    devices = Counters(in_mode_held(model)).devices
    places = places_of(devices)
    assert len(devices) == len(places) + 1
    assert set(places) == {(profile.profile_id, start) for profile, start in board.places}
    for profile, start in board.places:
        device = places[profile.profile_id, start]
        assert device["attributes"]["profile"]["string"] == profile.name
        assert device["attributes"]["placementStart"]["int"] == start
        assert device["attributes"]["placementSize"]["int"] == profile.memory_slices
        memory = device["capacity"].get("memory")
        assert (memory is None) is (profile.memory_mib is None)


@pytest.mark.parametrize(
    "model", ["a30-24gb", *(pytest.param(model, marks=pytest.mark.slow) for model in ("a100-sxm4-40gb", "b200-180gb"))]
)
def test_beside_a_foreign_instance(model: str) -> None:
    board = Board(model)
    for foreign in board.places:
        backend, gpu = in_mig_mode(model)
        backend.foreign_create(gpu, foreign[0].profile_id, foreign[1])
        counters = Counters(backend.snapshot())
        beside = {key for key, device in places_of(counters.devices).items() if "uuid" not in device["attributes"]}
        assert beside == {
            (profile.profile_id, start)
            for profile, start in board.places
            if (profile, start) != foreign and board.allows((foreign, (profile, start)))
        }
        completed = 0
        for layout in board.layouts():
            if foreign in layout:
                rest = tuple(place for place in layout if place != foreign)
                assert all(counters.take(place) for place in rest), f"{described(rest)} beside {described((foreign,))}"
                for place in rest:
                    counters.give_back(place)
                completed += 1
        assert completed


def requests(layout: Layout) -> list[Obj]:
    return [partition(f"r{at}", profile.name, start=start) for at, (profile, start) in enumerate(layout)]


@pytest.mark.parametrize("model", WALKED)
def test_full_layouts_are_allocated_and_created(model: str) -> None:
    """One claim for a whole layout is allocated, in any order of requests, and each device is created and destroyed
    again; one more partition is refused."""
    board = Board(model)
    dice = random.Random(model)  # noqa: S311 - the same sample every time
    layouts = board.full_layouts()
    backend, gpu = in_mig_mode(model)
    manager = MigManager(backend, FakeGpuNotes())
    slices = published(built(backend.snapshot()))
    for layout in dice.sample(layouts, min(40, len(layouts))):
        wanted = requests(tuple(dice.sample(layout, len(layout))))
        scheduler = Scheduler(slices)
        granted = scheduler.allocate(*wanted, together=True)
        assert granted is not None, described(layout)
        sizes = {profile.profile_id: profile.memory_slices for profile, _ in layout}
        partitions = [as_partition(gpu, name) for name in granted[1]]
        for one in partitions:
            assert manager.create(one, sizes[one.profile_id], within_s=0).device is not None
        for place in dice.sample(board.places, 4):
            assert scheduler.allocate(*requests((place,))) is None, f"{described(layout)} and {described((place,))}"
        for one in dice.sample(partitions, len(partitions)):
            manager.destroy(one, within_s=0)
        assert backend.mig_instances(gpu) == ()


def as_partition(gpu: GpuUuid, device: str) -> PartitionId:
    name = parse_partition_name(device)
    assert name is not None
    return PartitionId(gpu, name.profile_id, name.start)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_through_the_allocator(model: str) -> None:
    """The whole search in place of its arithmetic: every full layout is allocated as a claim, and every placement
    that the table does not allow beside it is refused."""
    board = Board(model)
    slices = published(built(in_mig_mode(model)[0].snapshot()))
    for layout in board.full_layouts():
        scheduler = Scheduler(slices)
        assert scheduler.allocate(*requests(layout), together=True) is not None, described(layout)
        for place in board.places:
            assert scheduler.allocate(*requests((place,))) is None, f"{described(layout)} and {described((place,))}"


FOUR = [partition("a", "1g.5gb"), partition("b", "1g.5gb"), partition("c", "2g.10gb"), partition("d", "3g.20gb")]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1), (0, 2, 1, 3)])
def test_four_different_partitions_of_one_gpu(order: tuple[int, ...]) -> None:
    """1g, 1g, 2g and 3g on one parent fill an A100, on each GPU of the node in turn, in any order of the requests.

    With the rules of Kubernetes 1.36, where counters of devices that a constraint rejected stay charged.
    """
    snapshot = SimulatedBackend.from_spec("4xa100-sxm4-40gb+mig", "n").snapshot()
    scheduler = Scheduler(published(built(snapshot)))
    wanted = [FOUR[at] for at in order]
    for minor in range(4):
        granted = scheduler.allocate(*wanted, together=True)
        assert granted is not None
        assert {name.split("-mig-")[0] for name in granted[1]} == {f"gpu-{minor}"}
    assert scheduler.allocate(*wanted, together=True) is None


def test_the_same_claim_beside_a_partly_used_gpu() -> None:
    """From 1.37 on it gets the next GPU, in 1.36 it does not fit.

    Devices of free GPUs that 1.36 tried together with the first GPU stay charged. No order of devices helps: the
    counters are charged before the constraint is checked.
    """
    snapshot = SimulatedBackend.from_spec("4xa100-sxm4-40gb+mig", "n").snapshot()
    outcomes = {}
    for quirks in (V1_36, V1_37):
        scheduler = Scheduler(published(built(snapshot)), quirks)
        assert scheduler.allocate(partition("one", "1g.5gb")) is not None
        granted = scheduler.allocate(*FOUR, together=True)
        outcomes[quirks] = granted[1][0] if granted is not None else None
    assert outcomes == {V1_36: None, V1_37: "gpu-1-mig-1g5gb-19-3"}
