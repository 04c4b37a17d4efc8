"""Which findings of the usage exporter the node process passes on. Pure.

The exporter reads what tenants' processes say, so its file is taken as a tenant's would be. A claim is named only if
this node has prepared it; what it was granted comes from the journal, and what may follow from the policy of its GPU.
So a file that lies can at most accuse a claim of this node whose GPU's policy evicts, and that is what the brake and
the pace of the controller, PodDisruptionBudgets and the opt-out are for.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.gpu_node import (
    MAX_TOLD,
    MAX_TOLD_PODS,
    ToldForeign,
    ToldIdle,
    ToldOverGrant,
    ToldPod,
    ToldUsage,
)
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.core.model.usage_findings import IdleClaim, OverGrant, Unattributed, UsageFindings
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, idle_after_min
from dra_driver.core.quantity import Quantity
from dra_driver.core.time import rfc3339
from dra_driver.node.claims import AssignedDevice, Entry

_Key = TypeVar("_Key", bound=Hashable)
_Told = TypeVar("_Told")


def believed(
    findings: UsageFindings, claims: Iterable[Entry], snapshot: Snapshot, terms: Terms, checked_at: str
) -> ToldUsage:
    """What is told, each claim and GPU once. ``checked_at`` stands in it if the controller is asked to act."""
    prepared: dict[str, Entry] = {claim.ref.uid: claim for claim in claims if claim.state == "prepared"}
    over = _once(((each.claim.uid, each.device), _over_grant(each, prepared, terms)) for each in findings.over_grant)
    idle = _once((each.claim.uid, _idle(each, prepared, terms)) for each in findings.idle)
    foreign = _once((each.gpu_uuid, _foreign(each, snapshot)) for each in findings.unattributed)
    told = ToldUsage(over_grant=over, idle=idle, unattributed=foreign)
    if not told.asks:
        return told
    return ToldUsage(over_grant=over, idle=idle, unattributed=foreign, checked_at=checked_at)


def _over_grant(found: OverGrant, prepared: Mapping[str, Entry], terms: Terms) -> ToldOverGrant | None:
    claim = _prepared(found.claim, prepared)
    shares = [each for each in _used(claim) if each.device == found.device]
    grants = [granted for each in shares if (granted := _share_bytes(each)) is not None]
    if claim is None or not grants or len(grants) < len(shares):
        return None
    granted, rules = sum(grants), terms_of(terms, shares[0].gpu_uuid).usage
    pods = tuple(ToldPod(name=pod.name, uid=pod.uid) for pod in found.pods if pod.namespace == claim.ref.namespace)
    if not pods or found.used_bytes <= granted + found.processes * rules.overhead_bytes:
        return None
    both = found.action is OverGrantAction.EVICT and rules.over_grant is OverGrantAction.EVICT
    return ToldOverGrant(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        claim_uid=claim.ref.uid,
        gpu=found.device,
        pods=pods[:MAX_TOLD_PODS],
        used=_quantity(found.used_bytes),
        granted=_quantity(granted),
        processes=found.processes,
        since=rfc3339(found.since),
        action=OverGrantAction.EVICT if both else OverGrantAction.REPORT,
        grace_s=rules.grace_s,
    )


def _idle(found: IdleClaim, prepared: Mapping[str, Entry], terms: Terms) -> ToldIdle | None:
    claim = _prepared(found.claim, prepared)
    rules = [terms_of(terms, each.gpu_uuid).usage for each in _used(claim)]
    after_min = idle_after_min(rules)
    if claim is None or after_min is None:
        return None
    reclaims = all(each.idle is IdleAction.RECLAIM for each in rules)
    return ToldIdle(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        claim_uid=claim.ref.uid,
        since=rfc3339(found.since),
        after_min=after_min,
        action=IdleAction.RECLAIM if reclaims else IdleAction.REPORT,
    )


def _foreign(found: Unattributed, snapshot: Snapshot) -> ToldForeign | None:
    gpu = snapshot.gpu_by_uuid(GpuUuid(found.gpu_uuid))
    if gpu is None:
        return None
    return ToldForeign(
        gpu=gpu.device_name,
        processes=found.processes,
        memory=None if found.bytes_used is None else _quantity(found.bytes_used),
        since=rfc3339(found.since),
        commands=found.commands,
    )


def _prepared(ref: ClaimRef, prepared: Mapping[str, Entry]) -> Entry | None:
    claim = prepared.get(ref.uid)
    return claim if claim is not None and claim.ref == ref else None


def _used(claim: Entry | None) -> list[AssignedDevice]:
    """The claim's devices, without those of admin access."""
    return [each for each in claim.devices if not each.admin_access] if claim is not None else []


def _share_bytes(device: AssignedDevice) -> int | None:
    """The memory that a share was granted; None for other forms and where memory is not counted."""
    return device.sharing.share.memory if device.sharing is not None and device.sharing.share is not None else None


def _once(found: Iterable[tuple[_Key, _Told | None]]) -> tuple[_Told, ...]:
    """The first of each key, at most `MAX_TOLD`."""
    kept: dict[_Key, _Told] = {}
    for key, told in found:
        if told is not None and key not in kept and len(kept) < MAX_TOLD:
            kept[key] = told
    return tuple(kept.values())


def _quantity(count: int) -> str:
    """In whole MiB: the last bytes are noise."""
    return str(Quantity.from_bytes(count // 2**20 * 2**20))
