"""A device as CEL sees it: the variable ``device`` of selectors.

Owns the conversion of a wire device (``ResourceSlice.spec.devices[]``) to CEL values. Follows
k8s.io/dynamic-resource-allocation cel/compile.go: unqualified names belong to the driver's domain; looking up an
unknown domain gives an empty map and no error, while a missing name in a domain is an error.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from celpy import celtypes

from dra_driver.quantity import Quantity
from dra_driver.semver import Semver


def _version(text: str) -> Any:
    return Semver.parse(text)


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": celtypes.IntType,
    "bool": celtypes.BoolType,
    "string": celtypes.StringType,
    "version": Semver.parse,
    "ints": lambda values: celtypes.ListType(map(celtypes.IntType, values)),
    "bools": lambda values: celtypes.ListType(map(celtypes.BoolType, values)),
    "strings": lambda values: celtypes.ListType(map(celtypes.StringType, values)),
    "versions": lambda values: celtypes.ListType(map(_version, values)),
}

FIELDS = frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})
"""What ``device.`` can be followed by."""


class _Domains(celtypes.MapType):
    """domain -> name -> value; a domain that is not there reads as an empty map, and is still not ``in`` the map."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self:
            return celtypes.MapType()
        return super().__getitem__(key)


class DeviceView:
    """One device, ready for programs, in any number of threads. Raises ValueError on a malformed device."""

    __slots__ = ("activation",)

    def __init__(self, driver: str, device: Mapping[str, Any]) -> None:
        attributes = {name: _attribute(name, value) for name, value in device.get("attributes", {}).items()}
        capacity = {name: Quantity.parse(value["value"]) for name, value in device.get("capacity", {}).items()}
        variable: Any = celtypes.MapType()
        variable["driver"] = celtypes.StringType(driver)
        variable["attributes"] = _by_domain(driver, attributes)
        variable["capacity"] = _by_domain(driver, capacity)
        shared = bool(device.get("allowMultipleAllocations", False))
        variable["allowMultipleAllocations"] = celtypes.BoolType(shared)
        self.activation: dict[str, Any] = {"device": variable}


def _attribute(name: str, value: Mapping[str, Any]) -> Any:
    for kind, convert in _CONVERSIONS.items():
        if value.get(kind) is not None:
            return convert(value[kind])
    raise ValueError(f"attribute {name} has none of the known types {', '.join(_CONVERSIONS)}: {sorted(value)}")


def _by_domain(driver: str, values: Mapping[str, Any]) -> _Domains:
    domains: Any = _Domains()
    for name, value in values.items():
        domain, separator, identifier = name.rpartition("/")
        key = celtypes.StringType(domain if separator else driver)
        if key not in domains:
            domains[key] = celtypes.MapType()
        domains[key][celtypes.StringType(identifier)] = value
    return domains  # type: ignore[no-any-return]
