"""Compute which pods to evict from tainted devices, and when each eviction is due. No I/O.

The claims are those that the scheduler created for a pod's extended resources. Such a claim has an annotation, its pod
as owner and user, and one request for each container and resource, without tolerations. The pod has it in
``status.extendedResourceClaimStatus`` and not in ``spec.resourceClaims``, and Kubernetes 1.36 checks only the latter
when it evicts pods from tainted devices (device_taint_eviction.go podEvictionTime; kubernetes#141290). Source of the
claim: kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dra_driver.controller.fleet import NO_EXECUTE, EvictingTaint, Fleet, TaintedDevice
from dra_driver.kube.objects.resource import DeviceRequestAllocationResult, DeviceToleration, ResourceClaim
from dra_driver.kube.shapes import read

EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"


class Toleration(Struct, frozen=True, kw_only=True):
    """A toleration that the allocation has recorded. ``seconds`` None is for ever."""

    key: str
    operator: str
    value: str
    effect: str
    seconds: int | None


class HeldDevice(Struct, frozen=True, kw_only=True):
    """One device of a claim."""

    pool: str
    name: str
    tolerations: tuple[Toleration, ...] = ()


class PodRef(Struct, frozen=True, kw_only=True):
    """One pod and no later one of the same name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class SpecialClaim(Struct, frozen=True, kw_only=True):
    """An allocated claim for extended resources: its devices of this driver, and the pods that may use it."""

    name: str
    devices: tuple[HeldDevice, ...]
    pods: tuple[PodRef, ...]


def special_claim(item: Mapping[str, object], driver: str) -> SpecialClaim | None:
    """From the API object; None for every other claim, and for one that is malformed."""
    try:
        claim = read(ResourceClaim, item)
    except ValueError:
        return None
    if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return None
    devices = tuple(_device(result) for result in results_of(claim) if result.driver == driver)
    pods = tuple(pods_of(claim))
    return SpecialClaim(name=claim.metadata.name, devices=devices, pods=pods) if devices and pods else None


def results_of(claim: ResourceClaim) -> Sequence[DeviceRequestAllocationResult]:
    """The devices that are allocated to a claim."""
    allocation = claim.status.allocation if claim.status is not None else None
    return allocation.devices.results if allocation is not None and allocation.devices is not None else ()


def pods_of(claim: ResourceClaim) -> list[PodRef]:
    """The pods that may use a claim."""
    users = claim.status.reserved_for if claim.status is not None else ()
    return [
        PodRef(namespace=claim.metadata.namespace, name=user.name, uid=user.uid)
        for user in users
        if user.resource == "pods" and not user.api_group
    ]


def _device(result: DeviceRequestAllocationResult) -> HeldDevice:
    return HeldDevice(
        pool=result.pool, name=result.device, tolerations=tuple(_toleration(each) for each in result.tolerations)
    )


def _toleration(item: DeviceToleration) -> Toleration:
    return Toleration(
        key=item.key,
        operator=item.operator or "Equal",
        value=item.value,
        effect=item.effect,
        seconds=None if item.toleration_seconds is None else max(0, item.toleration_seconds),
    )


class PendingEviction(Struct, frozen=True, kw_only=True):
    """A pod with a device that it may not keep: to be evicted at ``due`` because of ``taint``."""

    pod: PodRef
    claim: str
    device: TaintedDevice
    taint: EvictingTaint
    due: datetime


def pending_evictions(fleet: Fleet, claims: Iterable[SpecialClaim], grace_s: float) -> list[PendingEviction]:
    """Each pod once, earliest first, then by name. ``grace_s`` is for GPUs whose policy names none."""
    found: dict[PodRef, PendingEviction] = {}
    for claim in claims:
        for case in _cases(fleet, claim, grace_s):
            for pod in claim.pods:
                known = found.get(pod)
                if known is None or case[2] < known.due:
                    device, taint, due = case
                    found[pod] = PendingEviction(pod=pod, claim=claim.name, device=device, taint=taint, due=due)
    return sorted(found.values(), key=lambda item: (item.due, item.pod.namespace, item.pod.name))


def grace_of(taint: EvictingTaint, tolerations: Iterable[Toleration], grace_s: float) -> float | None:
    """Seconds from the taint's time to the eviction; None if the claim tolerates it for ever.

    A toleration with seconds counts where it is longer than the grace time. Of several, the shortest counts, as in
    Kubernetes' own eviction (device_taint_eviction.go claimEvictionTime).
    """
    matching = [item.seconds for item in tolerations if _tolerates(item, taint)]
    if not matching:
        return grace_s
    if None in matching:
        return None
    return max(grace_s, float(min(seconds for seconds in matching if seconds is not None)))


def _cases(fleet: Fleet, claim: SpecialClaim, grace_s: float) -> list[tuple[TaintedDevice, EvictingTaint, datetime]]:
    cases = []
    for allocated in claim.devices:
        device = fleet.tainted.get((allocated.pool, allocated.name))
        if device is None:
            continue
        grace = grace_s if device.grace_s is None else device.grace_s
        for taint in device.taints:
            seconds = grace_of(taint, allocated.tolerations, grace)
            if seconds is not None:
                cases.append((device, taint, taint.added + timedelta(seconds=seconds)))
    return cases


def _tolerates(toleration: Toleration, taint: EvictingTaint) -> bool:
    """As resourceclaim/devicetoleration.go of k8s.io/dynamic-resource-allocation."""
    if toleration.effect not in {"", NO_EXECUTE} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or (toleration.operator == "Equal" and toleration.value == taint.value)
