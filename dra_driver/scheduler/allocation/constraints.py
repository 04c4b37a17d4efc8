"""Constraints between the devices of one claim: matchAttribute and distinctAttribute. Follows
structured/internal/incubating/allocator_incubating.go and constraint.go of k8s.io/dynamic-resource-allocation
(Kubernetes 1.36): a device without the attribute never satisfies one, and values of different types are different."""

from abc import ABC, abstractmethod
from typing import Final

from dra_driver.scheduler.allocation.devices import PoolDevice
from dra_driver.scheduler.allocation.events import ConstraintBroken, Wire

Value = tuple[str, object]
_KINDS: Final = ("string", "int", "bool", "version")


class Constraint(ABC):
    """One constraint and the values of the devices added to it, for one search. ``requests`` are names (``main`` or
    ``main/sub``), () for all."""

    __slots__ = ("_added", "attribute", "index", "kind", "requests")

    kind: str

    def __init__(self, index: int, attribute: str, requests: frozenset[str]) -> None:
        self.index = index
        self.attribute = attribute
        self.requests = requests
        self._added: list[Wire] = []

    @abstractmethod
    def _accepts(self, value: Wire) -> bool:
        """Return whether the constraint still holds with one more device of this value."""

    def add(self, _base: str, device: PoolDevice, /) -> bool:
        """Adds the device and returns True if the constraint still holds then. `remove` undoes each True."""
        value = attribute_of(device, self.attribute)
        if value is None or not self._accepts(value):
            return False
        self._added.append(value)
        return True

    def remove(self, _base: str, /) -> None:
        self._added.pop()

    def values(self) -> list[Wire]:
        return self._added

    def broken_by(self, device: PoolDevice) -> ConstraintBroken:
        seen = attribute_of(device, self.attribute)
        return ConstraintBroken(
            index=self.index,
            kind=self.kind,
            attribute=self.attribute,
            seen=None if seen is None else _text(seen),
            others=tuple(map(_text, self.values())),
        )


class MatchAttribute(Constraint):
    __slots__ = ()

    kind = "matchAttribute"

    def _accepts(self, value: Wire) -> bool:
        return not self._added or _equal(value, self._added[0])

    def values(self) -> list[Wire]:
        return self._added[:1]


class MatchSets(MatchAttribute):
    """All devices have a value in common; a single value is a set of one (lists, 1.37 and later). Follows
    matchAttributeConstraint of structured/internal/experimental/allocator_experimental.go."""

    __slots__ = ()

    def _accepts(self, value: Wire) -> bool:
        return bool(frozenset.intersection(_set_of(value), *map(_set_of, self._added)))


class DistinctOfAll(Constraint):
    """All devices have different values, with the value of every device remembered: Kubernetes 1.37 and later."""

    __slots__ = ()

    kind = "distinctAttribute"

    def _accepts(self, value: Wire) -> bool:
        others = self.values()
        known = any(value.get(kind) is not None for kind in _KINDS)
        return not others or (known and not any(self._is_same(value, other) for other in others))

    def _is_same(self, value: Wire, other: Wire) -> bool:
        return _equal(value, other)


class DistinctSets(DistinctOfAll):
    """Values are sets, and no two devices have one in common: lists, 1.37 and later."""

    __slots__ = ()

    def _accepts(self, value: Wire) -> bool:
        found = _set_of(value)
        return bool(found) and not any(found & _set_of(other) for other in self._added)


class DistinctAttribute(DistinctOfAll):
    """All devices have different values. Kubernetes 1.36 remembers only the last value of a request, and drops it when
    it deallocates any device of the request."""

    __slots__ = ("_values",)

    def __init__(self, index: int, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(index, attribute, requests)
        self._values: dict[str, Wire] = {}

    def add(self, base: str, device: PoolDevice, /) -> bool:
        if not super().add(base, device):
            return False
        self._values[base] = self._added[-1]
        return True

    def remove(self, base: str, /) -> None:
        super().remove(base)
        self._values.pop(base, None)

    def values(self) -> list[Wire]:
        return list(self._values.values())


class DistinctByIdentity(DistinctAttribute):
    """Kubernetes 1.34 compares the addresses of values: only a device that is added again has an equal value."""

    __slots__ = ()

    def _is_same(self, value: Wire, other: Wire) -> bool:
        return value is other


def attribute_of(device: PoolDevice, name: str) -> Wire | None:
    """The attribute by its full name, or by the part after the driver's own domain."""
    attributes = device.wire.get("attributes") or {}
    value: Wire | None = attributes.get(name)
    if value is None:
        domain, slash, identifier = name.partition("/")
        if slash and domain == device.slice.key[0]:
            value = attributes.get(identifier)
    return value


def _equal(value: Wire, other: Wire) -> bool:
    """Return whether both have the same value of the same type; values of a type unknown to 1.36 are unequal."""
    for kind in _KINDS:
        if value.get(kind) is not None:
            return bool(other.get(kind) is not None and value[kind] == other[kind])
    return False


def _set_of(value: Wire | None) -> frozenset[Value]:
    found: list[Value] = []
    for kind in _KINDS:
        single, many = (value or {}).get(kind), (value or {}).get(f"{kind}s")
        found += [(kind, item) for item in (many or ())] if single is None else [(kind, single)]
    return frozenset(found)


def _text(value: Wire) -> str:
    return next((str(item) for item in value.values()), "")
