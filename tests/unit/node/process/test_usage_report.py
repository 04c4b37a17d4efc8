"""What the node process takes from the exporter's file: reading it, validating it, and the events about it."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import encode
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu_node import (
    MAX_REPORTED,
    NO_USAGE,
    ReportedIdle,
    ReportedOverGrant,
    ReportedPod,
    ReportedUnattributed,
    ReportedUsage,
)
from dra_driver.core.model.ids import ClaimUid, DeviceName
from dra_driver.core.model.terms import GpuTerms
from dra_driver.core.model.usage_findings import IdleClaim, OverGrant, Unattributed, UsageFindings, UsingPod
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, PodProtection, UsageRules
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.usage_report import (
    CHECKED_S,
    QUIET_S,
    STALE_S,
    ClaimNotice,
    FindingsFile,
    UsageEvents,
    UsageReport,
    validate_findings,
)
from tests.fakes.claims import device, entry, gpu, ref, sharing
from tests.unit.node.claims.test_journal import begun, open_journal, prepared
from tests.unit.node.claims.test_journal_forms import shared
from tests.unit.node.policy.hardware import node, uuid
from tests.unit.node.usage.claims import GIB, NOW, named

REF = ClaimRef(namespace="team", name="llm", uid=ClaimUid("uid-llm"))
SHARE = device(gpu_uuid=uuid(0), sharing=sharing(12 * GIB))
CLAIM = entry(REF.uid, SHARE, ref=REF)
EVICT = UsageRules(over_grant=OverGrantAction.EVICT, grace_s=90, idle_after_min=30, idle=IdleAction.RECLAIM)
TERMS = {uuid(number): GpuTerms(usage=EVICT) for number in range(2)}
OVER = OverGrant(
    **named(REF),
    device="gpu-0",
    pods=(UsingPod(namespace="team", name="llm-0", uid="uid-pod"),),
    used_bytes=20 * GIB + 5,
    grant_bytes=12 * GIB,
    processes=2,
    since=NOW,
    action=OverGrantAction.EVICT,
)
IDLE = IdleClaim(**named(REF), since=NOW)
PYTHON = ("python3",)
FOREIGN = Unattributed(gpu_uuid=uuid(0), device="gpu-7", processes=3, bytes=GIB, since=NOW, commands=PYTHON)
TOLD = ReportedOverGrant(
    namespace="team",
    claim="llm",
    claim_uid="uid-llm",
    gpu="gpu-0",
    pods=(ReportedPod(name="llm-0", uid="uid-pod"),),
    used="20Gi",
    granted="12Gi",
    processes=2,
    since="2026-07-01T12:00:00Z",
    action=OverGrantAction.EVICT,
    grace_s=90,
)
TOLD_IDLE = ReportedIdle(
    namespace="team",
    claim="llm",
    claim_uid="uid-llm",
    since="2026-07-01T12:00:00Z",
    after_min=30,
    action=IdleAction.RECLAIM,
)


def told(
    *over: OverGrant, idle: Any = (), foreign: Any = (), claims: Any = (CLAIM,), terms: Any = TERMS
) -> ReportedUsage:
    findings = UsageFindings(written=NOW, over_grant=over, idle=idle, unattributed=foreign)
    return validate_findings(findings, claims, node(2), terms, "now")


def test_a_claim_over_its_grant_is_told_with_what_may_follow() -> None:
    assert told(OVER) == ReportedUsage(over_grant=(TOLD,), checked_at="now")
    other = UsingPod(namespace="kube-system", name="coredns", uid="x")
    assert told(replace(OVER, pods=(other, *OVER.pods))).over_grant == (TOLD,), "pods of its namespace only"
    two = replace(CLAIM, devices=(SHARE, replace(SHARE, sharing=sharing(4 * GIB))))
    assert told(OVER, claims=(two,)).over_grant == (replace(TOLD, granted="16Gi"),), "two shares are one grant"
    assert told(OVER, OVER).over_grant == (TOLD,), "each claim once"
    claims = [replace(CLAIM, ref=replace(REF, uid=ClaimUid(f"uid-{number}"))) for number in range(MAX_REPORTED + 5)]
    assert len(told(*(replace(OVER, **named(each.ref)) for each in claims), claims=claims).over_grant) == MAX_REPORTED


@pytest.mark.parametrize(
    "changed",
    [
        {"claim": replace(REF, uid=ClaimUid("uid-other"))},
        {"claim": replace(REF, name="other")},
        {"claim": replace(REF, namespace="kube-system")},
        {"device": "gpu-1"},
        {"pods": (UsingPod(namespace="kube-system", name="coredns", uid="x"),)},
        {"used_bytes": 13 * GIB, "grant_bytes": 1},
        {"used_bytes": 12 * GIB + 2 * 512 * 2**20},
    ],
)
def test_a_lie_about_claims_devices_pods_and_grants_is_not_passed_on(changed: dict[str, Any]) -> None:
    """Neither a claim of another node, nor one of a device that it does not have, nor a grant of the file's own."""
    assert told(replace(OVER, **changed)) == ReportedUsage()


