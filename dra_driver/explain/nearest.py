"""The node and devices that come closest to what a request wants, and what would change that.

Owns the idea of closeness: as many devices as are missing on the node, with fewer and easier obstacles first; a class
that asks for something else altogether is far away.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dra_driver.allocation.capacity import shortage
from dra_driver.allocation.devices import PoolDevice
from dra_driver.allocation.events import Cause, ConstraintBroken, CounterShort, GateOff, NotOnNode
from dra_driver.allocation.taints import untolerated
from dra_driver.errors import AllocationError
from dra_driver.explain.holders import Holders
from dra_driver.explain.objects import listed
from dra_driver.explain.phrases import RejectionReason, holder_labels
from dra_driver.explain.reasons import rejection_of, selector_rejections
from dra_driver.explain.report import NearestMiss
from dra_driver.explain.requests import RequestSpec

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
    """A device that a request did not get, with what the allocator said."""

    device: PoolDevice
    cause: Cause


class Shortfall(NamedTuple):
    """A node on which a request got ``fitting`` devices and needs more, and the devices that it did not get."""

    spec: RequestSpec
    node: str
    fitting: int
    candidates: list[Candidate]


class _RankedCandidate(NamedTuple):
    device: str
    findings: list[RejectionReason]
    distance: int

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """The same for devices that fell away for the same reasons."""
        return [(finding.code, finding.message) for finding in self.findings]


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
    """As many of the nearest devices as are missing, and how many others would have done in place of the last one.

    None when the node does not even have so many.
    """
    near = [_candidate(place.spec, candidate, holders) for candidate in place.candidates[:MAX_CANDIDATES]]
    if place.spec.count is None:
        # "All" are those that match; what else is in their way has to go for each of them.
        matching = [one for one in near if not any(finding.code in _SELECTORS for finding in one.findings)]
        return matching or sorted(near, key=lambda one: one.distance)[:1], 0
    missing = max(place.spec.count - place.fitting, 1)
    if len(near) < missing:
        return [], 0
    near.sort(key=lambda one: one.distance)
    freed = {finding.seen for one in near[:missing] for finding in one.findings}
    return near[:missing], sum(
        one.reasons == near[missing - 1].reasons and freed.isdisjoint(finding.seen for finding in one.findings)
        for one in near[missing:]
    )


def _candidate(spec: RequestSpec, candidate: Candidate, holders: Holders) -> _RankedCandidate:
    found = _all_rejections(spec, candidate, holders)
    distance = sum(_DISTANCE.get(finding.code, 4) for finding in found)
    return _RankedCandidate(candidate.device.name, found, distance)


def _all_rejections(spec: RequestSpec, candidate: Candidate, holders: Holders) -> list[RejectionReason]:
    """Everything that is in the device's way, not only what the allocator met first."""
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
    """Every capacity that is missing something, not only the first."""
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
        for finding in near.findings:
            sentences.setdefault(_sentence(finding), []).append(near.device)
    several = len(chosen) > 1
    return NearestMiss(
        device=listed([near.device for near in chosen], 8),
        node=place.node,
        request=place.spec.request,
        faults=tuple(
            f"{listed(devices)}: {text}" if several and len(devices) < len(chosen) else text
            for text, devices in sentences.items()
        ),
        fix=_fixes([finding for near in chosen for finding in near.findings], more),
    )


def _fixes(findings: Sequence[RejectionReason], more: int) -> str:
    """All that has to be done, what can be done in its place, and how many devices are as near as these."""
    text = "; and ".join(dict.fromkeys(_fix(finding) for finding in findings))
    instead = " and ".join(dict.fromkeys(finding.instead for finding in findings if finding.instead))
    text += f"; or {instead}" if instead else ""
    if more and all(finding.code == "inUse" for finding in findings):
        text += f"; {more} more device{' is' if more == 1 else 's are'} as near"
    return text


def _sentence(finding: RejectionReason) -> str:
    return f"{finding.message} ({finding.seen})" if finding.seen else finding.message


def _fix(finding: RejectionReason) -> str:
    if finding.fix:
        return finding.fix
    match finding.code:
        case "inUse":
            if "(no pod)" in finding.seen:
                return f"delete the claim if nobody needs it: {finding.seen}"
            return f"end what uses it: {finding.seen}"
        case "takenByThisPod":
            return "ask for fewer devices in this pod"
        case "tainted":
            return "remove what the taint is about, or tolerate it in the request if the device is good enough"
        case "capacityShort":
            return "ask for less, or end other shares of the device"
        case "counterShort":
            return "end what uses the other parts of the GPU"
        case "constraint":
            return "relax the constraint, or free devices that go together"
        case "requestSelector":
            return f"relax the selector so that it accepts {finding.seen or 'the device'}"
        case "classSelector":
            return "ask for another class"
        case "gateOff":
            return "turn the feature gate on"
        case _:
            return "let the pod go where the device is"
