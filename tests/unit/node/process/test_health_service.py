"""When the health of the GPUs is looked at, published and told."""

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition, HealthEvent, HealthEventKind, HealthReading
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.core.model.terms import GpuTerms
from dra_driver.node.process.health_report import ReportedDevice
from dra_driver.node.process.health_service import (
    CLAIMED_S,
    LOOK_S,
    PAUSE_S,
    TICK_S,
    ClaimedDevices,
    HealthMonitor,
    rules_in_force,
)
from dra_driver.node.process.missing_gpus import MissingGpu
from dra_driver.node.process.terms_resolver import TermsResolver
from tests.fakes.stand_in import stand_in
from tests.unit.node.health.world import condition
from tests.unit.node.process.test_terms_resolver import Policies
from tests.unit.node.slices.gpus import H100, gpu, instance, mig_gpu, snapshot

FIRST, SECOND = gpu(0), gpu(1)
XID = HealthEvent(kind=HealthEventKind.XID, gpu_uuid=FIRST.uuid, xid=79)


class Hardware:
    """What a source reports; ``broken`` raises."""

    def __init__(self) -> None:
        self.events: list[tuple[HealthEvent, ...]] = []
        self.readings = [HealthReading(gpu_uuid=each.uuid) for each in (FIRST, SECOND)]
        self.forgotten: list[GpuUuid] = []
        self.broken = False
        self.wanted = False
        self.looks = 0

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        assert timeout_s > 0
        return self.events.pop(0) if self.events else ()

    def health_look_wanted(self) -> bool:
        wanted, self.wanted = self.wanted, False
        return wanted

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        return {}

    def health_readings(self) -> tuple[HealthReading, ...]:
        self.looks += 1
        if self.broken:
            raise DriverUnavailableError("no driver")
        return tuple(self.readings)

    def forget_gpu(self, gpu: GpuUuid) -> None:
        self.forgotten.append(gpu)
        self.readings = [each for each in self.readings if each.gpu_uuid != gpu]


class Health:
    """Conditions by the simplest rules: every event and every unreachable GPU is one."""

    def __init__(self) -> None:
        self.held: dict[tuple[GpuUuid, int | None], HealthCondition] = {}
        self.seen: list[tuple[HealthReading, ...]] = []
        self.ticks = False

    def observe(self, events: Iterable[HealthEvent]) -> bool:
        return self._set({(each.gpu_uuid, each.gi_id): HealthCause.XID for each in events})

    def look(self, readings: Iterable[HealthReading], unmonitored: Mapping[GpuUuid, str]) -> bool:
        self.seen.append(tuple(readings))
        return self._set({(each.gpu_uuid, None): HealthCause.LOST for each in self.seen[-1] if each.unreachable})

    def instances(self, existing: Mapping[GpuUuid, Collection[int]]) -> bool:
        before = dict(self.held)
        self.held = {
            key: value for key, value in before.items() if key[1] is None or key[1] in existing.get(key[0], ())
        }
        return self.held != before

    def forget(self, gpu: GpuUuid) -> bool:
        return self.held.pop((gpu, None), None) is not None

    repaired = forget

    def tick(self) -> bool:
        ticked, self.ticks = self.ticks, False
        return ticked

    def conditions(self) -> tuple[HealthCondition, ...]:
        return tuple(self.held.values())

    def _set(self, found: Mapping[tuple[GpuUuid, int | None], HealthCause]) -> bool:
        before = dict(self.held)
        for (uuid, gi_id), cause in found.items():
            self.held.setdefault((uuid, gi_id), condition(cause=cause, gpu_uuid=uuid, gi_id=gi_id))
        return self.held != before


class Node:
    def __init__(self) -> None:
        self.now = 100.0
        self.hardware, self.health = Hardware(), Health()
        self.snapshot: Snapshot = snapshot(FIRST, SECOND)
        self.missing: dict[GpuUuid, MissingGpu] = {}
        self.happened: list[str] = []
        self.monitor = HealthMonitor(
            self.hardware,
            stand_in(self.health),
            snapshot=lambda: self.snapshot,
            missing=lambda: self.missing,
            publish=lambda: self.happened.append("publish"),
            tell=lambda: self.happened.append("tell"),
            clock=lambda: self.now,
        )

    def step(self, *, after_s: float = 0.0) -> list[str]:
        self.now += after_s
        self.happened.clear()
        self.wait_s = self.monitor.step()
        return list(self.happened)


@pytest.fixture
def node() -> Node:
    made = Node()
    made.step()
    return made


def test_gpus_that_are_given_back_after_a_drain_are_repaired_all_of_them(node: Node) -> None:
    node.health.observe([XID, replace(XID, gpu_uuid=SECOND.uuid)])
    node.monitor.undrained([FIRST.uuid, SECOND.uuid])
    assert node.health.conditions() == ()
    assert node.step() == ["tell"]
    node.monitor.undrained([FIRST.uuid])
    assert node.step() == []


