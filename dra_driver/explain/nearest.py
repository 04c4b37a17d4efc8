"""The device that comes closest to being taken, and what would change that.

Owns the idea of closeness: fewer and easier obstacles first; a class that asks for something else altogether is far
away.
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
from dra_driver.explain.reasons import Finding, finding_of, in_use_words, selector_findings
from dra_driver.explain.report import Miss

MAX_CANDIDATES: Final = 5_000

_DISTANCE: Final = {
    "tainted": 2,
    "constraint": 2,
    "capacityShort": 3,
    "inUse": 3,
    "counterShort": 3,
    "requestSelector": 4,
    "nodeSelection": 5,
    "gateOff": 6,
    "classSelector": 20,
}


class Candidate(NamedTuple):
    """A device that a request did not get, on a node, with what the allocator said."""

    ask: AskSpec
    node: str
    device: Device
    cause: Cause


def nearest_miss(candidates: Iterable[Candidate], holders: Holders) -> Miss | None:
    """The closest of the first MAX_CANDIDATES; of equally close ones the first. None when there are none."""
    best: tuple[int, Candidate, list[Finding]] | None = None
    for number, candidate in enumerate(candidates):
        if number >= MAX_CANDIDATES:
            break
        found = faults(candidate, holders)
        distance = sum(_DISTANCE.get(finding.code, 4) for finding in found)
        if found and (best is None or distance < best[0]):
            best = (distance, candidate, found)
    if best is None:
        return None
    _, candidate, found = best
    return Miss(
        device=candidate.device.name,
        node=candidate.node,
        request=candidate.ask.request,
        faults=tuple(_sentence(finding) for finding in found),
        fix="; and ".join(dict.fromkeys(_fix(finding) for finding in found)),
    )


def faults(candidate: Candidate, holders: Holders) -> list[Finding]:
    """Everything that is in the device's way, not only what the allocator met first."""
    ask, _, device, cause = candidate
    found = list(selector_findings(ask, device))
    if device.held and not ask.admin_access:
        found.append(Finding("inUse", "in use", in_use_words(holders.claims(device.id), holders)))
    taint = untolerated(device.wire.get("taints") or (), ask.tolerations)
    if taint is not None:
        found.append(finding_of(ask, device, taint, holders))
    short = _capacity(ask.capacity, device)
    if short is not None:
        found.append(finding_of(ask, device, short, holders))
    if isinstance(cause, CounterShort | ConstraintBroken | GateOff | NotOnNode):
        found.append(finding_of(ask, device, cause, holders))
    return found


def _capacity(requests: Mapping[str, object], device: Device) -> Cause | None:
    try:
        return shortage(requests or None, device.wire.get("capacity") or {}, device.consumed, None)
    except (AllocationError, ValueError):
        return None


def _sentence(finding: Finding) -> str:
    return f"{finding.message} ({finding.seen})" if finding.seen else finding.message


def _fix(finding: Finding) -> str:
    match finding.code:
        case "inUse":
            return f"end what uses it: {finding.seen}"
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
