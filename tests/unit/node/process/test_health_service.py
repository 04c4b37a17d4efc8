"""Which rules conditions are judged by, before and after the GPUs were read."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.ids import DeviceName, GpuUuid, PoolName
from dra_driver.core.model.terms import GpuTerms, Terms, Use
from dra_driver.node.process.health_report import ReportedDevice
from dra_driver.node.process.health_service import CLAIMED_S, ClaimedDevices, rules_in_force
from dra_driver.node.process.terms_resolver import TermsResolver
from tests.fakes.stand_in import stand_in
from tests.unit.node.slices.gpus import gpu, snapshot

LOST, OTHER = gpu(0), gpu(1)
EVICTS = HealthRules(evicting_causes=frozenset({HealthCause.LOST}))


class Policies:
    """One policy for GPU 0."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.is_known = True
        self.health = EVICTS
        self.fails = False

    def check(self) -> bool:
        return False

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        if self.fails:
            raise StorageError("no disk")
        wanted = GpuTerms(policy="p", health=self.health)
        return {each.uuid: wanted for each in snapshot.gpus if each == LOST}


def test_a_gpu_that_is_missing_at_the_start_is_judged_by_its_policy() -> None:
    """A condition that evicts would else be weaker until the GPUs are read, and begin anew then."""
    policies = Policies()
    terms = TermsResolver(stand_in(policies), list)
    early = terms.expected(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS
    terms.update(snapshot(OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS, "it is not in the inventory"
    assert rules_in_force(terms, early, OTHER.uuid) == DEFAULT_RULES


def test_newer_policies_are_followed_once_the_terms_are_resolved() -> None:
    """Also those that say nothing about the GPU."""
    policies = Policies()
    terms = TermsResolver(stand_in(policies), list)
    early = terms.expected(snapshot(LOST))
    policies.health = replace(EVICTS, evicting_causes=frozenset())
    terms.update(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == policies.health
    assert terms.of_gpu(OTHER.uuid) == GpuTerms()


def test_policies_that_cannot_be_read_have_no_early_rules() -> None:
    """The start goes on."""
    policies = Policies()
    policies.fails = True
    assert TermsResolver(stand_in(policies), list).expected(snapshot(LOST)) == {}
    assert rules_in_force(TermsResolver(stand_in(policies), list), {}, LOST.uuid) == DEFAULT_RULES


def device(number: int) -> ReportedDevice:
    return ReportedDevice(
        pool=PoolName("node-a/gpu.nvidia.com"), device=DeviceName(f"gpu-{number}"), gpu_uuid=GpuUuid(f"GPU-{number}")
    )


class Node:
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
def node() -> Node:
    return Node()


def test_the_journal_is_read_after_changes_and_once_a_minute(node: Node) -> None:
    """It has every claim of the node."""
    assert node.names() == ["gpu-0"]
    node.devices = [*node.devices, device(1)]
    assert node.names() == ["gpu-0"]
    node.claimed.changed()
    assert node.names() == node.names() == ["gpu-0", "gpu-1"]
    assert node.reads == 2
    node.now += CLAIMED_S
    node.names()
    assert node.reads == 3


def test_a_change_is_not_lost_when_the_journal_cannot_be_read(node: Node) -> None:
    """The kubelet would show the new device as Unknown for a minute."""
    node.names()
    node.devices = [*node.devices, device(1)]
    node.fails = True
    node.claimed.changed()
    assert node.names() == ["gpu-0"]
    node.fails = False
    assert node.names() == ["gpu-0", "gpu-1"]


def test_a_change_during_the_read_is_read_afterwards(node: Node) -> None:
    """It may have come too late for it."""
    read = node.read

    def interrupted() -> list[ReportedDevice]:
        found = read()
        if node.reads == 1:
            node.devices = [*found, device(1)]
            node.claimed.changed()
        return list(found)

    node.claimed = ClaimedDevices(interrupted, lambda: node.now)
    assert node.names() == ["gpu-0"]
    assert node.names() == ["gpu-0", "gpu-1"]
