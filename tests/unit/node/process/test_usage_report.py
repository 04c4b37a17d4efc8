"""Reading the exporter's file: changed, damaged, not renewed, and no file at all."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import encode
from dra_driver.core.model.gpu_node import NO_USAGE
from dra_driver.core.model.terms import GpuTerms
from dra_driver.core.model.usage_findings import IdleClaim, UsageFindings, UsingPod
from dra_driver.core.model.usage_rules import OverGrantAction, UsageRules
from dra_driver.node.process.usage_report import CHECKED_S, STALE_S, FindingsFile, UsageReport
from tests.fakes.claims import gpu, ref
from tests.unit.node.claims.test_journal import begun, open_journal, prepared
from tests.unit.node.claims.test_journal_forms import shared
from tests.unit.node.policy.hardware import node
from tests.unit.node.process.test_usage_validation import OVER
from tests.unit.node.usage.claims import NOW, claim

FOUND = UsageFindings(written=NOW, idle=(IdleClaim(claim=claim(), since=NOW),))


class Exporter:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.path = folder / "findings" / "findings.json"
        self.path.parent.mkdir()
        self.file = self.restarted()

    def restarted(self) -> FindingsFile:
        """As a node process that starts now has it."""
        return FindingsFile(self.path.parent.parent, clock=lambda: self.now, wall_clock=lambda: self.now + 1e9)

    def write(self, content: bytes) -> None:
        temporary = self.path.with_name(f"new-{self.now}")
        temporary.write_bytes(content)
        os.utime(temporary, (self.now + 1e9, self.now + 1e9))
        temporary.rename(self.path)


@pytest.fixture
def exporter(tmp_path: Path) -> Exporter:
    return Exporter(tmp_path)


def test_without_a_file_there_is_nothing_and_no_problem(exporter: Exporter) -> None:
    """The exporter is optional, and may start later."""
    assert exporter.file.look() is None
    assert exporter.file.problem is None


def test_an_unchanged_file_is_the_same_value(exporter: Exporter) -> None:
    exporter.write(encode(FOUND))
    first = exporter.file.look()
    assert first == FOUND
    assert exporter.file.look() is first


def test_a_damaged_file_keeps_the_last_good_findings_for_a_while(exporter: Exporter) -> None:
    exporter.write(encode(FOUND))
    exporter.file.look()
    exporter.write(b"{")
    assert exporter.file.look() == FOUND
    assert "damaged" in (exporter.file.problem or "")
    exporter.now += STALE_S + 1
    assert exporter.file.look() is None
    exporter.write(encode(FOUND))
    assert exporter.file.look() == FOUND
    assert exporter.file.problem is None


def test_findings_that_are_not_renewed_are_forgotten(exporter: Exporter) -> None:
    """The exporter has ended or hangs: what it saw last is no reason to evict a pod an hour later."""
    exporter.write(encode(FOUND))
    exporter.file.look()
    exporter.now += STALE_S
    assert exporter.file.look() == FOUND
    exporter.now += 1
    assert exporter.file.look() is None
    assert exporter.file.look() is None


def test_a_restart_makes_old_findings_no_newer(exporter: Exporter) -> None:
    """Node processes restart with each upgrade, and an exporter that was taken away leaves its file."""
    exporter.write(encode(FOUND))
    exporter.now += STALE_S - 10
    after = exporter.restarted()
    assert after.look() == FOUND
    exporter.now += 11
    assert after.look() is None
    assert exporter.restarted().look() is None
    exporter.write(encode(FOUND))
    assert exporter.restarted().look() == FOUND
    exporter.now -= 3600
    assert exporter.restarted().look() == FOUND, "a clock that went back"


def test_renewed_findings_stay(exporter: Exporter) -> None:
    for _ in range(5):
        exporter.write(encode(FOUND))
        assert exporter.file.look() == FOUND
        exporter.now += STALE_S


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_ordinary_file_is_not_read(exporter: Exporter, tmp_path: Path, kind: str) -> None:
    """A link to a file of the host, or a pipe on which a read would wait for ever."""
    if kind == "link":
        secret = tmp_path / "secret"
        secret.write_bytes(encode(FOUND))
        exporter.path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(exporter.path)
    else:
        exporter.path.mkdir()
    assert exporter.file.look() is None
    assert exporter.file.problem is not None


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

    def write(self) -> None:
        found = replace(OVER, claim=ref(1), pods=(UsingPod(namespace="default", name="pod", uid="uid-pod"),))
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
