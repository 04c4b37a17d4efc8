"""Removes what other drivers keep in claims, templates and classes: it may hold secrets, no check needs it. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from dra_driver.doctor.driver_view import driver_names
from dra_driver.doctor.facts import ClusterFacts

_KINDS: Final = ("claims", "templates", "classes")
"""Kinds with opaque parameters (resource/v1 ``OpaqueDeviceConfiguration``)."""


def without_foreign_parameters(facts: ClusterFacts) -> ClusterFacts:
    """The facts with empty opaque parameters, and empty data of claimed devices, where another driver reads them."""
    own = driver_names(facts)
    kept = {name: [_cleaned(item, own) for item in facts.items(name)] for name in _KINDS if facts.knows(name)}
    return facts.with_items(**kept)


def _cleaned(value: Any, own: Collection[str]) -> Any:
    if isinstance(value, list | tuple):
        return [_cleaned(each, own) for each in value]
    if not isinstance(value, Mapping):
        return value
    is_foreign = "driver" in value and value["driver"] not in own
    return {
        name: {} if is_foreign and name in ("parameters", "data") else _cleaned(each, own)
        for name, each in value.items()
    }
