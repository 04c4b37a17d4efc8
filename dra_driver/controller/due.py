"""Which pods have to leave their devices, and when. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from dra_driver.controller.fleet import NO_EXECUTE, EvictingTaint, Fleet, TaintedDevice
from dra_driver.controller.special_claims import PodRef, SpecialClaim, Toleration


class Endangered(Struct, frozen=True, kw_only=True):
    """A pod with a device that it may not keep: to be evicted at ``due`` because of ``taint``."""

    pod: PodRef
    claim: str
    device: TaintedDevice
    taint: EvictingTaint
    due: datetime


def endangered(fleet: Fleet, claims: Iterable[SpecialClaim], grace_s: float) -> list[Endangered]:
    """Each pod once, with its earliest time; earliest first, then in the order of names.

    ``grace_s`` is for devices whose GPU's policy names no time of its own.
    """
    found: dict[PodRef, Endangered] = {}
    for claim in claims:
        for case in _cases(fleet, claim, grace_s):
            for pod in claim.pods:
                known = found.get(pod)
                if known is None or case[2] < known.due:
                    device, taint, due = case
                    found[pod] = Endangered(pod=pod, claim=claim.name, device=device, taint=taint, due=due)
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
