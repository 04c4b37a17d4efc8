"""Constraints between the devices of one claim: matchAttribute and distinctAttribute.

Follows k8s.io/dynamic-resource-allocation structured/internal/incubating/constraint.go (Kubernetes 1.36): a device
without the attribute never satisfies a constraint, and values of different types are different.
"""

from collections.abc import Mapping
from typing import Any

from dra_driver.allocation.pools import Device
from dra_driver.allocation.requests import Alternative, claim_label
from dra_driver.errors import AllocationError

Wire = Mapping[str, Any]
_Value = tuple[str, Any]


class Constraint:
    """One constraint and the values of the devices that it holds so far, in order of `add`."""

    def __init__(self, attribute: str, requests: frozenset[str], *, distinct: bool) -> None:
        self._attribute = attribute
        self._requests = requests
        self._distinct = distinct
        self._values: list[tuple[str, _Value]] = []

    def applies(self, alternative: Alternative) -> bool:
        """Whether the constraint names the request, its subrequest, or everything."""
        return not self._requests or not self._requests.isdisjoint((alternative.name, alternative.base))

    def add(self, alternative: Alternative, device: Device) -> bool:
        """Take the device in if that keeps the constraint; the answer tells. Every True is undone by `remove`."""
        value = _attribute(device, self._attribute)
        if value is None or not self._accepts(value):
            return False
        self._values.append((alternative.base, value))
        return True

    def remove(self) -> None:
        """Take the last device out again."""
        self._values.pop()

    def _accepts(self, value: _Value) -> bool:
        if not self._distinct:
            return not self._values or self._values[0][1] == value
        # One value per request, the last one: what Kubernetes up to 1.36 does with count above 1 (fixed in 1.37).
        return value not in dict(self._values).values()


def parse_constraints(claim: Wire) -> list[Constraint]:
    """The claim's constraints. Raises AllocationError on one of an unknown type."""
    parsed = []
    for index, item in enumerate(claim["spec"].get("devices", {}).get("constraints") or ()):
        requests = frozenset(item.get("requests") or ())
        if item.get("matchAttribute"):
            parsed.append(Constraint(item["matchAttribute"], requests, distinct=False))
        elif item.get("distinctAttribute"):
            parsed.append(Constraint(item["distinctAttribute"], requests, distinct=True))
        else:
            why = "empty constraint (unsupported constraint type?)"
            raise AllocationError(f"{claim_label(claim)}, constraint #{index}: {why}")
    return parsed


def _attribute(device: Device, name: str) -> _Value | None:
    attributes = device.wire.get("attributes") or {}
    value = attributes.get(name)
    domain, _, identifier = name.partition("/")
    if value is None and domain == device.id.driver:
        value = attributes.get(identifier)
    return next(iter(value.items()), None) if value else None
