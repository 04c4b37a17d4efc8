"""From the exporter's file to the GpuNode and events, with a journal on disk."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import encode
from dra_driver.core.model.gpu_node import NO_USAGE
from dra_driver.core.model.terms import GpuTerms
from dra_driver.core.model.usage_findings import OverGrant, UsageFindings, UsingPod
from dra_driver.core.model.usage_rules import OverGrantAction, UsageRules
from dra_driver.node.process.usage_file import STALE_S
from dra_driver.node.process.usage_setup import CHECKED_S, UsageReport
from tests.fakes.claims import gpu, ref
from tests.unit.node.claims.test_journal import begun, open_journal, prepared
from tests.unit.node.claims.test_journal_forms import shared
from tests.unit.node.policy.hardware import node

NOW = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
TERMS = {gpu(0).uuid: GpuTerms(usage=UsageRules(over_grant=OverGrantAction.EVICT))}
SNAPSHOT = node(1)


class Node:
    """A node process with a share of 8 GiB, and the exporter beside it."""

    def __init__(self, folder: Path) -> None:
        settings = NodeSettings(node_name="node-a", kubelet_plugins_dir=str(folder))
        self.path = folder / settings.driver_name / "usage" / "findings" / "findings.json"
        self.path.parent.mkdir(parents=True)
        self.seconds = 1000.0
        self.events: list[str] = []
        self.journal = open_journal(folder)
        self.report = UsageReport(
            settings,
            self.journal,
            lambda kind, reason, text: self.events.append(reason),
            clock=lambda: self.seconds,
            now=lambda: NOW + timedelta(seconds=self.seconds),
        )

    def write(self, number: int = 1) -> None:
        found = OverGrant(
            claim=ref(number),
            device="gpu-0",
            pods=(UsingPod(namespace=ref(number).namespace, name="pod", uid="uid-pod"),),
            used_bytes=20 * 2**30,
            grant_bytes=1,
            processes=1,
            since=NOW,
            action=OverGrantAction.EVICT,
        )
        temporary = self.path.with_name("new")
        temporary.write_bytes(encode(UsageFindings(written=NOW, over_grant=(found,))))
        temporary.rename(self.path)

    def look(self) -> None:
        self.report.look(SNAPSHOT, TERMS)


@pytest.fixture
def node_a(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.journal.close()


def test_a_claim_of_the_journal_is_told_with_its_grant(node_a: Node) -> None:
    prepared(node_a.journal, 1, shared())
    node_a.write()
    node_a.look()
    (told,) = node_a.report.told.over_grant
    assert (told.claim_uid, told.granted, told.action) == (ref(1).uid, "8Gi", OverGrantAction.EVICT)
    assert node_a.events == ["GpuMemoryOverGrant"]


def test_a_claim_that_is_not_prepared_is_not_told(node_a: Node) -> None:
    """Neither one that the journal does not know, nor one that is being prepared."""
    node_a.write()
    node_a.look()
    assert node_a.report.told == NO_USAGE
    begun(node_a.journal, 1, shared())
    node_a.look()
    assert node_a.report.told == NO_USAGE


def test_while_nothing_changes_the_value_stays_the_same_but_for_its_time(node_a: Node) -> None:
    """The GpuNode is written once a while, so that the controller knows that the node lives."""
    prepared(node_a.journal, 1, shared())
    node_a.write()
    node_a.look()
    first = node_a.report.told
    node_a.seconds += CHECKED_S / 2
    node_a.look()
    assert node_a.report.told is first
    node_a.seconds += CHECKED_S
    node_a.look()
    assert node_a.report.told.checked_at != first.checked_at
    assert node_a.report.told.over_grant == first.over_grant


def test_an_exporter_that_ended_is_no_reason_for_anything(node_a: Node) -> None:
    prepared(node_a.journal, 1, shared())
    node_a.write()
    node_a.look()
    node_a.seconds += STALE_S + 1
    node_a.look()
    assert node_a.report.told == NO_USAGE
