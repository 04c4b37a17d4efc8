"""Selectors of a class and a request, compiled and evaluated lazily, once for devices that are equal in all attributes
that the expressions read. As in the scheduler, an error has no effect before a device reaches the selector
(``selectorsMatch`` of structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError, SelectorBudgetError
from dra_driver.core.semver import Semver
from dra_driver.scheduler.allocation.devices import PoolDevice
from dra_driver.scheduler.allocation.events import Wire
from dra_driver.scheduler.cel import LACKS_NONE, DeviceView, Program, compile_selector, find_attribute_refs

Key = tuple[object, ...]
Verdict = int
SELECTED: Final = -1
"""The verdict on a device that all selectors accept. Other verdicts are the index of the first false selector."""

_MOST_ANSWERS: Final = 500_000
_NOTHING: Final[Wire] = {}


class DeviceSelector(Struct, frozen=True, kw_only=True, eq=False):
    """An expression and its origin: selector ``index`` of the class, or of the claim's request."""

    expression: str
    where: str
    class_name: str | None
    index: int

    def program(self, lacks: frozenset[str]) -> Program:
        """The compiled expression; ``lacks`` are functions that the scheduler does not have. Raises CelSyntaxError."""
        try:
            return compile_selector(self.expression, lacks)
        except CelSyntaxError as error:
            raise CelSyntaxError(f"{self.where}: CEL compile error: {error}") from error


class SelectorSet:
    """The selectors of one request: first the selectors of its class. Thread-safe; results are cached for its life.
    Without ``sharing`` ``device.allowMultipleAllocations`` is always false, as in the ``stable`` allocator. ``lacks``
    are functions that the scheduler does not have. ``lists``: it reads attributes that are lists."""

    def __init__(
        self,
        selectors: Sequence[DeviceSelector],
        *,
        sharing: bool,
        lacks: frozenset[str] = LACKS_NONE,
        lists: bool = False,
    ) -> None:
        self.selectors = selectors
        self._sharing, self._lacks, self._lists = sharing, lacks, lists
        self._answers: dict[Key, Verdict | Exception] = {}
        self._fields_by_driver: dict[str, _ReadFields] = {}

    def verdict(self, device: PoolDevice) -> Verdict:
        """SELECTED, or the index of the first selector that is false. Raises CelSyntaxError and CelEvaluationError."""
        if not self.selectors:
            return SELECTED
        wire = device.wire
        driver = device.slice.key[0]
        if device.readable is None:
            device.readable = _is_readable(wire.get("attributes"), lists=self._lists)
        fields = self._fields_by_driver.get(driver)
        if fields is None:
            fields = _ReadFields(driver, [selector.expression for selector in self.selectors])
            self._fields_by_driver[driver] = fields
        if not device.readable or fields.reads_all:
            return self._evaluate(device, wire)
        key = fields.key(wire)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(key, device, fields.narrow(wire))
        if not isinstance(answer, int):
            raise type(answer)(f"{answer} (on device {device.id})") from answer
        return answer

    def attributes_read(self) -> set[str] | None:
        """Return the attributes that the selectors read, without domains; None if unknown."""
        names: set[str] = set()
        for selector in self.selectors:
            try:
                refs = find_attribute_refs(selector.expression)
            except CelSyntaxError:
                return None
            if refs.everything:
                return None
            names.update(identifier for _, identifier in refs.attributes)
        return names

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
            program = selector.program(self._lacks)
            try:
                seen = wire if self._sharing else {**wire, "allowMultipleAllocations": False}
                view = view or DeviceView(device.slice.key[0], seen, lists=self._lists)
                if not program.evaluate(view):
                    return place
            except SelectorBudgetError as error:
                raise SelectorBudgetError(f"{selector.where} {error}") from error
            except (CelEvaluationError, ValueError) as error:
                raise CelEvaluationError(f"{selector.where}: CEL runtime error: {error}") from error
        return SELECTED


class _ReadFields:
    __slots__ = ("_attributes", "_capacity", "_driver", "reads_all")

    def __init__(self, driver: str, expressions: Sequence[str]) -> None:
        self._driver = driver
        attributes: set[tuple[str, str]] = set()
        capacity: set[tuple[str, str]] = set()
        self.reads_all = False
        for expression in expressions:
            try:
                seen = find_attribute_refs(expression)
            except CelSyntaxError:
                self.reads_all = True
                break
            self.reads_all = self.reads_all or seen.everything
            attributes |= seen.attributes
            capacity |= seen.capacity
        self._attributes = _spellings(driver, attributes)
        self._capacity = _spellings(driver, capacity)

    def key(self, wire: Wire) -> Key:
        """Equal for devices for which the selectors have the same result."""
        parts: list[object] = [self._driver, wire.get("allowMultipleAllocations")]
        attributes = wire.get("attributes") or _NOTHING
        for name in self._attributes:
            value = attributes.get(name)
            kinds = value.items() if value else ()
            parts.append(tuple([(kind, tuple(item) if type(item) is list else item) for kind, item in kinds]))
        if self._capacity:
            capacity = wire.get("capacity") or _NOTHING
            for name in self._capacity:
                value = capacity.get(name)
                parts.append(value["value"] if value else None)
        return tuple(parts)

    def narrow(self, wire: Wire) -> Wire:
        """The device with the fields that the selectors read only, which is faster to evaluate."""
        attributes, capacity = wire.get("attributes") or _NOTHING, wire.get("capacity") or _NOTHING
        return {
            "attributes": {name: value for name, value in attributes.items() if name in self._attributes},
            "capacity": {name: value for name, value in capacity.items() if name in self._capacity},
            "allowMultipleAllocations": wire.get("allowMultipleAllocations"),
        }


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
    spelled = [f"{domain}/{identifier}" for domain, identifier in sorted(names)]
    return spelled + [identifier for domain, identifier in sorted(names) if domain == driver]


def _is_readable(attributes: Wire | None, *, lists: bool) -> bool:
    """Return whether the scheduler reads the type of every attribute; one other type fails every selector."""
    for value in (attributes or {}).values():
        if "string" in value or "int" in value or "bool" in value:
            continue
        if lists and any(type(value.get(kind)) is list for kind in ("ints", "strings", "bools")):
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
