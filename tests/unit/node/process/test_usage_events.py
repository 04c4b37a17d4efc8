"""What kubectl describe shows of use: once per finding, with what happens next."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu_node import NO_USAGE, ToldForeign, ToldUsage
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.usage_report import QUIET_S, ClaimNotice, UsageEvents
from tests.unit.node.process.test_usage_validation import TOLD, TOLD_IDLE

IDLE = replace(TOLD_IDLE, claim="notebook", claim_uid="uid-n")
FOREIGN = ToldForeign(gpu="gpu-0", processes=2, memory="3Gi", since="2026-07-01T12:00:00Z", commands=("python3",))


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
def told() -> Told:
    return Told()


def test_an_over_grant_says_what_happens_when_and_what_to_do(told: Told) -> None:
    """For the reader of kubectl describe pod."""
    told.events.update(ToldUsage(over_grant=(TOLD,)))
    sentence = (
        "its 2 processes have 20Gi of gpu-0, and the claim was granted 12Gi. Pod llm-0 is to be evicted if this lasts"
        " for 90 s. Ask for more memory in the claim, or limit what the program takes"
    )
    assert told.node == [("Warning", "GpuMemoryOverGrant", f"claim team/llm: {sentence}")]
    assert [(each.claim.name, each.claim.uid, each.message) for each in told.claims] == [("llm", "uid-llm", sentence)]


def test_one_process_is_no_plural(told: Told) -> None:
    told.events.update(ToldUsage(over_grant=(replace(TOLD, processes=1),)))
    assert told.claims[0].message.startswith("its process has 20Gi of gpu-0")


def test_a_report_threatens_with_nothing(told: Told) -> None:
    told.events.update(ToldUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),)))
    assert "evicted" not in told.node[0][2]
    told.events.update(ToldUsage(over_grant=(TOLD,)))
    assert "evicted" in told.node[1][2]


def test_an_idle_claim_and_others_on_the_gpu_are_told(told: Told) -> None:
    """Processes of no claim have no claim that could be told."""
    told.events.update(ToldUsage(idle=(IDLE,), unattributed=(FOREIGN,)))
    assert [reason for _, reason, _ in told.node] == ["GpuClaimIdle", "GpuUsedByOthers"]
    assert "to be evicted if it stays so for 30 minutes more" in told.node[0][2]
    assert told.node[1][2].startswith("gpu-0 is used by 2 processes (python3) with 3Gi that belong to no claim of it")
    assert [each.claim.name for each in told.claims] == ["notebook"]


def test_a_finding_that_stays_or_comes_and_goes_is_told_once_in_a_while(told: Told) -> None:
    """New numbers are no news."""
    for used in ("20Gi", "30Gi"):
        told.events.update(ToldUsage(over_grant=(replace(TOLD, used=used),)))
        told.events.update(NO_USAGE)
    assert len(told.node) == 1
    told.now += QUIET_S
    told.events.update(NO_USAGE)
    told.events.update(ToldUsage(over_grant=(TOLD,)))
    assert len(told.node) == 2


def test_the_metric_counts_what_stands(told: Told) -> None:
    told.events.update(ToldUsage(over_grant=(TOLD,), idle=(IDLE,), unattributed=(FOREIGN,)))
    value = metrics.REGISTRY.get_sample_value
    assert [value("dra_driver_usage_findings", {"kind": kind}) for kind in metrics.USAGE_FINDINGS] == [1, 1, 1]
    told.events.update(NO_USAGE)
    assert [value("dra_driver_usage_findings", {"kind": kind}) for kind in metrics.USAGE_FINDINGS] == [0, 0, 0]
