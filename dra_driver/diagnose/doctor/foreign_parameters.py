"""Removes what other drivers keep in claims, templates and classes from facts that leave the cluster. Pure."""

from typing import Final

from dra_driver.diagnose.doctor.driver_view import driver_names
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.kube import opaque_parameters

_KINDS: Final = ("claims", "templates", "classes")
"""Kinds with opaque parameters (resource/v1 ``OpaqueDeviceConfiguration``)."""


def without_foreign_parameters(facts: ClusterFacts) -> ClusterFacts:
    """The facts with empty opaque parameters, and empty data of claimed devices, where another driver reads them."""
    own = driver_names(facts)
    kept = {
        name: [opaque_parameters.without_foreign_parameters(item, own) for item in facts.items(name)]
        for name in _KINDS
        if facts.knows(name)
    }
    return facts.with_items(**kept)
