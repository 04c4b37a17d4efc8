"""Finds the node and devices that come closest to satisfying a request, and what has to change.

The distance of a node is the sum over as many of its nearest devices as the request lacks. Each reason that rejects a
device adds to its distance; a class selector that does not match adds most.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dra_driver.core.errors import AllocationError
from dra_driver.core.text import listed
from dra_driver.kubectl.explain.holders import Holders
from dra_driver.kubectl.explain.phrases import RejectionReason, holder_labels
from dra_driver.kubectl.explain.reasons import rejection_of, selector_rejections
from dra_driver.kubectl.explain.report import NearestMiss
from dra_driver.kubectl.explain.requests import RequestSpec
from dra_driver.scheduler.allocation import (
    Cause,
    ConstraintBroken,
    CounterShort,
    GateOff,
    NotOnNode,
    PoolDevice,
    shortage,
    untolerated,
)

MAX_CANDIDATES: Final = 5_000

_DISTANCE: Final = {
    "tainted": 2,
    "constraint": 2,
    "capacityShort": 3,
    "inUse": 3,
    "takenByThisPod": 3,
    "counterShort": 3,
    "requestSelector": 4,
    "nodeSelection": 5,
    "gateOff": 6,
    "classSelector": 20,
}
_SELECTORS: Final = ("classSelector", "requestSelector")


class Candidate(NamedTuple):
    """A rejected device and the allocator's cause."""

    device: PoolDevice
    cause: Cause


class Shortfall(NamedTuple):
    """A node on which a request got only ``fitting`` devices, and the devices that were rejected."""

    spec: RequestSpec
    node: str
    fitting: int
    candidates: list[Candidate]


class _RankedCandidate(NamedTuple):
    device: str
    reasons: list[RejectionReason]
    distance: int

    @property
    def reason_key(self) -> list[tuple[str, str]]:
        """Codes and messages, equal for devices rejected for the same reasons."""
        return [(reason.code, reason.message) for reason in self.reasons]


def nearest_miss(places: Iterable[Shortfall], holders: Holders) -> NearestMiss | None:
    """The closest place among the first MAX_CANDIDATES devices; of equally close ones the first. None when none is."""
    best: tuple[int, Shortfall, list[_RankedCandidate], int] | None = None
    inspected = 0
    for place in places:
        if inspected >= MAX_CANDIDATES:
            break
        inspected += len(place.candidates)
        chosen, more = _chosen(place, holders)
        distance = sum(near.distance for near in chosen)
        if chosen and (best is None or distance < best[0]):
            best = (distance, place, chosen, more)
    return _miss(*best[1:]) if best is not None else None


def _chosen(place: Shortfall, holders: Holders) -> tuple[list[_RankedCandidate], int]:
    """Returns as many of the nearest devices as are missing, and how many others are as near as the last one.

    The list is empty when the node has fewer devices than are missing.
    """
    near = [_candidate(place.spec, candidate, holders) for candidate in place.candidates[:MAX_CANDIDATES]]
    if place.spec.count is None:
        # "All" means every matching device; each of them has to become available.
        matching = [one for one in near if not any(reason.code in _SELECTORS for reason in one.reasons)]
        return matching or sorted(near, key=lambda one: one.distance)[:1], 0
    missing = max(place.spec.count - place.fitting, 1)
    if len(near) < missing:
        return [], 0
    near.sort(key=lambda one: one.distance)
    freed = {reason.seen for one in near[:missing] for reason in one.reasons}
    return near[:missing], sum(
        one.reason_key == near[missing - 1].reason_key and freed.isdisjoint(reason.seen for reason in one.reasons)
        for one in near[missing:]
    )


def _candidate(spec: RequestSpec, candidate: Candidate, holders: Holders) -> _RankedCandidate:
    found = _all_rejections(spec, candidate, holders)
    distance = sum(_DISTANCE.get(reason.code, 4) for reason in found)
    return _RankedCandidate(candidate.device.name, found, distance)


def _all_rejections(spec: RequestSpec, candidate: Candidate, holders: Holders) -> list[RejectionReason]:
    """Returns every reason that rejects the device, not only the first one that the allocator met."""
    device, cause = candidate
    found = list(selector_rejections(spec, device))
    if device.allocated and not spec.admin_access:
        found.append(RejectionReason("inUse", "in use", holder_labels(holders.claims(device.id), holders)))
    taint = untolerated(device.wire.get("taints") or (), spec.tolerations)
    if taint is not None:
        found.append(rejection_of(spec, device, taint, holders))
    found += [rejection_of(spec, device, short, holders) for short in _capacity(spec.capacity, device)]
    if isinstance(cause, CounterShort | ConstraintBroken | GateOff | NotOnNode) or not found:
        found.append(rejection_of(spec, device, cause, holders))
    return found


def _capacity(requests: Mapping[str, object], device: PoolDevice) -> list[Cause]:
    """Returns every capacity that is short, not only the first."""
    found: list[Cause] = []
    capacities = device.wire.get("capacity") or {}
    for name in dict.fromkeys([*requests, *capacities]):
        asked = {name: requests[name]} if name in requests else None
        own = {name: capacities[name]} if name in capacities else {}
        try:
            short = shortage(asked, own, device.consumed, None)
        except (AllocationError, ValueError):
            continue
        if short is not None:
            found.append(short)
    return found


def _miss(place: Shortfall, chosen: list[_RankedCandidate], more: int) -> NearestMiss:
    sentences: dict[str, list[str]] = {}
    for near in chosen:
        for reason in near.reasons:
            sentences.setdefault(_sentence(reason), []).append(near.device)
    several = len(chosen) > 1
    return NearestMiss(
        device=listed([near.device for near in chosen], 8),
        node=place.node,
        request=place.spec.request,
        faults=tuple(
            f"{listed(devices)}: {text}" if several and len(devices) < len(chosen) else text
            for text, devices in sentences.items()
        ),
        fix=_fixes([reason for near in chosen for reason in near.reasons], more),
    )


def _fixes(reasons: Sequence[RejectionReason], more: int) -> str:
    """Joins everything that has to be done, the alternatives, and the number of devices that are as near."""
    text = "; and ".join(dict.fromkeys(_fix(reason) for reason in reasons))
    instead = " and ".join(dict.fromkeys(reason.instead for reason in reasons if reason.instead))
    text += f"; or {instead}" if instead else ""
    if more and all(reason.code == "inUse" for reason in reasons):
        text += f"; {more} other device{' is' if more == 1 else 's are'} equally near"
    return text


def _sentence(reason: RejectionReason) -> str:
    return f"{reason.message} ({reason.seen})" if reason.seen else reason.message


def _fix(reason: RejectionReason) -> str:
    if reason.fix:
        return reason.fix
    match reason.code:
        case "inUse":
            if "(no pod)" in reason.seen:
                return f"delete the claim if it is no longer needed: {reason.seen}"
            return f"end the workload that uses it: {reason.seen}"
        case "takenByThisPod":
            return "request fewer devices in this pod"
        case "tainted":
            return "remove the cause of the taint, or tolerate the taint in the request"
        case "capacityShort":
            return "request less, or end workloads that use other shares of the device"
        case "counterShort":
            return "end the workloads that use other parts of the GPU"
        case "constraint":
            return "relax the constraint, or free devices that satisfy it together"
        case "requestSelector":
            return f"relax the selector so that it accepts {reason.seen or 'the device'}"
        case "classSelector":
            return "request another DeviceClass"
        case "gateOff":
            return "enable the feature gate"
        case _:
            return "allow the pod on the nodes that can use the device"
