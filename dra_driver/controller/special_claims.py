"""What the controller keeps of ResourceClaims: those that the scheduler made for a pod's extended resources. Pure.

Such a claim has an annotation, its pod as owner and user, and one request for each container and resource, without
tolerations. The pod has it in ``status.extendedResourceClaimStatus`` and not in ``spec.resourceClaims``, and Kubernetes
1.36 looks at the latter alone when it evicts pods from tainted devices (device_taint_eviction.go podEvictionTime;
kubernetes#141290). Source of the claim: kubernetes/kubernetes
pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

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
