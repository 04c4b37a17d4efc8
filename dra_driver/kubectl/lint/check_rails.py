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
_HINT: Final = f'use one template for each rail, with `device.attributes["{DRIVER}"].?rail.orValue(-1) == 0`'


class RailChecker:
    """Collects the pods of a run for `report`."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter, self._scope = reporter, scope
        self._pods: dict[tuple[str, str], list[Sequence[tuple[Spot, Spot]]]] = {}

    def add(self, pod: Spot, claims: Sequence[tuple[Spot, Spot]]) -> None:
        """``claims`` are entries of the pod with the devices that they request."""
        near = [(entry, devices) for entry, devices in claims if _is_near(entry, devices)]
        if near:
            self._pods.setdefault((pod.manifest.text.name, pod.manifest.namespace), []).append(near)

    def report(self) -> None:
        for pods in self._pods.values():
            free = {
                entry.string("resourceClaimTemplateName"): (entry, devices) for pod in pods for entry, devices in pod
            }
            for name, (entry, devices) in free.items() if len(pods) > 1 else ():
                if not self._is_pinned(devices):
                    message = f"pods with template {name[:80]!r} can get other rails than further pods of this file"
                    self._reporter.add("DRA058", entry, f"{message}: a constraint holds within one claim", hint=_HINT)

    def _is_pinned(self, devices: Spot) -> bool:
        for _, part in parts_of(devices):
            info = self._scope.class_info(part.string("deviceClassName"))
            chain = [*(compiled(part.each("selectors")) or ()), *((info and info.selectors) or ())]
            if any(reference.name in _PINS for selector in chain for reference in selector.reads.references):
                return True
        return False


def _is_near(entry: Spot, devices: Spot) -> bool:
    """Return whether each pod gets its own claim for devices of several classes on one PCIe root."""
    roots = [each for each in devices.each("constraints") if each.string("matchAttribute") == names.PCIE_ROOT]
    classes = {part.string("deviceClassName") for _, part in parts_of(devices)}
    return bool(roots) and len(classes) > 1 and entry.get("resourceClaimTemplateName") is not None
