"""Compute which pods to evict from devices with NoExecute taints, and when each eviction is due. No I/O.

The scheduler creates these claims for a pod's extended resources (kubernetes/kubernetes
pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go): with an annotation, the pod as owner and
user, and requests without tolerations. The pod has it in ``status.extendedResourceClaimStatus`` and not in
``spec.resourceClaims``, and Kubernetes 1.36 checks only the latter when it evicts pods (device_taint_eviction.go
podEvictionTime; kubernetes#141290). As there (getTaintedDevices), slices of an older generation of a pool are skipped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dra_driver.core.model.health_rules import GRACE_ATTRIBUTE
from dra_driver.core.time import parse_time
from dra_driver.kube.objects import resource
from dra_driver.kube.shapes import read

NO_EXECUTE: Final = "NoExecute"
# The attributes that say which GPU a device is or is part of (published/names.py, as NVIDIA's driver has them).
_GPU_ATTRIBUTES: Final = ("parentUUID", "uuid")
LONGEST_GRACE_S: Final = 3600
"""The maximum of a GpuPolicy; a larger attribute counts as this."""


class EvictingTaint(Struct, frozen=True, kw_only=True):
    """A taint with effect NoExecute; ``added`` in UTC."""

    key: str
    value: str
    added: datetime

    def __str__(self) -> str:
        """``key=value:effect``, as kubectl writes it."""
        return f"{self.key}={self.value}:{NO_EXECUTE}" if self.value else f"{self.key}:{NO_EXECUTE}"


class TaintedDevice(Struct, frozen=True, kw_only=True):
    """A published device with such taints. ``grace_s`` is that of the GPU's policy, None without it."""

    pool: str
    name: str
    gpu: str
    slice_name: str
    taints: tuple[EvictingTaint, ...]
    grace_s: int | None = None


class SliceView(Struct, frozen=True, kw_only=True):
    pool: str
    generation: int
    gpus: frozenset[str]
    tainted: tuple[TaintedDevice, ...]


class Fleet(Struct, frozen=True, kw_only=True):
    """``gpus`` by pool. A node's driver can only write the pool of its node (admission policy)."""

    gpus: Mapping[str, frozenset[str]]
    tainted: Mapping[tuple[str, str], TaintedDevice]


def slice_view(item: Mapping[str, object]) -> SliceView | None:
    """Read the API object; None if it is malformed. A taint without a readable time evicts no pod."""
    try:
        found = read(resource.ResourceSlice, item)
    except ValueError:
        return None
    spec = found.spec
    gpus = frozenset(_gpu(device, spec) for device in spec.devices)
    tainted = tuple(_tainted(spec, found.metadata.name))
    return SliceView(pool=spec.pool.name, generation=spec.pool.generation or 0, gpus=gpus, tainted=tainted)


def fleet_of(slices: Iterable[SliceView]) -> Fleet:
    views = list(slices)
    newest: dict[str, int] = {}
    for view in views:
        newest[view.pool] = max(view.generation, newest.get(view.pool, view.generation))
    current = [view for view in views if view.generation == newest[view.pool]]
    gpus: dict[str, frozenset[str]] = {}
    for view in current:
        gpus[view.pool] = gpus.get(view.pool, frozenset()) | view.gpus
    return Fleet(gpus=gpus, tainted={(found.pool, found.name): found for view in current for found in view.tainted})


def _tainted(spec: resource.ResourceSliceSpec, slice_name: str) -> Iterator[TaintedDevice]:
    for device in spec.devices:
        taints = tuple(
            EvictingTaint(key=taint.key, value=taint.value, added=added)
            for taint in device.taints
            if taint.effect == NO_EXECUTE and (added := parse_time(taint.time_added)) is not None
        )
        if taints:
            yield TaintedDevice(
                pool=spec.pool.name,
                name=device.name,
                gpu=_gpu(device, spec),
                slice_name=slice_name,
                taints=taints,
                grace_s=_grace_s(device),
            )


def _grace_s(device: resource.Device) -> int | None:
    attribute = device.attributes.get(GRACE_ATTRIBUTE)
    seconds = attribute.int_ if attribute is not None else None
    return min(seconds, LONGEST_GRACE_S) if seconds is not None and seconds >= 0 else None


def _gpu(device: resource.Device, spec: resource.ResourceSliceSpec) -> str:
    """A device without such an attribute counts as a GPU."""
    known = device.attributes
    found = (known.get(name) or known.get(f"{spec.driver}/{name}") for name in _GPU_ATTRIBUTES)
    uuids = (attribute.string for attribute in found if attribute is not None and attribute.string)
    return next(uuids, f"{spec.pool.name}/{device.name}")


EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"


class HeldDevice(Struct, frozen=True, kw_only=True):
    pool: str
    name: str
    tolerations: tuple[resource.DeviceToleration, ...] = ()


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
    """Read the API object; None for other claims and for a malformed one."""
    try:
        claim = read(resource.ResourceClaim, item)
    except ValueError:
        return None
    if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return None
    devices = tuple(
        HeldDevice(pool=each.pool, name=each.device, tolerations=each.tolerations)
        for each in results_of(claim)
        if each.driver == driver
    )
    pods = tuple(pods_of(claim))
    return SpecialClaim(name=claim.metadata.name, devices=devices, pods=pods) if devices and pods else None


def results_of(claim: resource.ResourceClaim) -> Sequence[resource.DeviceRequestAllocationResult]:
    """The devices that are allocated to a claim."""
    allocation = claim.status.allocation if claim.status is not None else None
    return allocation.devices.results if allocation is not None and allocation.devices is not None else ()


def pods_of(claim: resource.ResourceClaim) -> list[PodRef]:
    """The pods that may use a claim."""
    users = claim.status.reserved_for if claim.status is not None else ()
    return [
        PodRef(namespace=claim.metadata.namespace, name=user.name, uid=user.uid)
        for user in users
        if user.resource == "pods" and not user.api_group
    ]


class PendingEviction(Struct, frozen=True, kw_only=True):
    """A pod with a device that it may not keep: to be evicted at ``due`` because of ``taint``."""

    pod: PodRef
    claim: str
    device: TaintedDevice
    taint: EvictingTaint
    due: datetime


def pending_evictions(fleet: Fleet, claims: Iterable[SpecialClaim], grace_s: float) -> list[PendingEviction]:
    """Each pod once, earliest first, then by name. ``grace_s`` is for GPUs whose policy has none."""
    found: dict[PodRef, PendingEviction] = {}
    for claim in claims:
        for case in _cases(fleet, claim, grace_s):
            for pod in claim.pods:
                known = found.get(pod)
                if known is None or case[2] < known.due:
                    device, taint, due = case
                    found[pod] = PendingEviction(pod=pod, claim=claim.name, device=device, taint=taint, due=due)
    return sorted(found.values(), key=lambda item: (item.due, item.pod.namespace, item.pod.name))


def grace_of(taint: EvictingTaint, tolerations: Iterable[resource.DeviceToleration], grace_s: float) -> float | None:
    """Seconds from the taint to the eviction; None if the claim tolerates it without limit. A longer toleration counts,
    the shortest of several, as in Kubernetes (device_taint_eviction.go claimEvictionTime)."""
    matching = [item.toleration_seconds for item in tolerations if _tolerates(item, taint)]
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


def _tolerates(toleration: resource.DeviceToleration, taint: EvictingTaint) -> bool:
    """As resourceclaim/devicetoleration.go of k8s.io/dynamic-resource-allocation."""
    if toleration.effect not in {"", NO_EXECUTE} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or (toleration.operator in {"", "Equal"} and toleration.value == taint.value)
