"""A device as CEL sees it: the variable ``device`` of selectors.

Owns the conversion of a wire device (``ResourceSlice.spec.devices[]``) to CEL values. Follows
k8s.io/dynamic-resource-allocation cel/compile.go: unqualified names belong to the driver's domain; looking up an
unknown domain gives an empty map and no error, while a missing name in a domain is an error.
"""

from collections.abc import Mapping
from typing import Any

from dra_driver.cel.cost_bound import ORDINARY
from dra_driver.cel.libraries.kube import of_capacity
from dra_driver.cel.values import CelMap, DomainMap, StringMap, well_formed
from dra_driver.semver import Semver


class DeviceView:
    """One device, ready for programs, in any number of threads.

    ``problem`` is a sentence about an attribute that the scheduler of Kubernetes 1.36 cannot read (its list types are
    behind a gate that is off), which fails every selector; ``ordinary`` says that nothing is larger than expected.
    """

    __slots__ = ("env", "ordinary", "problem")

    def __init__(self, driver: str, device: Mapping[str, Any]) -> None:
        """Raises ValueError on a quantity or version that is none."""
        self.problem = ""
        self.ordinary = len(driver) <= ORDINARY
        attributes = {name: self._attribute(name, value) for name, value in (device.get("attributes") or {}).items()}
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
        """The view of a device of a ResourceSlice. Raises ValueError on a quantity or version that is none."""
        return cls(driver, device)

    def _attribute(self, name: str, value: Mapping[str, Any]) -> Any:
        text = value.get("string")
        if text is not None:
            self.ordinary = self.ordinary and len(text) <= ORDINARY
            return well_formed(text)
        for kind in ("int", "bool"):
            if value.get(kind) is not None:
                return value[kind]
        if value.get("version") is not None:
            return Semver.parse(value["version"])
        self.problem = self.problem or f"attribute {name}: unsupported attribute value of type {'/'.join(value) or '-'}"
        return None


def _by_domain(driver: str, values: Mapping[str, Any]) -> DomainMap:
    domains: dict[str, CelMap] = {}
    for name, value in values.items():
        domain, separator, identifier = name.partition("/")
        if not separator:
            domain, identifier = driver, name
        domains.setdefault(domain, StringMap({})).data[identifier] = value
    return DomainMap(domains)
