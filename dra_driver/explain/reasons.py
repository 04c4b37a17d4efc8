"""From the allocator's events to reasons that a person can act on, grouped and counted.

Owns the words and codes of single devices. The allocator checks "in use" before selectors, so a device that is in use
and would not have suited anyway is counted under its selector: that it is busy is beside the point.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.allocation.devices import Device
from dra_driver.allocation.events import (
    CapacityShort,
    Cause,
    ConstraintBroken,
    CounterShort,
    DeviceId,
    GateOff,
    InUse,
    NotOnNode,
    NotSelected,
    Tainted,
)
from dra_driver.explain.asks import AskSpec
from dra_driver.explain.blame import failing, holds, signature
from dra_driver.explain.holders import Holders
from dra_driver.explain.report import Reason
from dra_driver.quantity import Quantity

Wire = Mapping[str, Any]

ORDER: Final = (
    "classSelector",
    "requestSelector",
    "nodeSelection",
    "gateOff",
    "inUse",
    "takenByThisPod",
    "capacityShort",
    "counterShort",
    "tainted",
    "constraint",
)
_MOST_SEEN: Final = 3
_MOST_REMEMBERED: Final = 2000


@dataclass(frozen=True, slots=True)
class Finding:
    """Why one device fell away: ``code`` and ``message`` make the group, ``seen`` is what differs within it."""

    code: str
    message: str
    seen: str


@dataclass(slots=True)
class Group:
    """Devices with the same code and message."""

    devices: int = 0
    nodes: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def finding_of(ask: AskSpec, device: Device, cause: Cause, holders: Holders) -> Finding:
    """The finding for one rejection of the ask's request."""
    if isinstance(cause, NotSelected) or (isinstance(cause, InUse) and cause.holders):
        blamed = selector_findings(ask, device)
        if blamed:
            return blamed[0]
    return _words(cause, device, holders)


def selector_findings(ask: AskSpec, device: Device) -> Sequence[Finding]:
    """The clauses of class and request that are false for the device, in their order.

    Answers for devices that look alike to the selectors are remembered with the ask.
    """
    key = signature((*ask.class_selectors, *ask.selectors), device.slice.key[0], device.wire)
    if key is None:
        return tuple(_selector_findings(ask, device))
    known: Sequence[Finding] | None = ask.memo.get(key)
    if known is None:
        known = ask.memo[key] = tuple(_selector_findings(ask, device))
    return known


def _selector_findings(ask: AskSpec, device: Device) -> Iterator[Finding]:
    driver = device.slice.key[0]
    for code, where, expressions in (
        ("classSelector", f"class {ask.class_name}", ask.class_selectors),
        ("requestSelector", "selector", ask.selectors),
    ):
        for number, expression in enumerate(expressions, 1):
            if holds(expression, driver, device.wire) is False:
                which = f" {number}" if len(expressions) > 1 else ""
                for blame in failing(expression, driver, device.wire):
                    place = f", {blame.place}" if blame.place else ""
                    yield Finding(code, f"{where}{which}{place}: {blame.clause}", blame.seen)


def in_use_words(claims: Sequence[str], holders: Holders) -> str:
    return " and ".join(holders.named(claim) for claim in dict.fromkeys(claims))


def _words(cause: Cause, device: Device, holders: Holders) -> Finding:
    name = device.id.device
    match cause:
        case InUse():
            if cause.holders:
                return Finding("inUse", "in use", in_use_words(cause.holders, holders))
            return Finding("takenByThisPod", "taken by another request of this pod", "")
        case Tainted():
            return Finding("tainted", f"taint {taint_text(cause)} that the request does not tolerate", "")
        case CapacityShort():
            return Finding("capacityShort", *_capacity(cause, name))
        case CounterShort():
            return Finding("counterShort", *_counter(cause, device, holders))
        case ConstraintBroken():
            return Finding("constraint", *_constraint(cause))
        case NotOnNode():
            return Finding("nodeSelection", "the device's own node selection leaves the node out", "")
        case GateOff():
            return Finding("gateOff", f"needs the feature gate {cause.gate}, which is off in the scheduler", "")
        case NotSelected():
            return Finding("requestSelector", cause.expression, "")


