"""The node and devices that come closest to what a request wants, and what would change that.

Owns the idea of closeness: as many devices as are missing on the node, with fewer and easier obstacles first; a class
that asks for something else altogether is far away.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dra_driver.allocation.capacity import shortage
from dra_driver.allocation.devices import Device
from dra_driver.allocation.events import Cause, ConstraintBroken, CounterShort, GateOff, NotOnNode
from dra_driver.allocation.taints import untolerated
from dra_driver.errors import AllocationError
from dra_driver.explain.asks import AskSpec
from dra_driver.explain.holders import Holders
from dra_driver.explain.objects import listed
from dra_driver.explain.reasons import Finding, finding_of, in_use_words, selector_findings
from dra_driver.explain.report import Miss

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

    device: Device
    cause: Cause


class Place(NamedTuple):
    """A node on which a request got ``fitting`` devices and needs more, and the devices that it did not get."""

    ask: AskSpec
    node: str
    fitting: int
    candidates: list[Candidate]


class _Near(NamedTuple):
    device: str
    findings: list[Finding]
    distance: int


def nearest_miss(places: Iterable[Place], holders: Holders) -> Miss | None:
    """The closest place among the first MAX_CANDIDATES devices; of equally close ones the first. None when none is."""
    best: tuple[int, Place, list[_Near]] | None = None
    looked = 0
    for place in places:
        if looked >= MAX_CANDIDATES:
            break
        looked += len(place.candidates)
        chosen = _chosen(place, holders)
        distance = sum(near.distance for near in chosen)
        if chosen and (best is None or distance < best[0]):
            best = (distance, place, chosen)
    return _miss(best[1], best[2]) if best is not None else None


def _chosen(place: Place, holders: Holders) -> list[_Near]:
    """As many of the nearest devices as are missing; none when the node does not even have so many."""
    near = [_near(place.ask, candidate, holders) for candidate in place.candidates[:MAX_CANDIDATES]]
    if place.ask.count is None:
        # "All" are those that match; what else is in their way has to go for each of them.
        matching = [one for one in near if not any(finding.code in _SELECTORS for finding in one.findings)]
        return matching or sorted(near, key=lambda one: one.distance)[:1]
    missing = max(place.ask.count - place.fitting, 1)
    return sorted(near, key=lambda one: one.distance)[:missing] if len(near) >= missing else []


def _near(ask: AskSpec, candidate: Candidate, holders: Holders) -> _Near:
    found = _faults(ask, candidate, holders)
    distance = sum(_DISTANCE.get(finding.code, 4) for finding in found)
    return _Near(candidate.device.name, found, distance)


def _faults(ask: AskSpec, candidate: Candidate, holders: Holders) -> list[Finding]:
    """Everything that is in the device's way, not only what the allocator met first."""
    device, cause = candidate
    found = list(selector_findings(ask, device))
    if device.held and not ask.admin_access:
        found.append(Finding("inUse", "in use", in_use_words(holders.claims(device.id), holders)))
    taint = untolerated(device.wire.get("taints") or (), ask.tolerations)
    if taint is not None:
        found.append(finding_of(ask, device, taint, holders))
    short = _capacity(ask.capacity, device)
    if short is not None:
        found.append(finding_of(ask, device, short, holders))
    if isinstance(cause, CounterShort | ConstraintBroken | GateOff | NotOnNode) or not found:
        found.append(finding_of(ask, device, cause, holders))
    return found


def _capacity(requests: Mapping[str, object], device: Device) -> Cause | None:
    try:
        return shortage(requests or None, device.wire.get("capacity") or {}, device.consumed, None)
    except (AllocationError, ValueError):
        return None


def _miss(place: Place, chosen: list[_Near]) -> Miss:
    sentences: dict[str, list[str]] = {}
    for near in chosen:
        for finding in near.findings:
            sentences.setdefault(_sentence(finding), []).append(near.device)
    several = len(chosen) > 1
    return Miss(
        device=listed([near.device for near in chosen], 8),
        node=place.node,
        request=place.ask.request,
        faults=tuple(
            f"{listed(devices)}: {text}" if several and len(devices) < len(chosen) else text
            for text, devices in sentences.items()
        ),
        fix="; and ".join(dict.fromkeys(_fix(finding) for near in chosen for finding in near.findings)),
    )


def _sentence(finding: Finding) -> str:
    return f"{finding.message} ({finding.seen})" if finding.seen else finding.message


def _fix(finding: Finding) -> str:
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