def test_a_healthy_node_is_looked_at_and_told_every_ten_seconds(node: Node) -> None:
    assert node.wait_s == LOOK_S
    assert node.step(after_s=LOOK_S - 1) == []
    assert node.wait_s == 1.0
    assert node.step(after_s=1.0) == ["tell"]
    assert node.hardware.looks == 2


def test_an_event_is_published_at_once_by_the_thread_that_heard_it(node: Node) -> None:
    node.hardware.events = [(XID,)]
    node.happened.clear()
    node.monitor.collect_events()
    assert node.happened == ["publish"]
    assert node.step(after_s=0.1) == ["tell"]
    assert node.wait_s == pytest.approx(PAUSE_S - 0.1), "and looked at soon"
    assert node.step(after_s=PAUSE_S) == ["tell"]
    assert node.hardware.looks == 2
    node.hardware.readings[1] = HealthReading(gpu_uuid=SECOND.uuid, unreachable="it is lost")
    node.hardware.wanted = True
    node.happened.clear()
    node.monitor.collect_events()
    assert node.happened == [], "a wait that ends for a lost GPU is followed by a poll"
    assert node.step(after_s=PAUSE_S) == ["publish", "tell"]
    node.monitor.collect_events()
    assert node.hardware.looks == 3


def test_events_without_consequence_publish_nothing_and_a_flood_is_looked_at_once_a_second(node: Node) -> None:
    """10,000 XIDs a second must cost little."""
    node.health.observe([XID])
    for _ in range(50):
        node.hardware.events = [(XID,)]
        node.happened.clear()
        node.monitor.collect_events()
        assert node.step(after_s=PAUSE_S / 40) in ([], ["tell"])
    assert node.hardware.looks == 2


def test_a_look_that_finds_something_is_published_before_it_is_told(node: Node) -> None:
    node.hardware.readings[1] = HealthReading(gpu_uuid=SECOND.uuid, unreachable="it is lost")
    assert node.step(after_s=LOOK_S) == ["publish", "tell"]
    assert node.wait_s == TICK_S
    node.health.ticks = True
    assert node.step(after_s=TICK_S) == ["publish", "tell"], "a condition ended by time"
    node.hardware.broken = True
    assert node.step(after_s=LOOK_S) == ["tell"]
    assert len(node.health.conditions()) == 1, "without a driver nothing changes"


def test_a_missing_gpu_counts_as_unreachable(node: Node) -> None:
    other = GpuUuid("GPU-missing")
    node.missing = {other: MissingGpu(since=5.0, awaited=True)}
    assert node.step(after_s=LOOK_S) == ["tell"], "it may only be late"
    node.missing = {other: MissingGpu(since=5.0)}
    assert node.step(after_s=LOOK_S) == ["publish", "tell"]
    (reading,) = [each for each in node.health.seen[-1] if each.gpu_uuid == other]
    assert reading.unreachable
    node.missing[SECOND.uuid] = MissingGpu(since=6.0)
    node.step(after_s=LOOK_S)
    assert [each.unreachable for each in node.health.seen[-1] if each.gpu_uuid == SECOND.uuid] == [None], "it answers"


def test_a_gpu_that_is_gone_for_good_is_forgotten_at_the_second_look(node: Node) -> None:
    gone = HealthReading(gpu_uuid=SECOND.uuid, unreachable="it is lost")
    node.hardware.readings[1] = gone
    node.snapshot, node.missing = snapshot(FIRST), {SECOND.uuid: MissingGpu(since=5.0)}
    for _ in range(3):
        node.step(after_s=LOOK_S)
    assert node.hardware.forgotten == []
    node.missing = {}
    node.snapshot = Snapshot(gpus=(FIRST,), left_out=(LeftOutGpu(label=SECOND.uuid, reason="hangs"),))
    for _ in range(3):
        node.step(after_s=LOOK_S)
    assert node.hardware.forgotten == []
    node.snapshot = snapshot(FIRST)
    node.step(after_s=LOOK_S)
    assert node.hardware.forgotten == []
    assert node.step(after_s=LOOK_S) == ["publish", "tell"]
    assert node.hardware.forgotten == [SECOND.uuid]
    assert node.health.conditions() == ()


def test_the_kubelet_hears_of_new_claims_within_a_second(node: Node) -> None:
    for _ in range(5):
        node.monitor.devices_changed()
    assert node.step(after_s=0.2) == []
    assert node.wait_s <= PAUSE_S
    assert node.step(after_s=PAUSE_S) == ["tell"]
    assert node.step(after_s=PAUSE_S) == []
    node.monitor.inventory_changed(node.snapshot)
    assert node.step(after_s=PAUSE_S) == ["tell"], "a GPU may be missing, or be back"
    assert node.hardware.looks == 1


