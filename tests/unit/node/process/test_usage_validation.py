"""What a file of findings may lead to: a lying one reaches no claim that the node has not prepared."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu_node import MAX_TOLD, ToldForeign, ToldIdle, ToldOverGrant, ToldPod, ToldUsage
from dra_driver.core.model.ids import ClaimUid, DeviceName
from dra_driver.core.model.terms import GpuTerms
from dra_driver.core.model.usage_findings import IdleClaim, OverGrant, Unattributed, UsageFindings, UsingPod
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, UsageRules, idle_after_min
from dra_driver.node.process.usage_report import believed
from tests.fakes.entries import device, entry, sharing
from tests.unit.node.policy.hardware import node, uuid
from tests.unit.node.usage.claims import GIB, NOW

REF = ClaimRef(namespace="team", name="llm", uid=ClaimUid("uid-llm"))
SHARE = device(gpu_uuid=uuid(0), sharing=sharing(12 * GIB))
CLAIM = entry(REF.uid, SHARE, ref=REF)
EVICT = UsageRules(over_grant=OverGrantAction.EVICT, grace_s=90, idle_after_min=30, idle=IdleAction.RECLAIM)
TERMS = {uuid(number): GpuTerms(usage=EVICT) for number in range(2)}
OVER = OverGrant(
    claim=REF,
    device="gpu-0",
    pods=(UsingPod(namespace="team", name="llm-0", uid="uid-pod"),),
    used_bytes=20 * GIB + 5,
    grant_bytes=12 * GIB,
    processes=2,
    since=NOW,
    action=OverGrantAction.EVICT,
)
IDLE = IdleClaim(claim=REF, since=NOW)
FOREIGN = Unattributed(gpu_uuid=uuid(0), device="gpu-7", processes=3, bytes_used=GIB, since=NOW, commands=("python3",))
TOLD = ToldOverGrant(
    namespace="team",
    claim="llm",
    claim_uid="uid-llm",
    gpu="gpu-0",
    pods=(ToldPod(name="llm-0", uid="uid-pod"),),
    used="20Gi",
    granted="12Gi",
    processes=2,
    since="2026-07-01T12:00:00Z",
    action=OverGrantAction.EVICT,
    grace_s=90,
)
TOLD_IDLE = ToldIdle(
    namespace="team",
    claim="llm",
    claim_uid="uid-llm",
    since="2026-07-01T12:00:00Z",
    after_min=30,
    action=IdleAction.RECLAIM,
)


def told(*over: OverGrant, idle: Any = (), foreign: Any = (), claims: Any = (CLAIM,), terms: Any = TERMS) -> ToldUsage:
    findings = UsageFindings(written=NOW, over_grant=over, idle=idle, unattributed=foreign)
    return believed(findings, claims, node(2), terms, "now")


def test_a_claim_over_its_grant_is_told_with_what_may_follow() -> None:
    """The grant is the journal's, the grace time the policy's."""
    assert told(OVER) == ToldUsage(over_grant=(TOLD,), checked_at="now")


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
    assert told(replace(OVER, **changed)) == ToldUsage()


def test_pods_of_other_namespaces_are_left_out() -> None:
    """A claim is used in its own namespace alone."""
    other = UsingPod(namespace="kube-system", name="coredns", uid="x")
    assert told(replace(OVER, pods=(other, *OVER.pods))).over_grant == (TOLD,)


@pytest.mark.parametrize(
    "devices",
    [
        (replace(SHARE, sharing=None),),
        (SHARE, replace(SHARE, sharing=None)),
        (),
    ],
)
def test_only_shares_with_a_known_grant_are_judged(devices: Any) -> None:
    """A whole GPU ends where the hardware says."""
    assert told(OVER, claims=(replace(CLAIM, devices=devices),)) == ToldUsage()


def test_two_shares_of_one_gpu_are_one_grant() -> None:
    two = replace(CLAIM, devices=(SHARE, replace(SHARE, sharing=sharing(4 * GIB))))
    assert told(OVER, claims=(two,)).over_grant == (replace(TOLD, granted="16Gi"),)


def test_eviction_takes_both_the_file_and_the_policy() -> None:
    """A file cannot ask for more than the policy of the claim's GPU."""
    reports = {uuid(0): GpuTerms(usage=UsageRules(grace_s=90))}
    assert told(OVER, terms=reports) == ToldUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),))
    calm = told(replace(OVER, action=OverGrantAction.REPORT))
    assert calm == ToldUsage(over_grant=(replace(TOLD, action=OverGrantAction.REPORT),))


def test_an_idle_claim_is_told_by_the_policies_of_all_its_gpus() -> None:
    """The longest time counts, and reclaim only where all say so."""
    assert told(idle=(IDLE,)).idle == (TOLD_IDLE,)
    two = replace(CLAIM, devices=(SHARE, replace(SHARE, device=DeviceName("gpu-1"), gpu_uuid=uuid(1))))
    slower = {**TERMS, uuid(1): GpuTerms(usage=UsageRules(idle_after_min=60))}
    (found,) = told(idle=(IDLE,), claims=(two,), terms=slower).idle
    assert (found.after_min, found.action) == (60, IdleAction.REPORT)
    assert told(idle=(IDLE,), terms={}) == ToldUsage()
    assert told(idle=(replace(IDLE, claim=replace(REF, uid=ClaimUid("other"))),)) == ToldUsage()


def test_a_gpu_that_is_never_idle_keeps_its_claim_from_being_idle() -> None:
    assert idle_after_min([UsageRules(idle_after_min=30), UsageRules()]) is None
    assert idle_after_min([]) is None


def test_processes_of_no_claim_are_told_of_gpus_that_the_node_has() -> None:
    """By the node's own name of the GPU; they ask for nothing."""
    assert told(foreign=(FOREIGN, FOREIGN, replace(FOREIGN, gpu_uuid="GPU-other"))) == ToldUsage(
        unattributed=(
            ToldForeign(gpu="gpu-0", processes=3, memory="1Gi", since="2026-07-01T12:00:00Z", commands=("python3",)),
        )
    )


def test_each_claim_is_told_once_and_all_are_bounded() -> None:
    assert told(OVER, OVER).over_grant == (TOLD,)
    claims = [replace(CLAIM, ref=replace(REF, uid=ClaimUid(f"uid-{number}"))) for number in range(MAX_TOLD + 5)]
    assert len(told(*(replace(OVER, claim=each.ref) for each in claims), claims=claims).over_grant) == MAX_TOLD
