"""Turns the allocator's events into reasons, grouped and counted.

The allocator checks "in use" before selectors. A device that is in use and does not match the selectors is counted
under its selector, because freeing it would not help.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.kubectl.explain.failed_clauses import failed_clauses, is_selected_by, signature
from dra_driver.kubectl.explain.holders import DeviceHolders
from dra_driver.kubectl.explain.phrases import RejectionReason, rejection_for_cause
from dra_driver.kubectl.explain.report import Reason
from dra_driver.kubectl.explain.requests import RequestSpec
from dra_driver.scheduler.allocation import Cause, InUse, NotSelected, PoolDevice

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
_MAX_SEEN: Final = 3
_MAX_DISTINCT: Final = 2000


class Group(Struct):
    """Devices with the same code and message."""

    devices: int = 0
    nodes: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, node: str, found: "Group", named: Callable[[str], str]) -> None:
        """Adds the devices of one node, whose ``examples`` are names of devices."""
        self.devices += found.devices
        self.nodes.add(node)
        for mark, count in found.seen.items():
            text = named(mark)
            if len(self.seen) < _MAX_DISTINCT or text in self.seen:
                self.seen[text] += count
        room = _MAX_SEEN - len(self.examples)
        self.examples += [f"{device} on {node}" for device in found.examples[:room]]


class NodeRejections(Struct, frozen=True):
    """The devices that one request did not get on one node, grouped as in `Funnel`. Nodes that are alike share it."""

    devices: int
    groups: Mapping[tuple[str, str], Group]

    @classmethod
    def of(cls, rejections: Sequence[tuple[str, RejectionReason]]) -> "NodeRejections":
        """Groups the rejected devices, given as name and reason."""
        groups: dict[tuple[str, str], Group] = {}
        for device, rejection in rejections:
            group = groups.setdefault((rejection.code, rejection.message), Group())
            group.devices += 1
            if rejection.seen:
                group.seen[rejection.seen] += 1
            if len(group.examples) < _MAX_SEEN:
                group.examples.append(device)
        return cls(len(rejections), groups)


def rejection_of(spec: RequestSpec, device: PoolDevice, cause: Cause, holders: DeviceHolders) -> RejectionReason:
    """Returns the reason why the request did not get the device."""
    if isinstance(cause, NotSelected) or (isinstance(cause, InUse) and cause.holders):
        false_clauses = selector_rejections(spec, device)
        if false_clauses:
            return false_clauses[0]
    return rejection_for_cause(cause, spec, device, holders)


def selector_rejections(spec: RequestSpec, device: PoolDevice) -> Sequence[RejectionReason]:
    """Returns the clauses of class and request that are false for the device, in order.

    Results are cached in ``spec`` for devices that the selectors cannot distinguish.
    """
    key = signature((*spec.class_selectors, *spec.selectors), device.slice.key[0], device.wire)
    if key is None:
        return tuple(_selector_rejections(spec, device))
    known: Sequence[RejectionReason] | None = spec.selector_cache.get(key)
    if known is None:
        known = spec.selector_cache[key] = tuple(_selector_rejections(spec, device))
    return known


def _selector_rejections(spec: RequestSpec, device: PoolDevice) -> Iterator[RejectionReason]:
    driver = device.slice.key[0]
    for code, where, expressions in (
        ("classSelector", f"class {spec.class_name}", spec.class_selectors),
        ("requestSelector", "selector", spec.selectors),
    ):
        for number, expression in enumerate(expressions, 1):
            if is_selected_by(expression, driver, device.wire) is False:
                which = f" {number}" if len(expressions) > 1 else ""
                for clause in failed_clauses(expression, driver, device.wire):
                    place = f", {clause.place}" if clause.place else ""
                    yield RejectionReason(code, f"{where}{which}{place}: {clause.clause}", clause.seen)


class Funnel:
    """Counts what happened to all devices for one request, over any number of nodes."""

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.devices = 0
        self.fitting = 0
        self.nodes_short = 0
        self._groups: dict[tuple[str, str], Group] = {}

    def add(self, node: str, total: int, rejected: "NodeRejections", named: Callable[[str], str]) -> None:
        """Adds one node: the number of devices it reaches, and the rejected ones. ``named`` puts in names of claims."""
        fitting = total - rejected.devices
        self.devices += total
        self.fitting += fitting
        self.nodes_short += fitting < (self.spec.count if self.spec.count is not None else max(total, 1))
        for key, on_node in rejected.groups.items():
            self._groups.setdefault(key, Group()).add(node, on_node, named)

    def reasons(self) -> list[Reason]:
        """Returns the groups in the order of the allocator's checks, larger groups first within one check."""
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
    most = [f"{value} ({count} devices)" if count > 1 else value for value, count in values.most_common(_MAX_SEEN)]
    return (*most, f"and {len(values) - _MAX_SEEN} more") if len(values) > _MAX_SEEN else tuple(most)