def test_a_condition_of_an_instance_ends_with_it_before_the_snapshot_is_published(node: Node) -> None:
    free = mig_gpu(H100)
    cut: Any = snapshot(mig_gpu(H100, mig_enabled=True, mig_instances=(instance(free, 19, 6, owned=True),)))
    node.snapshot = cut
    node.health.observe([HealthEvent(kind=HealthEventKind.XID, gpu_uuid=free.uuid, gi_id=7, xid=48)])
    node.monitor.inventory_changed(cut)
    assert len(node.health.conditions()) == 1
    node.monitor.inventory_changed(snapshot(free))
    assert node.health.conditions() == ()
    node.snapshot = snapshot(free)
    assert node.step(after_s=0.1) == ["tell"]
    node.hardware.events = [(HealthEvent(kind=HealthEventKind.XID, gpu_uuid=free.uuid, gi_id=7, xid=48),)]
    node.monitor.collect_events()
    assert node.step(after_s=0.1) == ["publish", "tell"]
    assert node.health.conditions() == (), "an event that came late"


class BrokenReader(Hardware):
    """Looks fail with an internal error, and every wait for events asks for one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = threading.Event(), threading.Event()

    def health_look_wanted(self) -> bool:
        return True

    def health_readings(self) -> tuple[HealthReading, ...]:
        (self.second if self.first.is_set() else self.first).set()
        raise ValueError("broken")


def test_looks_that_fail_are_not_repeated_without_a_pause(node: Node) -> None:
    source = BrokenReader()
    monitor = HealthMonitor(
        source, stand_in(Health()), snapshot=Snapshot, missing=dict, publish=lambda: None, tell=lambda: None
    )
    monitor.start()
    assert source.first.wait(10)
    assert not source.second.wait(PAUSE_S / 2)
    monitor.stop(5.0)


LOST, OTHER = gpu(0), gpu(1)
EVICTS = HealthRules(evicting_causes=frozenset({HealthCause.LOST}))


def test_a_gpu_that_is_missing_at_the_start_is_judged_by_its_policy() -> None:
    """A condition that evicts would else be weaker until the GPUs are read, and begin anew then."""
    policies = Policies()
    policies.answer = {LOST.uuid: GpuTerms(policy="p", health=EVICTS)}
    terms = TermsResolver(stand_in(policies), list)
    early = terms.expected(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS
    terms.update(snapshot(OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS, "it is not in the inventory"
    assert rules_in_force(terms, early, OTHER.uuid) == DEFAULT_RULES
    newer = replace(EVICTS, evicting_causes=frozenset())
    policies.answer = {LOST.uuid: GpuTerms(policy="p", health=newer)}
    terms.update(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == newer, "newer policies are followed"
    assert terms.of_gpu(OTHER.uuid) == GpuTerms()


def test_policies_that_cannot_be_read_have_no_early_rules() -> None:
    policies = Policies()
    policies.answer = StorageError("no disk")
    assert TermsResolver(stand_in(policies), list).expected(snapshot(LOST)) == {}
    assert rules_in_force(TermsResolver(stand_in(policies), list), {}, LOST.uuid) == DEFAULT_RULES


def device(number: int) -> ReportedDevice:
    return ReportedDevice(
        pool=PoolName("node-a/gpu.nvidia.com"), device=DeviceName(f"gpu-{number}"), gpu_uuid=GpuUuid(f"GPU-{number}")
    )


class Claims:
    """A journal, which may fail, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.devices = [device(0)]
        self.fails = False
        self.reads = 0
        self.claimed = ClaimedDevices(self.read, lambda: self.now)

    def read(self) -> list[ReportedDevice]:
        self.reads += 1
        if self.fails:
            raise StorageError("the journal is locked")
        return self.devices

    def names(self) -> list[str]:
        return [each.device for each in self.claimed.current()]


@pytest.fixture
def claims() -> Claims:
    return Claims()


def test_the_journal_is_read_after_changes_and_once_a_minute(claims: Claims) -> None:
    assert claims.names() == ["gpu-0"]
    claims.devices = [*claims.devices, device(1)]
    assert claims.names() == ["gpu-0"]
    claims.claimed.changed()
    assert claims.names() == claims.names() == ["gpu-0", "gpu-1"]
    assert claims.reads == 2
    claims.now += CLAIMED_S
    claims.names()
    assert claims.reads == 3
    claims.devices, claims.fails = [device(0)], True
    claims.claimed.changed()
    assert claims.names() == ["gpu-0", "gpu-1"]
    claims.fails = False
    assert claims.names() == ["gpu-0"], "a change is not lost when the journal cannot be read"


def test_a_change_during_the_read_is_read_afterwards(claims: Claims) -> None:
    read = claims.read

    def interrupted() -> list[ReportedDevice]:
        found = read()
        if claims.reads == 1:
            claims.devices = [*found, device(1)]
            claims.claimed.changed()
        return list(found)

    claims.claimed = ClaimedDevices(interrupted, lambda: claims.now)
    assert claims.names() == ["gpu-0"]
    assert claims.names() == ["gpu-0", "gpu-1"]