@pytest.mark.parametrize("devices", [(replace(SHARE, sharing=None),), (SHARE, replace(SHARE, sharing=None)), ()])
def test_only_shares_with_a_known_grant_are_judged(devices: Any) -> None:
    assert told(OVER, claims=(replace(CLAIM, devices=devices),)) == ReportedUsage()


def test_eviction_takes_both_the_file_and_the_policy() -> None:
    reports = {uuid(0): GpuTerms(usage=UsageRules(grace_s=90))}
    assert told(OVER, terms=reports) == ReportedUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),))
    calm = told(replace(OVER, action=OverGrantAction.REPORT))
    assert calm == ReportedUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),))


@pytest.mark.parametrize("action", OverGrantAction)
def test_the_policys_word_on_protection_goes_with_an_eviction(action: OverGrantAction) -> None:
    rules = UsageRules(over_grant=action, grace_s=90, protection=PodProtection.IGNORE)
    protection = PodProtection.IGNORE if action is OverGrantAction.EVICT else None
    expected = replace(TOLD, action=action, pod_protection=protection)
    assert told(OVER, terms={uuid(0): GpuTerms(usage=rules)}).over_grant == (expected,)


def test_an_idle_claim_is_told_by_the_policies_of_all_its_gpus() -> None:
    assert told(idle=(IDLE,)).idle == (TOLD_IDLE,)
    two = replace(CLAIM, devices=(SHARE, replace(SHARE, device=DeviceName("gpu-1"), gpu_uuid=uuid(1))))
    slower = {**TERMS, uuid(1): GpuTerms(usage=UsageRules(idle_after_min=60))}
    (found,) = told(idle=(IDLE,), claims=(two,), terms=slower).idle
    assert (found.after_min, found.action) == (60, IdleAction.REPORT)
    assert told(idle=(IDLE,), terms={}) == ReportedUsage()
    assert told(idle=(IDLE,), claims=(two,), terms={uuid(0): TERMS[uuid(0)]}) == ReportedUsage(), "one is never idle"
    assert told(idle=(replace(IDLE, **named(replace(REF, uid=ClaimUid("other")))),)) == ReportedUsage()


def test_processes_of_no_claim_are_told_of_gpus_that_the_node_has() -> None:
    assert told(foreign=(FOREIGN, FOREIGN, replace(FOREIGN, gpu_uuid="GPU-other"))) == ReportedUsage(
        unattributed=(
            ReportedUnattributed(gpu="gpu-0", processes=3, memory="1Gi", since="2026-07-01T12:00:00Z", commands=PYTHON),
        )
    )


FOUND = UsageFindings(written=NOW, idle=(IdleClaim(**named(REF), since=NOW),))


class Exporter:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.path = folder / "findings" / "findings.json"
        self.path.parent.mkdir()
        self.file = self.restarted()

    def restarted(self) -> FindingsFile:
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
    assert exporter.file.look() is None
    assert exporter.file.problem is None


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
    first = exporter.file.look()
    assert exporter.file.look() is first
    exporter.now += STALE_S
    assert exporter.file.look() == FOUND
    exporter.now += 1
    assert exporter.file.look() is None
    assert exporter.file.look() is None


def test_a_restart_makes_old_findings_no_newer(exporter: Exporter) -> None:
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


EVICTING = {gpu(0).uuid: GpuTerms(usage=UsageRules(over_grant=OverGrantAction.EVICT))}
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
        found = replace(OVER, **named(ref(1)), pods=(UsingPod(namespace="default", name="pod", uid="uid-pod"),))
        temporary = self.path.with_name("new")
        temporary.write_bytes(encode(UsageFindings(written=NOW, over_grant=(found,))))
        temporary.rename(self.path)

    def look(self) -> None:
        self.report.look(SNAPSHOT, EVICTING)


