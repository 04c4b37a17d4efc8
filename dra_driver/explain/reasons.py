"""Turns the allocator's events into reasons, grouped and counted.

The allocator checks "in use" before selectors. A device that is in use and does not match the selectors is counted
under its selector, because freeing it would not help.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.allocation import Cause, InUse, NotSelected, PoolDevice
from dra_driver.explain.failed_clauses import failed_clauses, is_selected_by, signature
from dra_driver.explain.holders import Holders
from dra_driver.explain.phrases import RejectionReason, rejection_for_cause
from dra_driver.explain.report import Reason
from dra_driver.explain.requests import RequestSpec

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


@dataclass(slots=True)
class Group:
    """Devices with the same code and message."""

    devices: int = 0
    nodes: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def rejection_of(spec: RequestSpec, device: PoolDevice, cause: Cause, holders: Holders) -> RejectionReason:
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

    def add(self, node: str, total: int, rejections: Sequence[tuple[str, RejectionReason]]) -> None:
        """Adds one node: the number of devices it reaches, and (device, reason) of the rejected ones."""
        fitting = total - len(rejections)
        self.devices += total
        self.fitting += fitting
        self.nodes_short += fitting < (self.spec.count if self.spec.count is not None else max(total, 1))
        for device, rejection in rejections:
            group = self._groups.setdefault((rejection.code, rejection.message), Group())
            group.devices += 1
            group.nodes.add(node)
            if rejection.seen and (len(group.seen) < _MAX_DISTINCT or rejection.seen in group.seen):
                group.seen[rejection.seen] += 1
            if len(group.examples) < _MAX_SEEN:
                group.examples.append(f"{device} on {node}")

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
