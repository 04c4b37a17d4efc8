"""Selectors of a class and a request, evaluated as late and as seldom as possible.

Owns when an expression is compiled and evaluated, and the memory of answers: devices that are equal in what the
expressions read get one evaluation, on however many nodes they are. As in the scheduler, neither a compile error nor a
run-time error does harm before a device reaches the selector (``selectorsMatch`` of
structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dra_driver.allocation.devices import PoolDevice
from dra_driver.cel import DeviceView, Program, compile_selector, find_attribute_refs
from dra_driver.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.semver import Semver

Wire = Mapping[str, Any]
Key = tuple[Any, ...]
Verdict = int
SELECTED: Final = -1
"""The verdict on a device that every selector accepts; others are the place of the first selector that does not."""

_MOST_ANSWERS: Final = 500_000
_NOTHING: Final[Wire] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSelector:
    """An expression and where it is written: selector ``index`` of the class, or of the claim's request."""

    expression: str
    where: str
    class_name: str | None
    index: int

    def program(self) -> Program:
        """The compiled expression. Raises CelSyntaxError."""
        try:
            return compile_selector(self.expression)
        except CelSyntaxError as error:
            raise CelSyntaxError(f"{self.where}: CEL compile error: {error}") from error


class SelectorSet:
    """The selectors that one request applies to a device, class first. Thread-safe; answers are kept for its life.

    Without ``sharing`` every device reads as one that cannot be shared: the oldest allocator of the scheduler does not
    hand that field on.
    """

    def __init__(self, selectors: Sequence[DeviceSelector], *, sharing: bool) -> None:
        self.selectors = selectors
        self._sharing = sharing
        self._answers: dict[Key, Verdict | Exception] = {}
        self._lenses: dict[str, _Lens] = {}

    def verdict(self, device: PoolDevice) -> Verdict:
        """SELECTED, or the index of the first selector that is false. Raises CelSyntaxError and CelEvaluationError."""
        if not self.selectors:
            return SELECTED
        wire = device.wire
        driver = device.slice.key[0]
        if device.readable is None:
            device.readable = _is_readable(wire.get("attributes"))
        lens = self._lenses.get(driver) or self._lens(driver)
        if not device.readable or lens.sees_all:
            return self._evaluate(device, wire)
        key = lens.key(wire)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(key, device, lens.narrow(wire))
        if not isinstance(answer, int):
            raise type(answer)(f"{answer} (on device {device.id})") from answer
        return answer

    def _remember(self, key: Key, device: PoolDevice, seen: Wire) -> Verdict | Exception:
        answer: Verdict | Exception
        try:
            answer = self._evaluate(device, seen)
        except (CelSyntaxError, CelEvaluationError) as error:
            answer = error
        if len(self._answers) < _MOST_ANSWERS:
            self._answers[key] = answer
        return answer

    def _evaluate(self, device: PoolDevice, wire: Wire) -> Verdict:
        view = None
        for place, selector in enumerate(self.selectors):
            program = selector.program()
            try:
                view = view or DeviceView(device.slice.key[0], wire if self._sharing else _unshared(wire))
                if not program.evaluate(view):
                    return place
            except (CelEvaluationError, ValueError) as error:
                raise CelEvaluationError(f"{selector.where}: CEL runtime error: {error}") from error
        return SELECTED

    def _lens(self, driver: str) -> "_Lens":
        lens = _Lens(driver, [selector.expression for selector in self.selectors])
        self._lenses[driver] = lens
        return lens


class _Lens:
    """What the selectors see of a driver's devices."""

    __slots__ = ("_attributes", "_capacity", "_driver", "sees_all")

    def __init__(self, driver: str, expressions: Sequence[str]) -> None:
        self._driver = driver
        attributes: set[tuple[str, str]] = set()
        capacity: set[tuple[str, str]] = set()
        self.sees_all = False
        for expression in expressions:
            try:
                seen = find_attribute_refs(expression)
            except CelSyntaxError:
                self.sees_all = True
                break
            self.sees_all = self.sees_all or seen.everything
            attributes |= seen.attributes
            capacity |= seen.capacity
        self._attributes = _spellings(driver, attributes)
        self._capacity = _spellings(driver, capacity)

    def key(self, wire: Wire) -> Key:
        """Equal for devices on which the selectors cannot differ."""
        parts: list[Any] = [self._driver, wire.get("allowMultipleAllocations")]
        attributes = wire.get("attributes") or _NOTHING
        for name in self._attributes:
            value = attributes.get(name)
            parts.append(tuple(value.items()) if value else None)
        if self._capacity:
            capacity = wire.get("capacity") or _NOTHING
            for name in self._capacity:
                value = capacity.get(name)
                parts.append(value["value"] if value else None)
        return tuple(parts)

    def narrow(self, wire: Wire) -> Wire:
        """The device without what the selectors do not see: much quicker to evaluate."""
        attributes, capacity = wire.get("attributes") or _NOTHING, wire.get("capacity") or _NOTHING
        return {
            "attributes": {name: value for name, value in attributes.items() if name in self._attributes},
            "capacity": {name: value for name, value in capacity.items() if name in self._capacity},
            "allowMultipleAllocations": wire.get("allowMultipleAllocations"),
        }


def _unshared(wire: Wire) -> Wire:
    return {name: value for name, value in wire.items() if name != "allowMultipleAllocations"}


def parse_selectors(items: Sequence[Wire], where: str, class_name: str | None) -> list[DeviceSelector]:
    """The selectors of a class or request. Raises AllocationError on one that is not CEL."""
    found = []
    for index, item in enumerate(items):
        place = f"{where}: selector #{index}"
        cel = item.get("cel")
        if cel is None:
            raise AllocationError(f"{place}: CEL expression empty (unsupported selector type?)")
        found.append(
            DeviceSelector(expression=cel.get("expression") or "", where=place, class_name=class_name, index=index)
        )
    return found


def _spellings(driver: str, names: set[tuple[str, str]]) -> list[str]:
    """How names can be spelled in a slice: with their domain, or without when it is the driver's."""
    spelled = [f"{domain}/{identifier}" for domain, identifier in sorted(names)]
    return spelled + [identifier for domain, identifier in sorted(names) if domain == driver]


def _is_readable(attributes: Wire | None) -> bool:
    """Whether every attribute has a type that the scheduler of 1.36 reads; one that has not fails every selector."""
    for value in (attributes or {}).values():
        if "string" in value or "int" in value or "bool" in value:
            continue
        if value.get("version") is None or not _is_version(value["version"]):
            return False
    return True


@lru_cache(maxsize=4096)
def _is_version(text: str) -> bool:
    try:
        Semver.parse(text)
    except ValueError:
        return False
    return True