@pytest.fixture
def node_a(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.journal.close()


def test_a_claim_that_is_not_prepared_is_not_told(node_a: Node) -> None:
    node_a.write()
    node_a.look()
    assert node_a.report.reported == NO_USAGE
    begun(node_a.journal, 1, shared())
    node_a.look()
    assert node_a.report.reported == NO_USAGE


def test_a_claim_of_the_journal_is_told_with_its_grant_and_changes_only_its_time(node_a: Node) -> None:
    """The GpuNode is written once a while, so that the controller knows that the node lives."""
    prepared(node_a.journal, 1, shared())
    node_a.write()
    node_a.look()
    first = node_a.report.reported
    (over,) = first.over_grant
    assert (over.claim_uid, over.granted, over.action) == (ref(1).uid, "8Gi", OverGrantAction.EVICT)
    assert node_a.events == ["GpuMemoryOverGrant"]
    node_a.seconds += CHECKED_S / 2
    node_a.look()
    assert node_a.report.reported is first
    node_a.seconds += CHECKED_S
    node_a.look()
    assert node_a.report.reported.checked_at != first.checked_at
    assert node_a.report.reported.over_grant == first.over_grant


TOLD_NOTEBOOK = replace(TOLD_IDLE, claim="notebook", claim_uid="uid-n")
TOLD_FOREIGN = ReportedUnattributed(
    gpu="gpu-0", processes=2, memory="3Gi", since="2026-07-01T12:00:00Z", commands=PYTHON
)


class Told:
    def __init__(self) -> None:
        self.now = 0.0
        self.node: list[tuple[str, str, str]] = []
        self.claims: list[ClaimNotice] = []
        self.events = UsageEvents(
            lambda kind, reason, text: self.node.append((kind, reason, text)),
            notify=self.claims.append,
            clock=lambda: self.now,
        )


@pytest.fixture
def heard() -> Told:
    return Told()


def test_an_over_grant_says_what_happens_when_and_what_to_do(heard: Told) -> None:
    heard.events.update(ReportedUsage(over_grant=(TOLD,)))
    sentence = (
        "Claim uses 20Gi of gpu-0 in 2 processes; granted 12Gi. Pod llm-0 will be evicted in 90 s unless usage drops."
        " Request more memory in the claim, or reduce the program's memory use."
    )
    assert heard.node == [("Warning", "GpuMemoryOverGrant", f"claim team/llm: {sentence}")]
    assert [(each.claim.name, each.claim.uid, each.message) for each in heard.claims] == [("llm", "uid-llm", sentence)]
    heard.events.update(ReportedUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),)))
    assert "evicted" not in heard.node[1][2]


def test_an_idle_claim_and_others_on_the_gpu_are_told(heard: Told) -> None:
    heard.events.update(ReportedUsage(idle=(TOLD_NOTEBOOK,), unattributed=(TOLD_FOREIGN,)))
    value = metrics.REGISTRY.get_sample_value
    assert [value("dra_driver_usage_findings", {"kind": kind}) for kind in metrics.USAGE_FINDINGS] == [0, 1, 1]
    assert [reason for _, reason, _ in heard.node] == ["GpuClaimIdle", "GpuUsedByOthers"]
    assert "will be evicted after 30 more idle minutes" in heard.node[0][2]
    assert heard.node[1][2].startswith("gpu-0: 2 processes (python3) with 3Gi use the GPU outside any claim")
    assert [each.claim.name for each in heard.claims] == ["notebook"]
    heard.events.update(ReportedUsage(over_grant=(TOLD,)))
    assert [value("dra_driver_usage_findings", {"kind": kind}) for kind in metrics.USAGE_FINDINGS] == [1, 0, 0]


def test_a_finding_that_stays_or_comes_and_goes_is_told_once_in_a_while(heard: Told) -> None:
    for used in ("20Gi", "30Gi"):
        heard.events.update(ReportedUsage(over_grant=(replace(TOLD, used=used),)))
        heard.events.update(NO_USAGE)
    assert len(heard.node) == 1
    heard.now += QUIET_S
    heard.events.update(NO_USAGE)
    heard.events.update(ReportedUsage(over_grant=(TOLD,)))
    assert len(heard.node) == 2