def taint_text(taint: Tainted) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _capacity(cause: CapacityShort, name: str) -> tuple[str, str]:
    if cause.why == "undefined":
        return f"has no capacity {cause.capacity}, of which the request wants {cause.wanted}", ""
    if cause.why == "policy":
        return f"its request policy does not give out {cause.wanted} of {cause.capacity}", ""
    return f"too little {cause.capacity}: {cause.wanted} wanted", f"{name} has {cause.free} free"


def _counter(cause: CounterShort, device: Device, holders: Holders) -> tuple[str, str]:
    if not cause.own:
        return (
            "blocked: shared counters of its pool are overdrawn",
            f"{cause.counter_set}/{cause.counter}: {cause.free}",
        )
    users = [f"{other} of {claim}" for other, claim in consumers(device, cause.counter_set, holders)]
    by = f", used by {', '.join(users[:2])}{' and more' if len(users) > 2 else ''}" if users else ""
    short = short_by(cause.wanted, cause.free)
    seen = f"{cause.counter_set}: {cause.counter} short by {short} ({cause.wanted} needed, {cause.free} left){by}"
    return "shared counters of its GPU are used up", seen


def consumers(device: Device, counter_set: str, holders: Holders) -> list[tuple[str, str]]:
    """Held devices of the same pool that consume from the counter set, each with the first claim that holds it.

    Only the device's own slice is searched: a GPU's devices are published together.
    """
    found = []
    driver, pool = device.slice.key
    held = set(holders.held_in(driver, pool))
    for wire in device.slice.spec.get("devices") or () if held else ():
        if wire["name"] in held and any(e["counterSet"] == counter_set for e in wire.get("consumesCounters") or ()):
            claims = holders.claims(DeviceId(driver, pool, wire["name"]))
            found.append((str(wire["name"]), claims[0] if claims else ""))
    return found


def short_by(wanted: str, free: str) -> str:
    try:
        return str(Quantity.parse(wanted) - Quantity.parse(free))
    except ValueError:
        return wanted


def _constraint(cause: ConstraintBroken) -> tuple[str, str]:
    if cause.seen is None:
        return f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: the device lacks the attribute", ""
    words = "the chosen device has" if cause.kind == "matchAttribute" else "already taken:"
    message = (
        f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: does not go with the devices chosen before"
    )
    return message, f"{cause.seen}, while {words} {', '.join(cause.others[:2])}"


class Funnel:
    """What became of all devices for one ask, over any number of nodes."""

    def __init__(self, ask: AskSpec) -> None:
        self.ask = ask
        self.devices = 0
        self.fitting = 0
        self.nodes_short = 0
        self._groups: dict[tuple[str, str], Group] = {}

    def add(self, node: str, total: int, findings: Sequence[tuple[str, Finding]]) -> None:
        """One node: how many devices it reaches, and the (device, finding) of those that fell away."""
        fitting = total - len(findings)
        self.devices += total
        self.fitting += fitting
        self.nodes_short += fitting < (self.ask.count if self.ask.count is not None else max(total, 1))
        for device, finding in findings:
            group = self._groups.setdefault((finding.code, finding.message), Group())
            group.devices += 1
            group.nodes.add(node)
            if finding.seen and (len(group.seen) < _MOST_REMEMBERED or finding.seen in group.seen):
                group.seen[finding.seen] += 1
            if len(group.examples) < _MOST_SEEN:
                group.examples.append(f"{device} on {node}")

    def reasons(self) -> list[Reason]:
        """In the order of the allocator's checks, larger groups first within one check."""
        ranked = sorted(self._groups.items(), key=lambda item: (ORDER.index(item[0][0]), -item[1].devices, item[0][1]))
        return [
            Reason(
                code=code,
                message=message,
                devices=group.devices,
                nodes=len(group.nodes),
                seen=_seen(group.seen),
                examples=tuple(group.examples),
            )
            for (code, message), group in ranked
        ]


def _seen(values: Counter[str]) -> tuple[str, ...]:
    most = [f"{value} ({count} devices)" if count > 1 else value for value, count in values.most_common(_MOST_SEEN)]
    return (*most, f"and {len(values) - _MOST_SEEN} more") if len(values) > _MOST_SEEN else tuple(most)
