"""Rule DRA058: pods that belong together can get GPUs and network cards of different rails.

A constraint holds within one claim, and each pod gets its own claim of a template. Pods of one file and namespace count
as pods that belong together, and a constraint for the PCIe root of several classes as a request for a rail.
"""

from collections.abc import Sequence
from typing import Final

from dra_driver.kube.published import names
from dra_driver.kubectl.lint.catalog_devices import DRIVER
from dra_driver.kubectl.lint.check_configs import parts_of
from dra_driver.kubectl.lint.finding import Reporter
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.kubectl.lint.scope import Scope, compiled

_PINS: Final = {names.RAIL, "pciBusID", "pcieRoot", "ifName", "pciAddress", "rdmaDevice"}
"""Attributes that select the devices of one rail; the last three are DRANET's."""
_NAME: Final = "resourceClaimTemplateName"
_HINT: Final = f'use one template for each rail, with `device.attributes["{DRIVER}"].?rail.orValue(-1) == 0`'


class RailChecker:
    """Collects the pods of a run for `report`."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter, self._scope = reporter, scope
        self._pods: dict[tuple[str, str], list[Sequence[tuple[Spot, Spot]]]] = {}

    def add(self, pod: Spot, claims: Sequence[tuple[Spot, Spot]]) -> None:
        """``claims`` are entries of the pod with the devices that they request."""
        if near := [(entry, devices) for entry, devices in claims if _is_near(entry, devices)]:
            self._pods.setdefault((pod.manifest.text.name, pod.manifest.namespace), []).append(near)

    def report(self) -> None:
        for pods in self._pods.values():
            named = {entry.string(_NAME): (entry, devices) for pod in pods for entry, devices in pod}
            for name, (entry, devices) in named.items() if len(pods) > 1 else ():
                if not any(map(self._is_pinned, parts_of(devices))):
                    message = f"pods with template {name[:80]!r} can get other rails than further pods of this file"
                    self._reporter.add("DRA058", entry, f"{message}: a constraint holds within one claim", hint=_HINT)

    def _is_pinned(self, named: tuple[str, Spot]) -> bool:
        info = self._scope.class_info(named[1].string("deviceClassName"))
        chain = [*(compiled(named[1].each("selectors")) or ()), *((info and info.selectors) or ())]
        return any(reference.name in _PINS for selector in chain for reference in selector.reads.references)


def _is_near(entry: Spot, devices: Spot) -> bool:
    """Return whether each pod gets its own claim for devices of several classes on one PCIe root."""
    same = {each.string("matchAttribute") for each in devices.each("constraints")}
    classes = {part.string("deviceClassName") for _, part in parts_of(devices)}
    return names.PCIE_ROOT in same and len(classes) > 1 and entry.get(_NAME) is not None
