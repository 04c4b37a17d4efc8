"""What the controller keeps of ResourceClaims: those that the scheduler made for a pod's extended resources. Pure.

Such a claim has an annotation, its pod as owner and user, and one request for each container and resource, without
tolerations. The pod has it in ``status.extendedResourceClaimStatus`` and not in ``spec.resourceClaims``, and Kubernetes
1.36 looks at the latter alone when it evicts pods from tainted devices (device_taint_eviction.go podEvictionTime;
kubernetes#141290). Source of the claim: kubernetes/kubernetes
pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.kube.devices import is_pod, results_of, users_of

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


def special_claim(item: Mapping[str, Any], driver: str) -> SpecialClaim | None:
    """From the API object; None for every other claim, and for one that is malformed."""
    try:
        metadata = item["metadata"]
        if (metadata.get("annotations") or {}).get(EXTENDED_CLAIM_ANNOTATION) != "true":
            return None
        devices = tuple(_device(result) for result in results_of(item) if result["driver"] == driver)
        pods = tuple(pods_of(item, str(metadata["namespace"])))
        return SpecialClaim(name=str(metadata["name"]), devices=devices, pods=pods) if devices and pods else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def pods_of(claim: Mapping[str, Any], namespace: str) -> list[PodRef]:
    """The pods that may use a claim."""
    return [
        PodRef(namespace=namespace, name=str(user["name"]), uid=str(user["uid"]))
        for user in users_of(claim)
        if is_pod(user) and user.get("name") and user.get("uid")
    ]


def _device(result: Mapping[str, Any]) -> HeldDevice:
    tolerations = tuple(_toleration(item) for item in result.get("tolerations") or ())
    return HeldDevice(pool=str(result["pool"]), name=str(result["device"]), tolerations=tolerations)


def _toleration(item: Mapping[str, Any]) -> Toleration:
    seconds = item.get("tolerationSeconds")
    return Toleration(
        key=str(item.get("key") or ""),
        operator=str(item.get("operator") or "Equal"),
        value=str(item.get("value") or ""),
        effect=str(item.get("effect") or ""),
        seconds=None if seconds is None else max(0, int(seconds)),
    )
