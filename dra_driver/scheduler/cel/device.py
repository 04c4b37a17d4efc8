"""The variable ``device`` of selectors: a device of a ResourceSlice (``spec.devices[]``) as CEL values.

Follows k8s.io/dynamic-resource-allocation cel/compile.go: names without a domain belong to the driver's domain; an
unknown domain is an empty map, but a missing name in a domain is an error.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.cost import ORDINARY
from dra_driver.scheduler.cel.libraries.kube import of_capacity
from dra_driver.scheduler.cel.values import CelMap, DomainMap, StringMap, well_formed


class DeviceView:
    """One device in the form that programs evaluate. Thread-safe.

    ``lists``: the scheduler's gate DRAListTypeAttributes is on. ``problem`` is a sentence about an attribute that the
    scheduler cannot read, such as a list without that gate; it fails every selector. ``ordinary``: texts and maps are
    within ``ORDINARY``.
    """

    __slots__ = ("env", "ordinary", "problem")

    def __init__(self, driver: str, device: Mapping[str, Any], *, lists: bool = False) -> None:
        """Raises ValueError on a malformed quantity or version."""
        self.problem = ""
        self.ordinary = len(driver) <= ORDINARY
        attributes = {
            name: self._attribute(name, value, lists) for name, value in (device.get("attributes") or {}).items()
        }
        capacity = {name: of_capacity(str(value["value"])) for name, value in (device.get("capacity") or {}).items()}
        self.ordinary = self.ordinary and max(len(attributes), len(capacity)) <= ORDINARY
        self.env = (
            StringMap(
                {
                    "driver": driver,
                    "attributes": _by_domain(driver, attributes),
                    "capacity": _by_domain(driver, capacity),
                    "allowMultipleAllocations": bool(device.get("allowMultipleAllocations") or False),
                }
            ),
        )

    @classmethod
    def from_wire(cls, device: Mapping[str, Any], driver: str) -> "DeviceView":
        """The view of a device of a ResourceSlice. Raises ValueError on a malformed quantity or version."""
        return cls(driver, device)

    def _attribute(self, name: str, value: Mapping[str, Any], lists: bool) -> Any:
        text = value.get("string")
        if text is not None:
            self.ordinary = self.ordinary and len(text) <= ORDINARY
            return well_formed(text)
        for kind in ("int", "bool"):
            if value.get(kind) is not None:
                return value[kind]
        if value.get("version") is not None:
            return Semver.parse(value["version"])
        if lists and (found := self._list(value)) is not None:
            return found
        self.problem = self.problem or f"attribute {name}: unsupported attribute value of type {'/'.join(value) or '-'}"
        return None

    def _list(self, value: Mapping[str, Any]) -> list[Any] | None:
        """None for what is no list of a type that the API has."""
        for kind, read in _LISTS.items():
            items = value.get(kind)
            if isinstance(items, list):
                texts = items if kind in {"strings", "versions"} else ()
                self.ordinary = (
                    self.ordinary and len(items) <= ORDINARY and all(len(text) <= ORDINARY for text in texts)
                )
                return [read(item) for item in items]
        return None


def _plain(value: Any) -> Any:
    return value


_LISTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ints": _plain,
    "bools": _plain,
    "strings": well_formed,
    "versions": Semver.parse,
}


def _by_domain(driver: str, values: Mapping[str, Any]) -> DomainMap:
    domains: dict[str, CelMap] = {}
    for name, value in values.items():
        domain, separator, identifier = name.partition("/")
        if not separator:
            domain, identifier = driver, name
        domains.setdefault(domain, StringMap({})).data[identifier] = value
    return DomainMap(domains)
