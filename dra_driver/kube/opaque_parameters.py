"""Removes what other drivers keep in claims, templates and classes: it may hold secrets, nothing here needs it. Pure.

Whose opaque parameters are is said by ``driver`` beside them (resource/v1 ``OpaqueDeviceConfiguration``). The objects
may hold them twice: kubectl writes what it applied into an annotation.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.kube.state import ClusterState

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def without_foreign_parameters(value: object, own: Collection[str]) -> Any:
    """An object with empty opaque parameters, and empty data of claimed devices, of drivers that are not ``own``."""
    if isinstance(value, list | tuple):
        return [without_foreign_parameters(each, own) for each in value]
    if not isinstance(value, Mapping):
        return value
    is_foreign = "driver" in value and value["driver"] not in own
    return {
        name: {} if is_foreign and name in ("parameters", "data") else _kept(name, each, own)
        for name, each in value.items()
    }


def shareable(state: ClusterState, own: Collection[str]) -> ClusterState:
    """The state without opaque parameters of drivers that are not ``own``."""
    return replace(
        state,
        claims=tuple(without_foreign_parameters(item, own) for item in state.claims),
        templates=tuple(without_foreign_parameters(item, own) for item in state.templates),
        classes=tuple(without_foreign_parameters(item, own) for item in state.classes),
    )


def _kept(name: str, value: Any, own: Collection[str]) -> object:
    if name != _LAST_APPLIED:
        return without_foreign_parameters(value, own)
    try:
        return json.dumps(without_foreign_parameters(json.loads(value), own))
    except (ValueError, TypeError, RecursionError):
        return "{}"
