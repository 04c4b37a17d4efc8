"""Finds fields that the API server dropped because a feature gate is off.

Compares an object with its annotation ``kubectl.kubernetes.io/last-applied-configuration``; objects without it cannot
be checked. Which gate a field belongs to: kubernetes/kubernetes pkg/registry/resource/*/strategy.go.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.objects import Wire, name_of

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_LAST_APPLIED: Final = 512 * 1024
_GATES: Final = {
    "firstAvailable": "DRAPrioritizedList",
    "adminAccess": "DRAAdminAccess",
    "tolerations": "DRADeviceTaints",
    "capacity": "DRAConsumableCapacity",
    "distinctAttribute": "DRAConsumableCapacity",
    "extendedResourceName": "DRAExtendedResource",
}


def dropped_fields(kind: str, item: Wire) -> Iterator[Cause]:
    """Yields a cause for each gated field that was applied but is not stored."""
    applied = _applied(item)
    for path, field in _missing(applied.get("spec"), item.get("spec"), "spec", 0):
        gate = _GATES[field]
        yield Cause(
            code=CauseCode.GATE_OFF,
            message=f"{kind} {name_of(item)} was applied with {path}, but the API server dropped the field because "
            f"feature gate {gate} is off",
            fix=f"enable {gate} in the API server, scheduler, controller manager and kubelets, then apply it again",
            object=f"{kind.lower()}/{name_of(item)}",
            blocks=False,
        )


def _applied(item: Wire) -> dict[str, Any]:
    note = ((item.get("metadata") or {}).get("annotations") or {}).get(_LAST_APPLIED)
    if not isinstance(note, str) or len(note) > _MAX_LAST_APPLIED:
        return {}
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _missing(applied: Any, stored: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 12:  # deeper than any field of these kinds
        return
    if isinstance(applied, dict) and isinstance(stored, dict):
        for name, value in applied.items():
            if name in _GATES and value not in (None, [], {}, "", False) and name not in stored:
                yield f"{path}.{name}", name
            elif name in stored:
                yield from _missing(value, stored[name], f"{path}.{name}", depth + 1)
    elif isinstance(applied, list) and isinstance(stored, list):
        for index, (one, other) in enumerate(zip(applied, stored, strict=False)):
            yield from _missing(one, other, f"{path}[{index}]", depth + 1)
